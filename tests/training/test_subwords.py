"""A vocabulary is the same every time, knows every character, and says what it makes of the text."""

import json
import re
from itertools import islice, pairwise, product
from pathlib import Path

import pytest

from model.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from training.corpus.errors import CorpusError
from training.corpus.files import read_lines
from training.recipe import RecipeError
from training.sampling import unigram_cuts
from training.subwords import SubwordOptions, SubwordReport, corpus_files, inspect_subwords, train_subwords

SYLLABLES = "ab bel cor da en fi gra ho in ja kol lu men no or pu que ras sto tu ung ver wo xi yl zu für öff".split()  # noqa: SIM905
"""Enough different words for a few hundred pieces."""
WORDS = [a + b + c for a, b, c in islice(product(SYLLABLES, repeat=3), 0, None, 37)]
ENGLISH = [f"{a} the {b} number {i % 97}" for i, (a, b) in enumerate(pairwise(WORDS))]
GERMAN = [f"{b} Nummer {i % 97} für {a} öffnen" for i, (a, b) in enumerate(pairwise(WORDS))]
SMALL = SubwordOptions(vocab_size=350)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for name, lines in (
        ("train.en", ENGLISH),
        ("train.de", GERMAN),
        ("dev.x.en", ["Open"]),
        ("dev.x.de", ["☃ öffnen"]),
    ):
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    report = {"languages": ["en", "de"], "sets": {"train": {}, "dev.x": {}}}
    (folder / "report.json").write_text(json.dumps(report))
    return folder


@pytest.fixture(scope="module")
def trained(corpus: Path) -> tuple[Path, dict[str, SubwordReport]]:
    path = corpus / "tokenizer.model"
    return path, train_subwords(corpus, path, SMALL)


def test_the_special_ids_and_the_size_are_those_of_the_house(trained: tuple[Path, dict[str, SubwordReport]]) -> None:
    tokenizer = Tokenizer(trained[0])
    assert tokenizer.vocab_size == 350
    assert (PAD_ID, BOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3)


@pytest.mark.parametrize("text", ["open the window", "Für Österreich: 3 ☃!", "打开文件", "E\u0301t\u00e9", "a  b"])
def test_every_text_comes_back_without_an_unknown_token(
    trained: tuple[Path, dict[str, SubwordReport]], text: str
) -> None:
    tokenizer = Tokenizer(trained[0])
    ids = tokenizer.encode(text)
    assert UNK_ID not in ids
    assert tokenizer.encode(tokenizer.decode(ids)) == ids


def test_digits_stand_alone(trained: tuple[Path, dict[str, SubwordReport]]) -> None:
    tokenizer = Tokenizer(trained[0])
    assert len(tokenizer.encode("1234567")) - len(tokenizer.encode("1")) == 6


def test_two_trainings_give_the_same_bytes(trained: tuple[Path, dict[str, SubwordReport]], corpus: Path) -> None:
    train_subwords(corpus, corpus / "again.model", SMALL)
    assert (corpus / "again.model").read_bytes() == trained[0].read_bytes()


def test_ids_with_and_without_a_line_end_are_equal_and_nothing_is_unknown(
    trained: tuple[Path, dict[str, SubwordReport]], tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"Guten Tag.\nBis bald.\r\nLetzte Zeile ohne Ende")
    plain = ["Guten Tag.", "Bis bald.", "Letzte Zeile ohne Ende"]
    tokenizer = Tokenizer(trained[0])
    assert [tokenizer.encode(line) for line in read_lines(path)] == [tokenizer.encode(line) for line in plain]
    assert inspect_subwords(trained[0], read_lines(path)).unknown == 0


