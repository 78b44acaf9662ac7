"""Qt's compiled catalogues: source and translation, where the source was left in."""

from pathlib import Path

import pytest

from training.corpus.catalogues import find_catalogues, read_catalogue
from training.corpus.errors import CorpusError
from training.corpus.qt import read_qm

MAGIC = bytes.fromhex("3cb86418caef9c95cd211cbf60a1bddd")


def part(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + len(content).to_bytes(4, "big") + content


def message(*translations: str, source: str = "") -> bytes:
    texts = b"".join(part(3, text.encode("utf-16-be")) for text in translations)
    return texts + (part(6, source.encode()) if source else b"") + part(7, b"Context") + b"\x01"


def catalogue(*messages: bytes) -> bytes:
    return MAGIC + part(0x42, b"hashes") + part(0x69, b"".join(messages)) + part(0x88, b"rules")


def test_messages_that_keep_their_source_are_pairs(tmp_path: Path) -> None:
    path = tmp_path / "app_de.qm"
    path.write_bytes(
        catalogue(
            message("Öffnen", source="Open"),
            message("%n Datei", "%n Dateien", source="%n file(s)"),
            message("Ohne Quelle"),
        )
    )
    assert list(read_qm(path)) == [("Open", "Öffnen"), ("%n file(s)", "%n Dateien")]


def test_they_are_read_beside_gettext_catalogues(tmp_path: Path) -> None:
    for name in ("app_de.qm", "app_fr.qm"):
        (tmp_path / name).write_bytes(catalogue(message("Ja", source="Yes")))
    (found,) = find_catalogues(tmp_path, "de")
    assert [(pair.source, pair.target) for pair in read_catalogue(found, "o", "p")] == [("Yes", "Ja")]


@pytest.mark.parametrize("damage", [b"", MAGIC[:5], catalogue(message("Ja", source="Yes"))[:-20]])
def test_a_damaged_catalogue_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "app_de.qm"
    path.write_bytes(damage)
    with pytest.raises(CorpusError, match=r"app_de\.qm must be a compiled Qt catalogue"):
        list(read_qm(path))
