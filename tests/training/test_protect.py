"""What both sides carry becomes the same sentinels; noise is the same every time and spares what is carried."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sentencepiece as spm
from hypothesis import example, given
from hypothesis import strategies as st

from model.protection import Protector, restore
from model.tokenizer import SENTINELS, Tokenizer
from tests.model.networks import TEXTS, train_tokenizer
from training.batches import encode_pairs
from training.cli import main
from training.corpus.errors import CorpusError
from training.fit import TextRecipe
from training.noise import disturb
from training.protect import preparation, protect_pair
from training.recipe import NoiseRecipe, ProtectRecipe
from training.subwords import with_sentinels

PROTECTOR = Protector()
PAIR = ("Open <b>%s</b> at 10:30, or 2 of 2.", "Um 10:30 öffnen Sie <b>%s</b>, oder 2 von 2.")
SPANS = st.lists(st.sampled_from(["%s", "{0}", "<b>", "</b>", "A4", "7", "10:30", "http://a.org/x", "word", "Wort"]))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def extended(plain: Path) -> Path:
    path = plain.with_name("extended.model")
    path.write_bytes(with_sentinels(plain.read_bytes()))
    return path


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def sentinels(text: str) -> list[str]:
    return [character for character in text if character in SENTINELS]


def test_an_extended_vocabulary_keeps_its_ids_and_has_the_sentinels_at_its_end(plain: Path, extended: Path) -> None:
    before, after = Tokenizer(plain), Tokenizer(extended)
    assert before.sentinel_ids == ()
    assert after.sentinel_ids == tuple(range(before.vocab_size, before.vocab_size + 32))
    assert after.pieces(range(before.vocab_size)) == before.pieces(range(before.vocab_size))
    assert [after.encode(text) for text in TEXTS] == [before.encode(text) for text in TEXTS]


def test_a_sentinel_is_one_id_wherever_it_stands(extended: Path) -> None:
    tokenizer = Tokenizer(extended)
    text = f"Hi {SENTINELS[3]}, {SENTINELS[0]}Open{SENTINELS[31]}{SENTINELS[1]} {SENTINELS[2]}s."
    ids = tokenizer.encode(text)
    assert [i for i in ids if i in tokenizer.sentinel_ids] == [tokenizer.sentinel_ids[i] for i in (3, 0, 31, 1, 2)]
    assert tokenizer.decode(ids) == text


def test_a_vocabulary_is_extended_once(extended: Path) -> None:
    assert with_sentinels(extended.read_bytes()) == extended.read_bytes()
    noted = spm.SentencePieceProcessor(model_proto=extended.read_bytes())
    assert noted.GetPieceSize() == Tokenizer(extended).vocab_size


def test_a_vocabulary_that_learnt_sentinels_as_letters_is_refused(tmp_path: Path) -> None:
    prefix = tmp_path / "private"
    lines = [f"{text} {SENTINELS[4]}" for text in TEXTS]
    spm.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_prefix=str(prefix), vocab_size=100, hard_vocab_limit=False, minloglevel=2
    )
    with pytest.raises(CorpusError, match="all sentinels or none, but has 1"):
        with_sentinels(prefix.with_suffix(".model").read_bytes())


def test_what_both_sides_have_becomes_the_same_sentinels() -> None:
    source, target = protect_pair(*PAIR, PROTECTOR, random())
    first, second, third, fourth = sentinels(source)
    assert source == f"Open {first} at {second}, or {third} of {fourth}."
    assert target == f"Um {second} öffnen Sie {first}, oder {third} von {fourth}."
    assert len({first, second, third, fourth}) == 4


def test_what_one_side_has_more_often_stays_text() -> None:
    pair = ("Here are 3.5 m and %s, %s.", "Hier sind 3,5 m und %s.")
    assert protect_pair(*pair, PROTECTOR, random()) == pair


def test_numbers_stay_text_where_they_are_to() -> None:
    source, target = protect_pair(*PAIR, PROTECTOR, random(), plain_numbers=True)
    assert "10:30" in source
    assert "2 von 2" in target
    assert sentinels(source) == sentinels(target)
    assert len(sentinels(source)) == 1


@example("'k' must be in {1, 2, .. n - 1}", "'k' muss in {1, 2, .. n-1} liegen")
@given(st.text("1{}, .n-", max_size=12), st.text("1{}, .n-", max_size=12))
def test_a_number_that_is_part_of_a_longer_span_elsewhere_hinders_nothing(x: str, y: str) -> None:
    source, target = protect_pair(x, y, PROTECTOR, random(), plain_numbers=True)
    assert Counter(sentinels(source)) == Counter(sentinels(target))


def test_more_spans_than_sentinels_stay_text() -> None:
    pair = (" x ".join(["%s"] * 33), " y ".join(["%s"] * 33))
    assert protect_pair(*pair, PROTECTOR, random()) == pair


@given(SPANS, SPANS, st.integers(0, 99))
def test_both_sides_have_the_same_sentinels_and_each_can_be_put_back(x: list[str], y: list[str], seed: int) -> None:
    pair = (" ".join(x), " ".join(y))
    found = protect_pair(*pair, PROTECTOR, random(seed))
    assert Counter(sentinels(found[0])) == Counter(sentinels(found[1]))
    spans = [""] * len(SENTINELS)
    for text, words in zip(found, (x, y), strict=True):
        for word, instead in zip(words, text.split(), strict=True):
            if instead in SENTINELS:
                spans[SENTINELS.index(instead)] = word
        assert restore(text, spans) == " ".join(words)


def test_every_sentinel_is_drawn_equally_often() -> None:
    drawn: Counter[str] = Counter()
    for number in range(3200):
        drawn.update(sentinels(protect_pair("See %s.", "Siehe %s.", PROTECTOR, random(number))[0]))
    assert len(drawn) == 32
    assert max(drawn.values()) < 2 * min(drawn.values())


def test_the_same_seed_prepares_the_same_pairs_and_another_one_others(extended: Path) -> None:
    tokenizer = Tokenizer(extended)
    noise = NoiseRecipe(lower=0.2, upper=0.2, no_stop=0.5, spaces=0.5, carried=0.5)

    def ids(seed: int) -> list[list[int]]:
        prepare = preparation(tokenizer, ProtectRecipe(), noise, seed)
        pairs = encode_pairs([PAIR] * 50, tokenizer, 500, prepare)
        return [x.tolist() for x in (*pairs.sources, *pairs.targets)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_about_the_asked_share_of_pairs_keeps_its_numbers(extended: Path) -> None:
    prepare = preparation(Tokenizer(extended), ProtectRecipe(plain_numbers=0.3), NoiseRecipe(), seed=1)
    kept = sum("10:30" in prepare(number, *PAIR)[0] for number in range(1000))
    assert 240 < kept < 360


@pytest.mark.parametrize("enabled", [True, False])
def test_without_sentinels_in_the_vocabulary_or_when_off_text_stays_text(
    plain: Path, extended: Path, *, enabled: bool
) -> None:
    tokenizer = Tokenizer(plain if enabled else extended)
    prepare = preparation(tokenizer, ProtectRecipe(enabled=enabled), NoiseRecipe(carried=1.0), seed=1)
    assert prepare(0, *PAIR) == PAIR


def test_a_run_is_known_by_what_is_done_to_its_text(plain: Path, extended: Path) -> None:
    bare, full = Tokenizer(plain), Tokenizer(extended)
    noisy = TextRecipe(noise=NoiseRecipe(lower=0.1))
    assert TextRecipe().identity(bare) == {}, "an older run goes on"
    assert set(TextRecipe().identity(full)) == {"protect"}
    assert TextRecipe(ProtectRecipe(enabled=False)).identity(full) == {}
    assert noisy.identity(bare)["noise"]["lower"] == 0.1


def test_the_step_tokenizer_extends_a_vocabulary_that_is_there(plain: Path, tmp_path: Path) -> None:
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("".join(f"{text}\n" for text in TEXTS))
    (tmp_path / "report.json").write_text('{"sets": {"train": {}}, "languages": ["en", "de"]}')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[languages]\nsource = "en"\ntarget = "de"\n')
    flags = ["--recipe", str(recipe), "--corpus", str(tmp_path), "--extend", str(plain)]
    assert main(["tokenizer", *flags]) == 0
    assert (tmp_path / "tokenizer.model").read_bytes() == with_sentinels(plain.read_bytes())
    assert (tmp_path / "tokenizer.report.json").is_file()


def test_case_changes_what_is_language_and_nothing_else() -> None:
    lower = disturb(("Open %S now.", "X %S."), NoiseRecipe(lower=1.0), random(), PROTECTOR, SENTINELS)
    assert lower == ("open %S now.", "X %S.")
    upper = disturb(("Open %s.", "Öffne %s groß."), NoiseRecipe(upper=1.0), random(), PROTECTOR, SENTINELS)
    assert upper == ("OPEN %s.", "ÖFFNE %s GROSS.")


def test_a_full_stop_goes_from_both_sides_or_from_none() -> None:
    noise = NoiseRecipe(no_stop=1.0)
    assert disturb(("Go.", "Geh."), noise, random(), PROTECTOR, ()) == ("Go", "Geh")
    assert disturb(("Go.", "Geh!"), noise, random(), PROTECTOR, ()) == ("Go.", "Geh!")
    assert disturb(("Go...", "Geh..."), noise, random(), PROTECTOR, ()) == ("Go...", "Geh...")


def test_a_stray_space_stands_before_punctuation_of_the_source() -> None:
    noise = NoiseRecipe(spaces=1.0)
    assert disturb(("Go to 10:30, a.b.c", "Geh."), noise, random(), PROTECTOR, ()) == ("Go to 10:30 , a.b.c", "Geh.")
    assert disturb(("No mark", "Nein."), noise, random(), PROTECTOR, ()) == ("No mark", "Nein.")


def test_carried_signs_stand_at_the_same_place_on_both_sides() -> None:
    noise = NoiseRecipe(carried=1.0)
    places = set()
    for seed in range(60):
        source, target = disturb(("One. Two.", "Eins. Zwei."), noise, random(seed), PROTECTOR, SENTINELS)
        assert sentinels(source) == sentinels(target)
        shape = "".join("*" if c in SENTINELS else c for c in source)
        assert "".join("*" if c in SENTINELS else c for c in target) == shape.replace("One", "Eins").replace(
            "Two", "Zwei"
        )
        places.add(shape)
    assert {"* One. Two.", "One. * Two.", "One. Two. *"} <= places
