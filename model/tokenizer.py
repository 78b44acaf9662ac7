"""Text to ids and back. The only place that adds or strips PAD, BOS and EOS."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

import sentencepiece as spm

from model.errors import TokenizerError
from model.spans import Span, spans

PAD_ID, BOS_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
"""Ids of the special symbols in every vocabulary that `dragoman-train tokenizer` makes."""

SENTINELS = tuple(map(chr, range(0xE000, 0xE020)))
"""Private-use characters that stand for what is carried through a translation; see `model.protection`."""

_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
"""Soft hyphen, zero-width space, word joiner, byte order mark: layout, not language."""


def normalize(text: str) -> str:
    """The one rule of training and serving: NFC, without invisible layout marks. Idempotent."""
    return unicodedata.normalize("NFC", text.translate(_INVISIBLE))


class Tokenizer:
    """A SentencePiece model with the house's special ids. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        """Load `path`. Raises `TokenizerError` when it is missing, damaged, or has other special ids."""
        if not path.is_file():
            raise TokenizerError(f"a tokenizer must be at {path}, but there is no file.")
        self._pieces = spm.SentencePieceProcessor()
        try:
            self._pieces.LoadFromFile(str(path))
        except (RuntimeError, OSError) as error:
            raise TokenizerError(f"{path} must be a SentencePiece model, but could not be read: {error}.") from error
        pieces = self._pieces
        found = (pieces.pad_id(), pieces.bos_id(), pieces.eos_id(), pieces.unk_id())
        if found != (PAD_ID, BOS_ID, EOS_ID, UNK_ID):
            raise TokenizerError(f"pad, bos, eos, unk must be 0, 1, 2, 3 in {path}, but are {found}; train it again.")
        self.sentinel_ids: tuple[int, ...] = self._sentinels()
        """Ids of `SENTINELS`, in their order; empty in a vocabulary that has not all of them."""
        names = map(pieces.IdToPiece, range(pieces.GetPieceSize()))
        self.characters: frozenset[str] = frozenset(name for name in names if len(name) == 1)
        """Characters with a piece of their own; others are spelt in bytes."""

    def _sentinels(self) -> tuple[int, ...]:
        ids = tuple(self._pieces.PieceToId(sentinel) for sentinel in SENTINELS)
        return () if UNK_ID in ids else ids

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return int(self._pieces.GetPieceSize())

    def encode(self, text: str) -> list[int]:
        """Source or target ids of `text`, EOS last. An empty text gives [EOS]."""
        return [*self._pieces.EncodeAsIds(normalize(text)), EOS_ID]

    def cuts(self, text: str, size: int) -> list[tuple[list[int], float]]:
        """The `size` most likely ways to cut `text` into ids, without EOS, each with its log-probability.

        Only a unigram vocabulary has probabilities; for another kind there are no cuts.
        """
        try:
            found = self._pieces.NBestEncodeAsIds(normalize(text), size)
        except RuntimeError:  # not a unigram model
            return []
        return [(list(ids), sum(self._pieces.GetScore(ids))) for ids in found]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The vocabulary's own names of `ids`: `▁` stands for a space, `</s>` for EOS."""
        return [str(self._pieces.IdToPiece(i)) for i in ids]

    def source_spans(self, text: str) -> list[Span]:
        """Where in `normalize(text)` each id of `encode(text)` stands, but for EOS."""
        text = normalize(text)
        ids, names = self._pieces.EncodeAsIds(text), self._pieces.EncodeAsPieces(text)
        return spans(text, [self._spelling(i, name) for i, name in zip(ids, names, strict=True)])

    def target_spans(self, ids: Sequence[int]) -> list[Span]:
        """Where in `decode(ids)` each of `ids` stands; that of a special symbol is empty."""
        return spans(self.decode(ids), [self._spelling(i, name) for i, name in zip(ids, self.pieces(ids), strict=True)])

    def _spelling(self, token: int, name: str) -> str | bytes:
        """What a piece stands for: letters, or one byte of a character."""
        if token <= UNK_ID and name == self._pieces.IdToPiece(token):
            return ""
        return bytes([int(name[3:5], 16)]) if self._pieces.IsByte(token) else name

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; specials are dropped. The inverse of `encode` on normalised text the vocabulary covers."""
        return str(self._pieces.DecodeIds([i for i in ids if i > UNK_ID]))
