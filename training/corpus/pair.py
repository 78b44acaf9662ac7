"""One translation pair on its way through the corpus builder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """A source text, its translation, and where they come from."""

    source: str
    target: str
    origin: str = ""
    """Name of the recipe's source, such as `catalogues`."""
    part: str = ""
    """Package or file within that source; one entry in the table of licences."""
    fuzzy: bool = False
    """A catalogue marks the translation as a guess that nobody has confirmed."""
