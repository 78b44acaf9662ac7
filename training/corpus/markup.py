"""HTML, DocBook and Mallard pages as blocks of text: what a reader sees as a paragraph, title, list item or cell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser

HOLE = "\ufffc"
"""Stands where a page shows what is no text: an image, the title of another page, an entity nobody explains."""

_INLINE_NAMES = """
a abbr acronym b big bdi bdo cite code del dfn em font i img ins kbd mark q s samp small span strike strong sub sup
tt u var wbr br
action anchor application classname citetitle citerefentry command computeroutput constant database email emphasis
envar errorname exceptionname filename firstterm foreignphrase function glossterm guibutton guiicon guilabel
guimenu guimenuitem guisubmenu hardware inlinemediaobject interface interfacename keycap keycode keycombo keysym
link literal abbrev accel orgname markup medialabel menuchoice methodname mousebutton option optional parameter
phrase productname prompt property quote refentrytitle manvolnum replaceable returnvalue sgmltag shortcut structfield
structname subscript superscript symbol systemitem token trademark type ulink uri userinput varname wordasword xref
app cmd file gui guiseq input key keyseq output sys
"""
_INLINE = frozenset(_INLINE_NAMES.split())
"""Elements within a line of text."""
_SKIPPED_NAMES = """
head pre script style math svg textarea object nav footer
screen programlisting literallayout synopsis cmdsynopsis funcsynopsis indexterm remark shortcut authorgroup author
othercredit copyright legalnotice keywordset revhistory releaseinfo date pubdate edition mediaobject graphic
screenshot imageobject textobject credit license years rules media comment firstname surname othername honorific
lineage affiliation address
"""
_SKIPPED = frozenset(_SKIPPED_NAMES.split())
"""Elements whose content is no language, or that name people."""
_VOID = frozenset({"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"})
_HEADINGS = frozenset({"title", "h1", "h2", "h3", "h4", "h5", "h6", "bridgehead", "subtitle"})
_SEQUENCES = {"menuchoice": " → ", "guiseq": " → ", "keycombo": "+", "keyseq": "+"}
"""Elements whose children follow each other in a way that the style sheet draws."""
_PICTURES = frozenset({"img", "xref", "inlinemediaobject"})
_ENTITY = re.compile(r"&([A-Za-z][\w.-]*);")
_DECLARED = re.compile(r"<!ENTITY\s+([A-Za-z][\w.-]*)\s+(?:\"([^\"]*)\"|'([^']*)')\s*>")
_DOCTYPE = re.compile(r"<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>", re.DOTALL)
_PREDEFINED = frozenset({"amp", "lt", "gt", "quot", "apos"})
_DEPTH = 8
"""Entities within entities are followed so far; a deeper nest, or a ring, stays unexplained."""


@dataclass(frozen=True)
class Block:
    """One block of a page, in the order of the page."""

    kind: str
    """What separates it from its neighbours, such as the name of the element."""
    text: str
    """White space joined. May hold `HOLE`s."""
    heading: bool = False
    """Whether it starts a section."""
    kept: bool = True
    """Whether it is language: an option's name beside its description counts for the structure only."""


def declared_entities(text: str) -> dict[str, str]:
    """Name → replacement of the entities that a DTD or the head of a page declares."""
    return {name: double or single for name, double, single in _DECLARED.findall(text)}


def markup_blocks(page: str, entities: Mapping[str, str] | None = None) -> list[Block]:
    """The blocks of a page in HTML or XML. Unclosed and unknown elements are taken as they come, never an error."""
    known = {**(entities or {}), **declared_entities(page)}
    page = _DOCTYPE.sub("", page, count=1)
    parser = _Blocks(xml=page.lstrip()[:5] == "<?xml" and "<html" not in page[:2000])
    parser.feed(_explained(page, known))
    parser.close()
    return parser.blocks()


def _explained(page: str, known: Mapping[str, str]) -> str:
    """`page` with the entities that XML and HTML do not have replaced, as far as they are `known`."""

    def replacement(match: re.Match[str]) -> str:
        return match[0] if match[1] in _PREDEFINED else known.get(match[1], match[0])

    for _ in range(_DEPTH):
        before, page = page, _ENTITY.sub(replacement, page)
        if page == before:
            break
    return page


class _Blocks(HTMLParser):
    """Gathers text for the innermost open block; inner blocks interrupt an outer one without cutting it."""

    def __init__(self, *, xml: bool) -> None:
        super().__init__(convert_charrefs=True)
        self._void = frozenset[str]() if xml else _VOID
        self._found: list[tuple[str, list[str]]] = [("", [])]
        self._open: list[str] = []
        self._blocks = [0]
        """Numbers in `_found` of the open blocks."""
        self._skipping = 0
        self._children: list[int] = [0]
        """Of every open element: how many children it has had."""

    def blocks(self) -> list[Block]:
        """What was gathered, without the empty ones."""
        texts = ((kind, _ENTITY.sub(HOLE, " ".join("".join(pieces).split()))) for kind, pieces in self._found)
        return [Block(kind, text, kind in _HEADINGS) for kind, text in texts if text]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Enter an element."""
        name = tag.rpartition(":")[2]
        if not self._skipping:
            self._separate(name)
        if name in self._void:
            self._add(HOLE if name == "img" else " ")
            return
        self._children[-1] += name not in _SKIPPED
        self._children.append(0)
        self._open.append(name)
        self._skipping += name in _SKIPPED
        if name not in _INLINE and not self._skipping:
            self._blocks.append(len(self._found))
            self._found.append((name, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content: a reference shows a title that is not here."""
        name = tag.rpartition(":")[2]
        if name in _PICTURES or name == "link":
            self._add(HOLE)
        elif name not in _INLINE or name == "br":
            self._add(" ")

    def handle_endtag(self, tag: str) -> None:
        """Leave an element; elements left open inside it end too."""
        name = tag.rpartition(":")[2]
        if name not in self._open:
            return
        while True:
            left = self._open.pop()
            self._children.pop()
            if left not in _INLINE and not self._skipping:
                self._blocks.pop()
            self._skipping -= left in _SKIPPED
            if left == "inlinemediaobject":
                self._add(HOLE)
            if left == name:
                return

    def handle_data(self, data: str) -> None:
        """Keep what a reader sees."""
        if self._open and self._open[-1] in _SEQUENCES and not data.strip():
            return
        self._add(data)

    def _separate(self, name: str) -> None:
        """What stands between two menus or two keys."""
        parent = self._open[-1] if self._open else ""
        if parent in _SEQUENCES and name not in _SKIPPED and self._children[-1]:
            self._add(_SEQUENCES[parent])

    def _add(self, text: str) -> None:
        if not self._skipping:
            self._found[self._blocks[-1]][1].append(text)
