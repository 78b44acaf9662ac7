"""From the engine's results to what each text's slot holds: translation, alternatives, scores, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence

from service.api.ports import Alternative, TextScores, TranslateCommand, Translation, WordLink
from service.errors import Refusal
from service.jobs import SegmentResult
from service.text.pipeline import Pipeline, Prepared, Restored


def build_slots(
    pipeline: Pipeline, prepared: Prepared, results: Sequence[SegmentResult], command: TranslateCommand
) -> tuple[list[Translation | Refusal], int]:
    """The slots of the prepared texts, and how many target tokens they hold."""
    restored = pipeline.restore(prepared, results)
    slots = [
        one.refusal or _translation(pipeline, prepared, results, (text, one), command)
        for text, one in enumerate(restored)
    ]
    return slots, sum(one.target_tokens for one in restored)


def with_refusals(slots: Sequence[Translation | Refusal], refused: dict[int, Refusal]) -> list[Translation | Refusal]:
    """`slots` with those of the refused texts put in their places."""
    done, total = iter(slots), len(slots) + len(refused)
    return [refused[text] if text in refused else next(done) for text in range(total)]


def _translation(
    pipeline: Pipeline,
    prepared: Prepared,
    results: Sequence[SegmentResult],
    text: tuple[int, Restored],
    command: TranslateCommand,
) -> Translation:
    index, one = text

    def aligned(rank: int) -> tuple[WordLink, ...] | None:
        return tuple(pipeline.alignment(prepared, results, index, rank)) if command.alignment else None

    variants, scores = [], None
    alternatives: tuple[Alternative, ...] = ()
    if command.n_best is not None or command.return_scores:
        variants = pipeline.variants(prepared, results, index, command.n_best or 1)
    if command.return_scores:
        tokens = pipeline.tokens(prepared, results, index)
        scores = TextScores(variants[0].score, variants[0].log_prob, tuple(tokens))
    if command.n_best is not None:
        alternatives = tuple(Alternative(each.text, each.score, aligned(each.rank)) for each in variants)
    return Translation(
        one.text,
        one.truncated,
        repetition_guard=one.guarded,
        fragmented=one.fragmented,
        alternatives=alternatives,
        scores=scores,
        alignment=aligned(0),
    )
