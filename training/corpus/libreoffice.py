"""The LibreOffice help: pages of the same relative path, paragraphs of the same id."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

from training.corpus.pair import Pair

_PAGES = "usr/share/libreoffice/help"
_VOID = frozenset({"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"})


def is_help_page(path: str) -> bool:
    """Whether `path` within a package is a page of the help's text."""
    where = PurePosixPath(path)
    return path.startswith(f"{_PAGES}/") and where.suffix == ".html" and "text" in where.parts


class _Paragraphs(HTMLParser):
    """Collects the text of every element whose id begins with `par_` or `hd_`."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: dict[str, str] = {}
        self._open: list[tuple[str, bool]] = []
        self._id = ""
        self._depth = 0
        self._hidden = 0
        self._pieces: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Enter an element; one with a paragraph's id starts a text, unless a text is already open."""
        if tag in _VOID:
            self._pieces.append(" ")
            return
        given = dict(attrs)
        element_id = given.get("id") or ""
        # Variants for one system or module lie hidden beside the default; a reader sees only one of them.
        hides = "hidden" in given and not element_id.startswith("default")
        self._hidden += hides
        self._open.append((tag, hides))
        if not self._id and element_id.startswith(("par_", "hd_")):
            self._id, self._depth, self._pieces = element_id, len(self._open), []

    def handle_endtag(self, tag: str) -> None:
        """Leave an element; elements left open inside it end too."""
        if not any(name == tag for name, _ in self._open):
            return
        while True:
            name, hides = self._open.pop()
            self._hidden -= hides
            if self._id and len(self._open) < self._depth:
                self.texts.setdefault(self._id, " ".join("".join(self._pieces).split()))
                self._id = ""
            if name == tag:
                return

    def handle_data(self, data: str) -> None:
        """Keep what a reader sees."""
        if self._id and not self._hidden:
            self._pieces.append(data)


def read_paragraphs(page: str) -> dict[str, str]:
    """Paragraph id → text of one help page, markup removed. The first of several with one id counts."""
    parser = _Paragraphs()
    parser.feed(page)
    parser.close()
    return parser.texts


def find_help(folder: Path, language: str) -> Path | None:
    """The folder of the pages in `language` (`en` also finds `en-US`) below `folder`."""
    root = folder / _PAGES
    found = sorted(p for p in root.glob("*") if p.is_dir() and p.name.split("-")[0] == language)
    return found[0] if found else None


def paired_pages(sources: Path, targets: Path) -> list[tuple[Path, Path]]:
    """The pages that are in both folders, in the order of their names."""
    pages = sorted(page.relative_to(sources) for page in sources.rglob("*.html"))
    return [(sources / page, targets / page) for page in pages if (targets / page).is_file()]


def read_page(source: Path, target: Path, origin: str, part: str) -> Iterator[Pair]:
    """Pairs of the paragraphs that are on both pages, in the order of the source page."""
    theirs = read_paragraphs(target.read_text(encoding="utf-8", errors="replace"))
    for key, text in read_paragraphs(source.read_text(encoding="utf-8", errors="replace")).items():
        if key in theirs:
            yield Pair(text, theirs[key], origin, part)
