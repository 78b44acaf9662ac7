import pytest

from training.scores import ScoreError, score


def test_a_perfect_output_scores_a_hundred_and_carries_both_signatures() -> None:
    found = score(["Das ist ein guter Satz ."], ["Das ist ein guter Satz ."])
    assert (found.bleu, found.chrf, found.brevity_penalty, found.sentences) == (100.0, 100.0, 1.0, 1)
    assert found.bleu_signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert found.chrf_signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_short_output_shows_in_the_brevity_penalty() -> None:
    assert score(["eins zwei drei vier"], ["eins zwei drei vier fünf sechs sieben acht"]).brevity_penalty < 0.5


def test_scores_of_different_tokenisation_are_not_compared() -> None:
    outputs, references = ["他今天不来。"], ["他今天没有来。"]
    ours, theirs = score(outputs, references), score(outputs, references, tokenizer="zh")
    assert ours.bleu != theirs.bleu
    with pytest.raises(ScoreError, match="one signature"):
        ours.minus(theirs)
    assert ours.minus(ours) == (0.0, 0.0)


@pytest.mark.parametrize(("outputs", "references"), [(["a"], ["a", "b"]), ([], [])])
def test_unequal_and_empty_lists_are_refused(outputs: list[str], references: list[str]) -> None:
    with pytest.raises(ScoreError, match="as many"):
        score(outputs, references)
