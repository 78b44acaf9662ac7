"""The teacher of a distillation: a bundle's engine, and what of its translations can be learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sacrebleu.metrics import BLEU, CHRF

from model.carrying import Carrier, Sentence, is_language
from model.decode.batcher import decode_all
from model.decode.guard import goes_in_circles
from model.decode.options import DecodeOptions, Hypothesis
from model.decode.results import Finished
from model.decode.stepper import Stepper
from model.tokenizer import Tokenizer
from training.recipe import RecipeError
from training.scores import tokenization

REASONS = {
    "copied": "there is nothing to translate in the source",
    "refused": "the engine does not take so long a source",
    "empty": "the translation has no text",
    "cut": "the length limit ended the translation",
    "looped": "the translation goes round in circles",
    "lost": "the translation lost or doubled what it must carry, such as a number or a tag",
}
"""Why the teacher's translation is not used → what the report says."""

Nearness = Literal["chrf", "bleu"]


@dataclass(frozen=True, kw_only=True)
class DistilRecipe:
    """The section `[distil]`: how the teacher translates, and what is taken."""

    beam_size: int = 4
    length_penalty: float = 0.6
    candidates: int = 1
    """Translations of each line to choose from, by nearness to the reference; 1 takes the teacher's best."""
    nearness: Nearness = "chrf"
    """Of a sentence: chrF (Popović, 2015), or BLEU with its counts smoothed."""
    with_references: bool = False
    """The pairs of the corpus stay in the new one, beside the teacher's."""

    def __post_init__(self) -> None:
        if not 1 <= self.candidates <= self.beam_size:
            raise RecipeError(
                f"[distil] candidates must be in 1..beam_size ({self.beam_size}), but is {self.candidates}."
            )


@dataclass(frozen=True)
class Line:
    """A source text that the teacher translates."""

    source: str
    origin: str
    reference: str = ""
    """Empty where nobody has translated it."""


class Teacher:
    """A stepper with its tokenizer; what it says of each line, best first, or why it says nothing that can be used."""

    def __init__(self, stepper: Stepper, tokenizer: Tokenizer, recipe: DistilRecipe, language: str = "") -> None:
        """`language` is what it translates into, which tells what counts as a word of a candidate."""
        self._stepper, self._carrier, self._recipe, self._language = stepper, Carrier(tokenizer), recipe, language
        self._options = DecodeOptions(
            beam_size=recipe.beam_size,
            length_penalty=recipe.length_penalty,
            n_best=recipe.candidates,
            carry=tokenizer.sentinel_ids,
        )

    def translate(self, lines: Sequence[Line]) -> list[dict[str, str]]:
        """For each line either `target`, the translation to learn from, or `dropped`, a key of the reasons."""
        sentences = [self._carrier.sentence(self._carrier.protector.protect(line.source)) for line in lines]
        asked = [number for number, sentence in enumerate(sentences) if is_language(sentence.text)]
        sources = [self._carrier.encode(sentences[number]) for number in asked]
        found = decode_all(self._stepper, sources, self._options)
        said: list[dict[str, str]] = [{"dropped": "copied"} for _ in lines]
        for number, source, finished in zip(asked, sources, found, strict=True):
            said[number] = self._chosen(lines[number], sentences[number], source, finished)
        return said

    def _chosen(self, line: Line, sentence: Sentence, source: Sequence[int], finished: Finished) -> dict[str, str]:
        if finished.error is not None:
            if finished.error.__cause__ is not None:  # the network is to blame, and not the line
                raise finished.error
            return {"dropped": "refused"}
        faults = [self._fault(hypothesis, sentence, source) for hypothesis in finished.hypotheses]
        if faults[0] == "looped":
            return {"dropped": "looped"}
        usable = [
            self._carrier.restored(self._carrier.decode(hypothesis.ids, sentence), sentence).strip()
            for hypothesis, fault in zip(finished.hypotheses, faults, strict=True)
            if not fault
        ]
        if not usable:
            return {"dropped": faults[0]}
        if not line.reference:
            return {"target": usable[0]}
        return {"target": nearest(usable, line.reference, self._recipe.nearness, self._language)}

    def _fault(self, hypothesis: Hypothesis, sentence: Sentence, source: Sequence[int]) -> str:
        """Why a translation is not used, or nothing."""
        written = self._carrier.decode(hypothesis.ids, sentence)
        if goes_in_circles(source, (), hypothesis.ids):
            return "looped"
        if hypothesis.truncated:
            return "cut"
        if not written.strip():
            return "empty"
        return "" if self._carrier.carries(written, sentence) else "lost"


def nearest(candidates: Sequence[str], reference: str, nearness: Nearness, language: str = "") -> str:
    """The candidate most like `reference`; of equals the first."""
    measure: Any = CHRF() if nearness == "chrf" else BLEU(effective_order=True, tokenize=tokenization(language))
    return max(candidates, key=lambda text: float(measure.sentence_score(text, [reference]).score))
