"""Rules: each says whether a repaired pair may train a model. A pair is dropped by the first rule it breaks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from training.corpus.errors import CorpusError
from training.corpus.pair import Pair
from training.corpus.recipe import CleaningRecipe
from training.corpus.words import ADDRESS, PLACEHOLDER, POSITIONAL, TAG, words

_ENGLISH = """
the of and to is that it for with this be are you not have from or by as on your can which if they he she has been when
there their would what than its could should
"""
_GERMAN = """
der die das und zu ist den nicht von mit ein eine einen einem einer dem sie er es auf für sich wird werden kann oder
wenn als auch bei nach aus wie zum zur sind im haben hat ihr ihre ihren diese dieser dieses kein keine keinen wurde
wurden konnte muss müssen über ich wir
"""
_FUNCTION_WORDS = {"en": frozenset(_ENGLISH.split()), "de": frozenset(_GERMAN.split())}
"""Words so common in one language, and so rare in the other, that a few of them tell which it is."""

_HALF_WORDS, _HALF_SHARE = 4, 0.6
"""Fewest words of a target to judge, and the share of them that are the source's if it was left half done."""
_IDENTIFIER = re.compile(r"[\w-]+(?:[._][\w-]+)+")
_FOREIGN_LETTER = re.compile(r"(?![A-Za-z\u00aa-\u024f\u1e00-\u1eff])[^\W\d_]")
_LETTER = re.compile(r"[^\W\d_]")
_LAYOUT = re.compile(r"\S[ \t]{3,}\S|\t|^[ \t]*-{1,2}\w[^\n]*\n|[-=_*]{5,}", re.MULTILINE)
_LATIN_CODES = "en de fr es it pt nl sv da nb nn fi pl cs sk sl hr hu ro et lv lt tr id"
_LANGUAGES_IN_LATIN = frozenset(_LATIN_CODES.split())


@dataclass(frozen=True)
class RuleContext:
    """What a rule may know besides the pair: the recipe's limits and the codes of both languages."""

    limits: CleaningRecipe
    source: str
    target: str
    messages: frozenset[str] = frozenset()
    """Origins whose texts are messages of programs."""

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Those of the languages whose function words are not known: neither side can be judged by them."""
        return tuple(language for language in (self.source, self.target) if language not in _FUNCTION_WORDS)


@dataclass(frozen=True)
class Rule:
    """A named test of a pair."""

    name: str
    why: str
    """What a dropped pair had wrong, for the report."""
    keeps: Callable[[Pair, RuleContext], bool]


def not_fuzzy(pair: Pair, _context: RuleContext) -> bool:
    """The translation is not marked as a guess."""
    return not pair.fuzzy


def not_empty(pair: Pair, _context: RuleContext) -> bool:
    """Both sides hold something."""
    return bool(pair.source.strip()) and bool(pair.target.strip())


def no_layout(pair: Pair, _context: RuleContext) -> bool:
    """No side is a table or drawing held together by spaces, tabs or rulers."""
    return not (_LAYOUT.search(pair.source.strip()) or _LAYOUT.search(pair.target.strip()))


def no_replacement_characters(pair: Pair, _context: RuleContext) -> bool:
    """No side holds U+FFFD, the trace of a wrong decoding, or text of UTF-8 read as Latin-1."""
    text = pair.source + pair.target
    return "\ufffd" not in text and not re.search(r"Ã[\u0080-\u00bf]", text)


def enough_letters(pair: Pair, context: RuleContext) -> bool:
    """Each side has letters, and is mostly letters and spaces."""
    limits = context.limits
    for text in (pair.source, pair.target):
        letters = len(_LETTER.findall(text))
        if letters < limits.min_letters or letters + text.count(" ") < limits.min_letter_share * len(text):
            return False
    return True


def not_too_long(pair: Pair, context: RuleContext) -> bool:
    """Neither side is longer than `max_chars`."""
    return max(len(pair.source), len(pair.target)) <= context.limits.max_chars


def balanced_length(pair: Pair, context: RuleContext) -> bool:
    """The sides' lengths are alike: (long + slack) / (short + slack) <= max_ratio."""
    lengths = sorted(len(text) + context.limits.ratio_slack for text in (pair.source, pair.target))
    return lengths[1] <= context.limits.max_ratio * lengths[0]


def same_placeholders(pair: Pair, context: RuleContext) -> bool:
    """Both sides hold the same placeholders, each equally often; `$5` is one in the messages of programs only."""
    patterns = (PLACEHOLDER, POSITIONAL) if pair.origin in context.messages else (PLACEHOLDER,)
    return all(_found(pattern, pair.source) == _found(pattern, pair.target) for pattern in patterns)


def same_tags(pair: Pair, _context: RuleContext) -> bool:
    """Both sides hold the same markup tags and entities, each equally often."""
    return _found(TAG, pair.source) == _found(TAG, pair.target)


