"""Language codes: one spelling for each language, and which pairs there are.

A code is a BCP 47 tag. Letter case does not matter, `_` counts as `-`, and a tag that is not supported as it stands
falls back to a shorter one: `EN`, `en-US` and `en_GB` all mean `en` where only `en` is there. `resolve_pair` is the
documented rule; answers always carry the code that was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.errors import UnsupportedLanguage, UnsupportedPair

_TAG = re.compile(r"[a-z]{2,8}(-[a-z0-9]{1,8})*")
_SHOWN = 20


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """A direction of translation."""

    source: str
    target: str


def canonical(code: str) -> str:
    """`code` in lower case, with `-` between its parts; not yet checked."""
    return code.strip().lower().replace("_", "-")


def resolve(code: str, supported: Iterable[str], field: str) -> str:
    """The longest prefix of `code` that is supported. Raises `UnsupportedLanguage`, which lists what there is."""
    known = sorted(set(supported))
    spelling = {canonical(name): name for name in known}
    tag = canonical(code)
    if _TAG.fullmatch(tag):
        parts = tag.split("-")
        for length in range(len(parts), 0, -1):
            if (prefix := "-".join(parts[:length])) in spelling:
                return spelling[prefix]
    raise UnsupportedLanguage(
        f"{field} must be one of {', '.join(known)}, but is {_quoted(code)}.", field, {"supported": known}
    )


def resolve_pair(source: str, target: str, pairs: Sequence[Pair]) -> Pair:
    """The supported pair that is meant. Raises `UnsupportedLanguage` or `UnsupportedPair`."""
    pair = Pair(
        resolve(source, (p.source for p in pairs), "source"), resolve(target, (p.target for p in pairs), "target")
    )
    if pair in pairs:
        return pair
    targets = sorted(p.target for p in pairs if p.source == pair.source)
    raise UnsupportedPair(
        f"target must be one of {', '.join(targets)} when source is {pair.source}, but is {pair.target}.",
        "target",
        {"supported": [{"source": p.source, "target": p.target} for p in sorted(pairs)]},
    )


def _quoted(code: str) -> str:
    return repr(code if len(code) <= _SHOWN else code[:_SHOWN] + "…")
