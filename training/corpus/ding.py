"""The dictionary of Ding (TU Chemnitz): German and English entries, with forms, phrases and example sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from training.corpus.errors import CorpusError
from training.corpus.files import read_lines
from training.corpus.pair import Pair

Select = Literal["all", "sentences", "phrases", "terms"]

_NOTES = re.compile(r"\{[^{}]*\}|\[[^\[\]]*\]|<[^<>]*>|\([^()]*\)|(?<!\S)/[^/\s][^/]*/(?!\S)")
"""Grammar {m}, subject [comp.], other spellings <…>, explanations (…), abbreviations /…/."""
_SPECIES = re.compile(r"\[(?:zool|ornith|bot|entomol|ichth|min|myc|geol|chem|pharm|geogr|anat)\.?\]")
_VERB = re.compile(r"\{v[a-z]\b")
_SHORT = {
    "jdm.": "jemandem", "jdn.": "jemanden", "jds.": "jemandes", "jd.": "jemand", "etw.": "etwas", "sb.": "somebody",
    "sth.": "something", "sb.'s": "somebody's", "sth.'s": "something's", "o.s.": "oneself",
}  # fmt: skip
_SHORTENED = re.compile("|".join(rf"(?<![\w.]){re.escape(short)}(?!\w)" for short in sorted(_SHORT, key=len)[::-1]))
_CHOICE = re.compile(r"(?<=\w)/\w[\w’'.]*(?:/\w[\w’'.]*)*")
_SPACED = re.compile(r" ([,.!?:])(?= |$)")
_LEFT_OVER = re.compile(r"[{}\[\]<>()|;/~=…]|\.\.\.|:: ")
_SENTENCE = re.compile(r"[„“\"'‚‘]?[A-ZÄÖÜ].*[.!?][”“\"'‘’]?")


def is_dictionary(path: str) -> bool:
    """Whether `path` is the dictionary as its package installs it, or a file of Ding itself."""
    return path.endswith(("share/trans/de-en", "de-en.txt", "de-en.txt.xz"))


def find_dictionaries(folder: Path) -> list[Path]:
    """The dictionaries below `folder`, at least one: none is a `CorpusError`."""
    found = sorted(path for path in folder.rglob("*") if is_dictionary(path.as_posix()))
    if not found:
        raise CorpusError(f"{folder} must hold a Ding dictionary (de-en.txt), but holds none.")
    return found


def read_ding(path: Path, where: tuple[str, str], languages: tuple[str, str], select: Select) -> Iterator[Pair]:
    """Pairs of one dictionary file, German `::` English; `where` is their origin and part.

    What stands between bars is paired place by place where both sides have equally many; of alternatives (`;`, `/`)
    the first counts. Notes in brackets are left out, and so are forms of the word before (plurals, tenses) and entries
    that name a species or a substance.
    Raises `CorpusError` for languages that the dictionary does not have.
    """
    if set(languages) != {"de", "en"}:
        raise CorpusError(f"the Ding dictionary has de and en, but the recipe asks for {' and '.join(languages)}.")
    for line in read_lines(path):
        german, separator, english = line.partition(" :: ")
        if line.startswith("#") or not separator:
            continue
        ours, theirs = german.split(" | "), english.split(" | ")
        if len(ours) != len(theirs) or _SPECIES.search(line):
            continue
        verb = bool(_VERB.search(ours[0]))
        for place, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            de, en = clean_entry(left), clean_entry(right)
            kind = kind_of(de, en) if de and en else ""
            if kind and select in ("all", kind) and not _is_form(kind, en, place, verb=verb):
                source, target = (en, de) if languages == ("en", "de") else (de, en)
                yield Pair(source, target, *where)


def clean_entry(text: str) -> str:
    """One entry as plain language; empty if something in it is not understood."""
    # The dictionary sets its apostrophes; people type them.
    text = _NOTES.sub(" ", _NOTES.sub(" ", text)).partition(";")[0].replace("’", "'")
    text = _SHORTENED.sub(lambda match: _SHORT[match[0]], text)
    text = _SPACED.sub(r"\1", " ".join(_CHOICE.sub("", text).split()))
    return "" if _LEFT_OVER.search(text) else text


def _is_form(kind: str, english: str, place: int, *, verb: bool) -> bool:
    """Whether an entry is but another form of the first one, such as its plural or past tense."""
    if place == 0 or kind == "sentences":
        return False
    return kind == "terms" or (verb and not english.startswith("to "))


def kind_of(german: str, english: str) -> str:
    """`sentences`, `phrases` (of at least three words on one side) or `terms`."""
    if all(_SENTENCE.fullmatch(text) and len(text.split()) > 2 for text in (german, english)):
        return "sentences"
    # "to" before a verb and an article before a noun are not what makes a phrase.
    words = max(len(german.split()), len(english.removeprefix("to ").split()))
    return "phrases" if words > 2 else "terms"
