import pytest

from training import scores
from training.scores import ScoreError, score, tokenization


def test_a_perfect_output_scores_a_hundred_and_carries_both_signatures() -> None:
    found = score(["Das ist ein guter Satz ."], ["Das ist ein guter Satz ."])
    assert (found.bleu, found.chrf, found.brevity_penalty, found.sentences) == (100.0, 100.0, 1.0, 1)
    assert found.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert found.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_short_output_shows_in_the_brevity_penalty() -> None:
    assert score(["eins zwei drei vier"], ["eins zwei drei vier fünf sechs sieben acht"]).brevity_penalty < 0.5


def test_scores_of_different_tokenisation_are_not_compared() -> None:
    outputs, references = ["他今天不来。"], ["他今天没有来。"]
    ours, theirs = score(outputs, references), score(outputs, references, "zh")
    assert ours.bleu != theirs.bleu
    with pytest.raises(ScoreError, match="one signature"):
        ours.minus(theirs)
    assert ours.minus(ours) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("", "13a"),
        ("de", "13a"),
        ("zh", "zh"),
        ("zh-Hant", "zh"),
        ("zh_CN", "zh"),
        ("th", "char"),
        ("lo", "char"),
        ("km", "char"),
        ("my", "char"),
    ],
)
def test_what_counts_as_a_word_depends_on_the_language_and_is_in_the_signature(language: str, words: str) -> None:
    found = score(["他今天不来。"], ["他今天不来。"], language)
    assert f"|tok:{words}|" in found.bleu_signature


def test_text_without_spaces_is_not_scored_as_one_word() -> None:
    outputs, references = ["他今天上午不会来学校。"], ["他今天上午没有来学校。"]
    assert score(outputs, references).bleu == 0.0
    assert score(outputs, references, "zh").bleu > 30


@pytest.mark.parametrize(("language", "words"), [("ja", "ja-mecab"), ("ko", "ko-mecab")])
def test_a_dictionary_finds_words_where_it_is_installed_and_characters_count_elsewhere(
    language: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "find_spec", lambda name: None if "dic" in name else object())
    assert tokenization(language) == "char"
    assert "|tok:char|" in score(["今日は来ない"], ["今日は来ない"], language).bleu_signature
    monkeypatch.setattr(scores, "find_spec", lambda name: object())
    assert tokenization(language) == words


@pytest.mark.parametrize(("outputs", "references"), [(["a"], ["a", "b"]), ([], [])])
def test_unequal_and_empty_lists_are_refused(outputs: list[str], references: list[str]) -> None:
    with pytest.raises(ScoreError, match="as many"):
        score(outputs, references)