def same_addresses(pair: Pair, _context: RuleContext) -> bool:
    """Both sides hold the same URLs and mail addresses."""
    return _found(ADDRESS, pair.source) == _found(ADDRESS, pair.target)


def _found(pattern: re.Pattern[str], text: str) -> list[str]:
    """A multiset of what `pattern` finds: sorted, without the punctuation behind it."""
    return sorted(found.rstrip(".,;:!?") for found in pattern.findall(text))


def translated(pair: Pair, context: RuleContext) -> bool:
    """The target is no copy of its source, unless it is short enough to be a name."""
    source = words(pair.source)
    return len(source) <= context.limits.max_copy_words or source != words(pair.target)


def not_half_translated(pair: Pair, context: RuleContext) -> bool:
    """No target has most of its words from the source, some of them words that its language does not have.

    Holds of every pair if a language has no list of function words.
    """
    if context.unlisted:
        return True
    source, target = words(pair.source), words(pair.target)
    foreign = _function_words(pair.target, context.source)
    if len(target) < _HALF_WORDS or foreign <= _function_words(pair.target, context.target):
        return True
    shared = sum((Counter(source) & Counter(target)).values())
    return shared < _HALF_SHARE * len(target)


def no_identifier(pair: Pair, _context: RuleContext) -> bool:
    """The source is language, not the name under which a program keeps its message, such as `job-state.held`."""
    return pair.source == pair.target or not _IDENTIFIER.fullmatch(pair.source)


def right_script(pair: Pair, context: RuleContext) -> bool:
    """A side in a language of the Latin script has at most a tenth of its letters from others."""
    for text, language in ((pair.source, context.source), (pair.target, context.target)):
        if text.isascii() or language not in _LANGUAGES_IN_LATIN:
            continue
        if len(_FOREIGN_LETTER.findall(text)) > 0.1 * len(_LETTER.findall(text)):
            return False
    return True


def right_language(pair: Pair, context: RuleContext) -> bool:
    """Neither side has more function words of the other's language than of its own, if it has two different ones.

    Holds of every pair if a language has no list of function words: a text without words known to be its own would be
    judged by those alone that it happens to share, such as the Dutch `is` and `of`.
    """
    if context.unlisted:
        return True
    sides = ((pair.source, context.source, context.target), (pair.target, context.target, context.source))
    for text, own, other in sides:
        theirs = _function_words(text, other)
        if theirs >= 2 and theirs > _function_words(text, own):
            return False
    return True


def _function_words(text: str, language: str) -> int:
    return len(_FUNCTION_WORDS[language].intersection(words(text)))


RULES: tuple[Rule, ...] = (
    Rule("fuzzy", "the catalogue marks the translation as a guess", not_fuzzy),
    Rule("empty", "one side is empty", not_empty),
    Rule("garbled", "characters were lost by a wrong decoding", no_replacement_characters),
    Rule("few-letters", "too few letters, or mostly something else", enough_letters),
    Rule("too-long", "one side is too long", not_too_long),
    Rule("length-ratio", "one side is much longer than the other", balanced_length),
    Rule("placeholders", "the sides hold different placeholders", same_placeholders),
    Rule("tags", "the sides hold different markup", same_tags),
    Rule("addresses", "the sides hold different URLs or mail addresses", same_addresses),
    Rule("untranslated", "the target is a copy of its source", translated),
    Rule("half-translated", "most words of the target are those of the source", not_half_translated),
    Rule("identifier", "the source is the name of a message, not the message", no_identifier),
    Rule("script", "letters of another script", right_script),
    Rule("language", "the text looks like the other language", right_language),
)
"""In the order they are asked: the cheap ones first."""

LAYOUT_RULE = Rule("layout", "a table or drawing made of characters", no_layout)
"""Asked before repairs join the lines, which would hide what it looks for."""


def choose_rules(drop: Iterable[str]) -> tuple[Rule, ...]:
    """All rules but those named in `drop`, the layout rule first. An unknown name is a `CorpusError`."""
    unwanted, known = set(drop), [LAYOUT_RULE, *RULES]
    if unknown := sorted(unwanted - {rule.name for rule in known}):
        raise CorpusError(f"cleaning.drop must name rules, but {', '.join(unknown)} is none. Rules: {_names(known)}.")
    return tuple(rule for rule in known if rule.name not in unwanted)


def idle_rules(rules: Iterable[Rule], context: RuleContext) -> list[str]:
    """What a report should say of rules that keep every pair because they do not know its languages."""
    idle = [rule for rule in rules if rule.keeps in (not_half_translated, right_language)]
    if not idle or not context.unlisted:
        return []
    return [f"every pair passed {_names(idle)}, for no function words of {' and '.join(context.unlisted)} are known."]


def _names(rules: Iterable[Rule]) -> str:
    return ", ".join(rule.name for rule in rules)
