"""Manual pages (troff with the man macros) as blocks of text."""

from __future__ import annotations

import re
import shlex

from training.corpus.markup import HOLE, Block

_PARAGRAPHS = frozenset({"PP", "P", "LP", "IP", "TP", "TQ", "HP", "SH", "SS", "RS", "RE"})
_FONTS = frozenset({"B", "I", "SM", "SB"})
_ALTERNATING = frozenset({"BR", "RB", "IR", "RI", "BI", "IB"})
_VERBATIM = {"nf": "fi", "EX": "EE", "TS": "TE", "de": ".", "ig": ".", "SY": "YS", "if": "", "ie": "", "el": ""}
_CHARACTERS = {
    "aq": "'", "dq": '"', "bu": "•", "co": "©", "em": "—", "en": "–", "lq": "“", "rq": "”", "Bq": "„", "Fo": "«",
    "Fc": "»", "oq": "‘", "cq": "’", "bq": "‚", "ha": "^", "ti": "~", "rs": "\\", "ga": "`", "->": "→", "<-": "←",
    "+-": "±", "mu": "×", ">=": "≥", "<=": "≤", "ss": "ß", ":a": "ä", ":o": "ö", ":u": "ü", ":A": "Ä", ":O": "Ö",
    ":U": "Ü", "'e": "é", "hy": "-", "sl": "/", "at": "@", "sh": "#", "bv": "|", "ba": "|", "de": "°", "rg": "®",
    "tm": "™", "lB": "[", "rB": "]", "lC": "{", "rC": "}", "Do": "$", "Eu": "€", "eu": "€", "sc": "§", "mi": "−",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:f(?:\[[^\]]*\]|\(..|.)|s[+-]?\d+|\((?P<two>..)|\[(?P<long>[^\]]*)\]|\*(?:\(..|\[[^\]]*\]|.)|(?P<one>.))"
)
_ONE = {"-": "-", "e": "\\", "~": " ", "0": " ", " ": " ", "'": "'", "`": "`", ".": ".", "\\": "\\", "t": " "}
_SILENT = frozenset("&%/,:|^cd)")


def man_blocks(page: str) -> list[Block]:
    """The blocks of a page in the man macros; none for one in others, such as mdoc."""
    if not re.search(r"^\.TH\b", page, re.MULTILINE):
        return []
    reader = _ManReader()
    for line in page.replace("\\\n", "").split("\n"):
        reader.read(line)
    reader.flush()
    return reader.blocks


def unescape(text: str) -> str:
    """`text` without troff's escapes: fonts go, characters become themselves, what is unknown becomes a `HOLE`."""

    def character(match: re.Match[str]) -> str:
        whole = match[0]
        if whole[1] in "fs":
            return ""
        if whole[1] == "*":
            return HOLE
        if (name := match["two"] or match["long"]) is not None:
            if re.fullmatch(r"u[0-9A-F]{4,6}", name):
                return chr(int(name[1:], 16))
            return _CHARACTERS.get(name, HOLE)
        return "" if match["one"] in _SILENT else _ONE.get(match["one"], HOLE)

    return _ESCAPE.sub(character, text)


class _ManReader:
    """Reads a page line by line."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._kind = "start"
        self._lines: list[str] = []
        self._until = ""
        """The macro that ends what is skipped."""
        self._tag_next = False
        """The next line is the tag of a list, not its text."""

    def read(self, line: str) -> None:
        """Take one line."""
        macro, arguments = _macro(line)
        if self._until:
            self._until = "" if macro == self._until else self._until
        elif macro is None:
            self._text(unescape(line))
        elif macro in _VERBATIM:
            self._until = _VERBATIM[macro]
            self.flush()
            self._kind = "after " + macro
        elif macro in _PARAGRAPHS:
            self._start(macro, arguments)
        elif macro in _FONTS or macro in _ALTERNATING:
            parts = [unescape(part) for part in arguments]
            self._text((" " if macro in _FONTS else "").join(parts))
        elif macro in ("UR", "MT"):
            self._text(" ".join(map(unescape, arguments)))
        elif macro in ("UE", "ME"):
            self._lines[-1:] = [self._lines[-1] + "".join(map(unescape, arguments))] if self._lines else []
        elif macro in ("br", "sp"):
            self.flush()
            self._kind = macro

    def flush(self) -> None:
        """End the block that is being read."""
        text = " ".join(" ".join(self._lines).split())
        if text:
            self.blocks.append(Block(self._kind, text, self._kind in ("SH", "SS"), self._kind != "tag"))
        self._lines = []

    def _start(self, macro: str, arguments: list[str]) -> None:
        self.flush()
        if macro in ("SH", "SS"):
            self._kind, self._lines = macro, [unescape(" ".join(arguments))]
            if arguments:
                self.flush()
                self._kind = "first"
        elif macro in ("TP", "TQ"):
            self._kind, self._tag_next = "tag", True
        else:
            self._kind = macro

    def _text(self, text: str) -> None:
        if not text.strip() and self._lines and not self._tag_next:
            self.flush()
            self._kind = "blank"
            return
        self._lines.append(text)
        if self._tag_next and text.strip():
            self.flush()
            self._kind, self._tag_next = "TP", False
        elif self._kind in ("SH", "SS"):
            self.flush()
            self._kind = "first"


def _macro(line: str) -> tuple[str | None, list[str]]:
    """The macro of a line and its arguments; None for a line of text."""
    if not line.startswith((".", "'")):
        return None, []
    name, _, rest = line[1:].strip().partition(" ")
    if name.startswith('\\"') or not name:
        return "comment", []
    if name == ".":
        return ".", []
    rest = re.sub(r'\\".*', "", rest).strip()
    try:
        # Quotes group words as in a shell; troff's own escapes stay for `unescape`.
        lexer = shlex.shlex(rest, posix=True)
        lexer.whitespace_split, lexer.quotes, lexer.escape, lexer.commenters = True, '"', "", ""
        return name, list(lexer)
    except ValueError:
        return name, rest.split()
