"""BLEU and chrF with their signatures (sacreBLEU; Post, 2018; Popović, 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sacrebleu.metrics import BLEU, CHRF


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


def score(outputs: Sequence[str], references: Sequence[str], tokenizer: str = "13a") -> Scores:
    """Scores of detokenised `outputs` against one reference each."""
    if len(outputs) != len(references) or not outputs:
        raise ScoreError(f"outputs and references must be as many, but are {len(outputs)} and {len(references)}.")
    bleu, chrf = BLEU(tokenize=tokenizer), CHRF()
    result = bleu.corpus_score(outputs, [references])
    return Scores(
        sentences=len(outputs),
        bleu=round(result.score, 2),
        brevity_penalty=round(result.bp, 3),
        bleu_signature=str(bleu.get_signature()),
        chrf=round(chrf.corpus_score(outputs, [references]).score, 2),
        chrf_signature=str(chrf.get_signature()),
    )
