"""A tokenizer that anybody can compute: what several tests of the text room decode with."""

from __future__ import annotations

from model.tokenizer import SENTINELS

EOS = 2


class Letters:
    """One id for each character, and one for each sentinel if there are any."""

    def __init__(self, sentinels: bool = False) -> None:
        self.sentinel_ids = tuple(ord(sentinel) + 10 for sentinel in SENTINELS) if sentinels else ()
        self.characters = None

    def encode(self, text: str) -> list[int]:
        return [ord(c) + 10 for c in text] + [EOS]

    def decode(self, ids) -> str:
        return "".join(chr(i - 10) for i in ids)

    def pieces(self, ids) -> list[str]:
        return [self.decode([i]) for i in ids]

    def source_spans(self, text: str) -> list[tuple[int, int]]:
        return [(i, i + 1) for i in range(len(text))]

    def target_spans(self, ids) -> list[tuple[int, int]]:
        return [(i, i + 1) for i in range(len(ids))]