def test_the_report_counts_what_there_is(trained: tuple[Path, dict[str, SubwordReport]]) -> None:
    path, reports = trained
    assert list(reports) == ["train.en", "train.de", "dev.x.en", "dev.x.de"]
    tokenizer = Tokenizer(path)
    tokens = [len(tokenizer.encode(line)) - 1 for line in ENGLISH]
    english = reports["train.en"]
    assert (english.lines, english.words, english.tokens) == (len(ENGLISH), 5 * len(ENGLISH), sum(tokens))
    assert (english.unknown, english.bytes, english.longest) == (0, 0, max(tokens))
    assert reports["dev.x.de"].bytes == 3  # a snowman is three bytes
    assert english.tokens_per_word == sum(tokens) / (5 * len(ENGLISH))
    assert "0.000 % unknown" in str(english)


def test_the_report_lies_beside_the_vocabulary(trained: tuple[Path, dict[str, SubwordReport]]) -> None:
    written = json.loads(trained[0].with_suffix(".report.json").read_text(encoding="utf-8"))
    assert written["train.en"]["tokens"] == trained[1]["train.en"].tokens


def test_long_lines_are_counted(trained: tuple[Path, dict[str, SubwordReport]]) -> None:
    assert inspect_subwords(trained[0], ["1" * 128, "1" * 200, ""]).over_128 == 2


def test_a_corpus_too_small_says_how_large_a_vocabulary_may_be(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"large enough for 8064 subwords, but is not; ask for \d+") as error:
        train_subwords(corpus, tmp_path / "t.model", SubwordOptions(vocab_size=8064))
    largest = int(str(error.value).split("ask for ")[1].split()[0].rstrip(","))
    train_subwords(corpus, tmp_path / "t.model", SubwordOptions(vocab_size=largest))
    assert Tokenizer(tmp_path / "t.model").vocab_size == largest


def test_a_vocabulary_may_be_smaller_where_there_is_no_more(corpus: Path, tmp_path: Path) -> None:
    train_subwords(corpus, tmp_path / "few.model", SubwordOptions(vocab_size=8064, shrink=True))
    train_subwords(corpus, tmp_path / "asked.model", SubwordOptions(vocab_size=340, shrink=True))
    few, asked = (Tokenizer(tmp_path / f"{name}.model") for name in ("few", "asked"))
    assert 340 < few.vocab_size < 8064
    assert asked.vocab_size == 340
    assert few.sentinel_ids


@pytest.mark.parametrize(
    ("wrong", "message"), [({"max_lines": -1}, "max_lines"), ({"character_coverage": 0.0}, "(0, 1]")]
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        SubwordOptions(**wrong)  # type: ignore[arg-type]


def test_a_vocabulary_too_small_for_the_alphabet_says_how_small_it_may_be(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"vocab_size must be at least (\d+)") as error:
        train_subwords(corpus, tmp_path / "t.model", SubwordOptions(vocab_size=100))
    assert not (tmp_path / "t.model").exists()
    smallest = int(str(error.value).split("at least ")[1].split()[0].rstrip(",;."))
    train_subwords(corpus, tmp_path / "t.model", SubwordOptions(vocab_size=smallest))


def test_training_on_some_lines_takes_them_from_the_whole_text(corpus: Path, tmp_path: Path) -> None:
    few = train_subwords(corpus, tmp_path / "few.model", SubwordOptions(vocab_size=340, max_lines=100))
    assert few["train.en"].lines == len(ENGLISH)


def test_an_unfinished_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"must be a finished corpus, but has no report\.json"):
        corpus_files(tmp_path)


def test_a_vocabulary_of_pairs_of_bytes_and_without_sentinels_has_the_size_asked_for(
    corpus: Path, tmp_path: Path
) -> None:
    train_subwords(corpus, tmp_path / "t.model", SubwordOptions(kind="bpe", vocab_size=400, sentinels=False))
    tokenizer = Tokenizer(tmp_path / "t.model")
    assert (tokenizer.vocab_size, tokenizer.sentinel_ids) == (400, ())
    assert tokenizer.decode(tokenizer.encode(GERMAN[0])) == GERMAN[0]
    with pytest.raises(RecipeError, match="subword_sampling must have a unigram vocabulary"):
        unigram_cuts(tokenizer)
