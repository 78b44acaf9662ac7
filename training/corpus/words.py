"""What two texts share: placeholders, tags, words, and the key under which near-identical ones meet."""

from __future__ import annotations

import re
from functools import lru_cache

PLACEHOLDER = re.compile(
    r"%\([A-Za-z_]\w*\)[-#0 +]?\d*(?:\.\d+)?[a-zA-Z]"  # %(name)s
    r"|%(?:\d+\$)?[-#0+']*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|j|z|t|q|L|I64)?[diouxXeEfFgGaAcCsSpnm](?![a-z])"
    r"|%<PRI\w+>|%L?\d+|%%"  # %1 of Qt and KDE
    r"|%[A-Z][A-Z_]+"  # %PRODUCTNAME
    r"|\$\{\w+\}|\$\(\w+\)|\$(?!\d)\w+\$?|\{\w*(?::[^{}\s]*)?\}|@\w+@"
)
POSITIONAL = re.compile(r"\$\d\w*\$?")
"""`$1` of a shell or a regular expression: a placeholder in the messages of programs, money elsewhere."""
TAG = re.compile(r"</?[A-Za-z][^<>]*>|&(?:#\d+|[A-Za-z]{2,8});|\[/?[a-z]+\]")
ADDRESS = re.compile(r"(?:https?|ftp)://[^\s<>\"')\]]+|\bwww\.[^\s<>\"')\]]+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+")

_IDEOGRAPH = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Kana and Han: written without spaces, so each character counts as a word."""
_WORD = re.compile(rf"[{_IDEOGRAPH}]|(?:(?![{_IDEOGRAPH}])[^\W\d_])+")


@lru_cache(maxsize=16)  # the rules and the watch for near duplicates ask for the same text in a row
def words(text: str) -> tuple[str, ...]:
    """The words of `text`: runs of letters, lower case, without placeholders, tags and addresses."""
    bare = ADDRESS.sub(" ", TAG.sub(" ", PLACEHOLDER.sub(" ", text)))
    return tuple(_WORD.findall(bare.lower()))


def key(text: str) -> str:
    """The words of `text`, joined: equal for texts that differ in case, digits, punctuation or placeholders only."""
    return " ".join(words(text))
