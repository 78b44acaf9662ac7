"""Cleaning: a raw pair becomes some clean ones, or none and an entry in the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from training.corpus.pair import Pair
from training.corpus.recipe import CorpusRecipe
from training.corpus.repairs import repair
from training.corpus.report import CorpusReport
from training.corpus.rules import LAYOUT_RULE, Rule, RuleContext, choose_rules, idle_rules
from training.corpus.segments import split_paragraphs, split_sentences


class Cleaner:
    """The repairs and rules of one recipe. What they drop is counted in `report`, what they cannot judge noted."""

    def __init__(self, recipe: CorpusRecipe, report: CorpusReport) -> None:
        chosen = choose_rules(recipe.cleaning.drop)
        # Repairs join lines, and so hide what the layout rule looks for: it comes before them.
        self._early = tuple(rule for rule in chosen if rule is LAYOUT_RULE)
        self._late = tuple(rule for rule in chosen if rule is not LAYOUT_RULE)
        self._context = RuleContext(recipe.cleaning, recipe.source, recipe.target, recipe.messages)
        self._marked = recipe.messages if recipe.cleaning.software_marks else frozenset()
        self._report = report
        report.notes += idle_rules(chosen, self._context)

    def clean(self, raw: Iterable[Pair], *, split: bool) -> Iterator[Pair]:
        """The pairs of `raw` that pass every rule, repaired, cut into paragraphs and (if `split`) into sentences."""
        for pair in raw:
            for paragraph in split_paragraphs(pair):
                if not self._passes(paragraph, self._early):
                    continue
                repaired = repair(paragraph, software=paragraph.origin in self._marked)
                for piece in split_sentences(repaired) if split else (repaired,):
                    if self._passes(piece, self._late):
                        yield piece

    def _passes(self, pair: Pair, rules: Sequence[Rule]) -> bool:
        for rule in rules:
            if not rule.keeps(pair, self._context):
                self._report.drop(rule.name, rule.why, pair)
                return False
        return True
