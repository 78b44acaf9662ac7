"""Pages of documentation in two languages: paired by their paths, aligned where their structure agrees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from training.corpus.files import open_binary, reading
from training.corpus.manpages import man_blocks
from training.corpus.markup import HOLE, Block, declared_entities, markup_blocks
from training.corpus.pair import Pair

_MARKUP = (".html", ".htm", ".xhtml", ".page", ".docbook", ".xml")
_MANUAL = re.compile(r"/man\d\w*/[^/]+\.\d\w*(?:\.gz)?$")
_LANGUAGE = re.compile(r"[a-z]{2}(?:[_-][A-Z]{2})?(?:@\w+)?")
_ODD_RATIO, _ODD_SLACK = 2.2, 20
"""Two blocks are no likely pair when one, with some characters added to both, is so many times the other."""
_ODD_SHARE = 0.1
"""A section with more unlikely pairs than this is out of step."""
_NUMBER = re.compile(r"\d+")
_SECTION_NUMBER = re.compile(r"(?:(?:\d+\.)+\d*|[A-Z](?:\.\d+)+\.?|\[\d+\]) +(?=\S)")


def tags(language: str) -> frozenset[str]:
    """How a path names `language`: `de`, `de-DE`, `de_DE`. English is also `C`, the locale of the original."""
    region = "US" if language == "en" else language.upper()
    found = {language, f"{language}-{region}", f"{language}_{region}"}
    return frozenset(found | {"C"} if language == "en" else found)


def is_page(path: str, languages: tuple[str, str]) -> bool:
    """Whether `path` may be a page in one of the two languages, to judge by its name."""
    if not (path.endswith(_MARKUP) or _MANUAL.search("/" + path)):
        return False
    segments = PurePosixPath(path).parts[:-1]
    ours = tags(languages[0]) | tags(languages[1])
    if any(segment in ours for segment in segments):
        return True
    infix = PurePosixPath(path).stem.rpartition(".")[2]
    named = [segment for segment in (*segments, infix) if _LANGUAGE.fullmatch(segment)]
    return all(name in ours for name in named)


def is_entities(path: str) -> bool:
    """Whether `path` declares the entities of KDE's handbooks."""
    return path.endswith(".entities") and "/kdoctools/customization/" in path


def pair_pages(folders: Sequence[Path], languages: tuple[str, str]) -> list[tuple[Path, Path]]:
    """Pages of equal path in all `folders` together, once the marks of their language are taken out of it."""
    sides: tuple[dict[str, Path], dict[str, Path]] = ({}, {})
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            inside = path.relative_to(folder).as_posix()
            if not is_page(inside, languages):
                continue
            translated = _without_marks(inside, languages[1])
            side = sides[translated != inside]
            side.setdefault(translated if translated != inside else _without_marks(inside, languages[0]), path)
    return [(path, sides[1][name]) for name, path in sorted(sides[0].items()) if name in sides[1]]


def _without_marks(path: str, language: str) -> str:
    """`path` without the folders, endings and infixes that name `language`."""
    known = tags(language)
    *folders, name = PurePosixPath(path).parts
    kept = [folder.removesuffix(f"-{language}") for folder in folders if folder not in known]
    stem, dot, suffix = name.partition(".")
    parts = [part for part in suffix.split(".") if part not in known]
    return "/".join([*kept, stem + dot + ".".join(parts)])


def read_entities(folders: Iterable[Path], language: str) -> dict[str, str]:
    """The entities that KDE's handbooks in `language` may use, if a package in `folders` declares them."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.entities")):
            if path.parent.name == "entities" and path.parent.parent.name in ("customization",):
                found |= declared_entities(path.read_text(encoding="utf-8", errors="replace"))
        for path in sorted(folder.rglob(f"customization/{language}/*.entities")):
            found |= declared_entities(path.read_text(encoding="utf-8", errors="replace"))
    return found


def read_blocks(path: Path, entities: Mapping[str, str]) -> list[Block]:
    """The blocks of one page; compressed ones are unpacked. Bytes that are no UTF-8 become U+FFFD."""
    with reading(path, "a page"), open_binary(path) as file:
        page = file.read().decode("utf-8", errors="replace")
    return markup_blocks(page, entities) if path.name.endswith(_MARKUP) else man_blocks(page)


def align(sources: Sequence[Block], targets: Sequence[Block]) -> Iterator[tuple[str, str]]:
    """Texts of blocks that answer each other.

    Both pages are cut into sections at their headings; pages whose headings differ give nothing, except that one may
    go on longer (German manual pages end with their translators). A section counts when both sides have the same
    kinds of block in the same order, and nearly all of the pairs are alike in length and numbers. Blocks with a hole
    are left out, and so are those that are equal: nobody translated them, or nobody needs to.
    """
    ours, theirs = _sections(sources), _sections(targets)
    if any(left[0].kind != right[0].kind for left, right in zip(ours, theirs, strict=False)):
        return
    for left, right in zip(ours, theirs, strict=False):
        if [block.kind for block in left] != [block.kind for block in right]:
            continue
        pairs = list(zip(left, right, strict=True))
        odd = [not _alike(a.text, b.text) for a, b in pairs]
        if sum(odd) > max(1, _ODD_SHARE * len(pairs)):
            continue
        for (a, b), strange in zip(pairs, odd, strict=True):
            if a.kept and not strange and a.text != b.text and HOLE not in a.text + b.text:
                yield _without_number(a.text, b.text)


def _without_number(source: str, target: str) -> tuple[str, str]:
    """Both texts without the number of their section or footnote, if it is the same."""
    numbers = [_SECTION_NUMBER.match(text) for text in (source, target)]
    if all(numbers) and len({number[0] for number in numbers if number}) == 1:
        end = numbers[0].end() if numbers[0] else 0
        return source[end:], target[end:]
    return source, target


def _sections(blocks: Sequence[Block]) -> list[list[Block]]:
    """`blocks` cut before each heading; never an empty section."""
    sections: list[list[Block]] = []
    for block in blocks:
        if block.heading or not sections:
            sections.append([])
        sections[-1].append(block)
    return sections


def _alike(source: str, target: str) -> bool:
    long, short = sorted((len(source) + _ODD_SLACK, len(target) + _ODD_SLACK), reverse=True)
    if long > _ODD_RATIO * short:
        return False
    ours, theirs = set(_NUMBER.findall(source)), set(_NUMBER.findall(target))
    return not (ours or theirs) or bool(ours & theirs) or len(ours ^ theirs) < 2


def read_pages(source: Path, target: Path, where: tuple[str, str], entities: Sequence[Mapping[str, str]]) -> list[Pair]:
    """The pairs of two pages. `where` is their origin and part; `entities` are those of the source and the target."""
    left, right = read_blocks(source, entities[0]), read_blocks(target, entities[1])
    return [Pair(ours, theirs, *where) for ours, theirs in align(left, right)]
