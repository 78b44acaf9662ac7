"""Translation memories (TMX 1.4): read as a stream, so that their size does not matter."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from xml.parsers.expat import ExpatError, ParserCreate

from training.corpus.errors import CorpusError
from training.corpus.files import open_binary, reading
from training.corpus.pair import Pair

_CHUNK = 1 << 16
_CODES = frozenset({"bpt", "ept", "it", "ph", "ut", "sub"})
"""Elements within a segment that hold the codes of another format, not language."""
_LANG = ("http://www.w3.org/XML/1998/namespace lang", "lang")


def read_tmx(path: Path, origin: str, languages: tuple[str, str]) -> Iterator[Pair]:
    """Pairs of the translation units that have a segment in both languages; `en` also takes `EN-US`.

    A unit with several translations gives a pair for each. Raises `CorpusError` for a file that is no XML, that
    declares entities (they may swell without bound, or name other files), or that has no unit in both languages.
    """
    reader = _Reader(languages)
    found = False
    with reading(path, "a translation memory (TMX)", ExpatError), open_binary(path) as file:
        while chunk := file.read(_CHUNK):
            reader.feed(chunk)
            while reader.units:
                found = True
                yield Pair(*reader.units.popleft(), origin, path.name)
        reader.close()
    if not found:
        seen = ", ".join(f"{language} ({count})" for language, count in sorted(reader.languages.items())) or "none"
        raise CorpusError(
            f"{path} must hold units in {languages[0]} and {languages[1]}, but none has both. Its languages: {seen}."
        )


class _Reader:
    """Gathers the segments of one unit at a time."""

    def __init__(self, languages: tuple[str, str]) -> None:
        self.units: deque[tuple[str, str]] = deque()
        self.languages: Counter[str] = Counter()
        self._wanted = languages
        self._segments: list[tuple[str, str]] = []
        self._language = ""
        self._text: list[str] | None = None
        self._codes = 0
        self._parser = parser = ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._data
        parser.EntityDeclHandler = self._entity

    def feed(self, chunk: bytes) -> None:
        """Parse some more."""
        self._parser.Parse(chunk, False)

    def close(self) -> None:
        """Parse the end: raises what is wrong with a file that stops too early."""
        self._parser.Parse(b"", True)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(" ")[2]
        if name == "tu":
            self._segments = []
        elif name == "tuv":
            self._language = next((attributes[key] for key in _LANG if key in attributes), "")
            self.languages[self._language] += 1
        elif name == "seg":
            self._text, self._codes = [], 0
        elif name in _CODES:
            self._codes += 1

    def _end(self, name: str) -> None:
        name = name.rpartition(" ")[2]
        if name == "seg" and self._text is not None:
            self._segments.append((self._language, "".join(self._text)))
            self._text = None
        elif name in _CODES:
            self._codes -= 1
        elif name == "tu":
            sources, targets = ([text for tag, text in self._segments if _is(tag, want)] for want in self._wanted)
            self.units.extend((sources[0], target) for target in targets if sources)

    def _data(self, data: str) -> None:
        if self._text is not None and not self._codes:
            self._text.append(data)

    def _entity(self, name: str, *_declaration: object) -> NoReturn:
        raise CorpusError(f"a translation memory must declare no entities, but this one declares {name!r}.")


def _is(tag: str, language: str) -> bool:
    """Whether the language tag `tag` (`en`, `EN-US`, `en_GB`) means `language`."""
    return tag.lower().replace("_", "-").split("-")[0] == language.lower()
