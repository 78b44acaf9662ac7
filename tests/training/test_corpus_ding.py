"""The Ding dictionary: plain entries out of its notation, one kind at a time."""

import lzma
from pathlib import Path

import pytest

from training.corpus.ding import clean_entry, find_dictionaries, kind_of, read_ding
from training.corpus.errors import CorpusError

HOUSE = (
    "Haus {n} [arch.] | Häuser {pl} | auf das Haus aufpassen | Das Haus ist alt. "
    ":: house; home | houses | to mind the house | The house is old."
)
NOTICE = (
    "etw. wahrnehmen {vt} | wahrnehmend | er nimmt etw. wahr | etw. kaum wahrnehmen "
    ":: to notice sth. | noticing | he notices sth. | to hardly notice sth."
)
DICTIONARY = f"""# Version :: devel
{HOUSE}
{NOTICE}
Aal {{m}} [zool.] | Der Aal ist lang. :: eel | The eel is long.
eins | zwei :: one
nur Deutsch
"""
LANGUAGES = ("en", "de")


def pairs(tmp_path: Path, select: str, languages: tuple[str, str] = LANGUAGES) -> list[tuple[str, str]]:
    path = tmp_path / "de-en.txt"
    path.write_text(DICTIONARY, encoding="utf-8")
    return [(pair.source, pair.target) for pair in read_ding(path, ("d", "p"), languages, select)]  # type: ignore[arg-type]


def test_sentences_phrases_and_terms_are_kept_apart(tmp_path: Path) -> None:
    assert pairs(tmp_path, "sentences") == [("The house is old.", "Das Haus ist alt.")]
    assert pairs(tmp_path, "phrases") == [
        ("to mind the house", "auf das Haus aufpassen"),
        ("to hardly notice something", "etwas kaum wahrnehmen"),
    ]
    assert pairs(tmp_path, "terms") == [("house", "Haus"), ("to notice something", "etwas wahrnehmen")]


def test_all_of_them_in_either_direction(tmp_path: Path) -> None:
    every = pairs(tmp_path, "all")
    assert every == [(en, de) for de, en in pairs(tmp_path, "all", ("de", "en"))]
    assert set(every) == {pair for kind in ("sentences", "phrases", "terms") for pair in pairs(tmp_path, kind)}


@pytest.mark.parametrize(
    ("entry", "plain"),
    [
        ("Sprachbit {n} [comp.]", "Sprachbit"),
        ("suspended matter; solids", "suspended matter"),
        ("air handling unit /AHU/ (plant)", "air handling unit"),
        ("eel-smoking business <eelsmoking business>", "eel-smoking business"),
        ("sheer/pure mockery", "sheer mockery"),
        ("to take care of sb./sth.", "to take care of somebody"),
        ("jdm. / etw. helfen", ""),
        ("to be (very (much)) there", "to be there"),
        ("What is the matter (with you)?", "What is the matter?"),
        ("sb.’s turn – don’t", "somebody's turn – don't"),
        ("…", ""),
    ],
)
def test_notes_go_abbreviations_are_spelt_out_and_the_first_of_several_counts(entry: str, plain: str) -> None:
    assert clean_entry(entry) == plain


def test_a_sentence_has_both_a_capital_and_an_end_on_both_sides() -> None:
    assert kind_of("Es ist spät.", "It is late.") == "sentences"
    assert kind_of("Es ist spät", "It is late.") == "phrases"
    assert kind_of("spät", "to be late") == "terms"


def test_the_dictionary_is_found_as_its_package_installs_it(tmp_path: Path) -> None:
    path = tmp_path / "usr/share/trans/de-en"
    path.parent.mkdir(parents=True)
    path.write_text(DICTIONARY)
    (tmp_path / "de-en.txt.xz").write_bytes(lzma.compress(DICTIONARY.encode()))
    assert find_dictionaries(tmp_path) == [tmp_path / "de-en.txt.xz", path]
    with pytest.raises(CorpusError, match="must hold a Ding dictionary"):
        find_dictionaries(tmp_path / "usr/share/doc")


def test_languages_the_dictionary_lacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="en and fr"):
        pairs(tmp_path, "all", ("en", "fr"))
