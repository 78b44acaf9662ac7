"""Real English for tests: 200 texts of every kind, and as many sentences as are wanted."""

from __future__ import annotations

import json
import pydoc_data.topics
import re
from functools import cache
from pathlib import Path

_MARKUP = re.compile(r"[*`|<>{}\[\]_=\\]|::|\.\.\.")


@cache
def texts() -> tuple[str, ...]:
    """A full stop, a word, a page; lines, lists and blank lines; many scripts, emoji, markup, loops: all different."""
    return tuple(json.loads(Path(__file__).with_name("texts.json").read_text(encoding="utf-8")))


@cache
def sentences(count: int) -> tuple[str, ...]:
    """`count` different sentences of 2 to 60 words: the texts' that are one, and then those of the language reference
    that every Python carries."""
    found = dict.fromkeys(text for text in texts() if re.fullmatch(r"[A-Z][^\n]*[.?!]", text))
    for page in pydoc_data.topics.topics.values():
        for paragraph in page.split("\n\n"):
            joined = " ".join(paragraph.split())
            if not _MARKUP.search(joined):
                found |= dict.fromkeys(re.findall(r"(?:(?<=\. )|^)[A-Z][^.]*\.(?= [A-Z]|$)", joined))
    chosen = [sentence for sentence in found if 2 <= len(sentence.split()) <= 60]
    assert len(chosen) >= count
    return tuple(chosen[:count])
