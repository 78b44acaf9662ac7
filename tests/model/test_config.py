import pytest

from model.config import PRESETS, ModelConfig, preset
from model.errors import ConfigError


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_survives_the_way_to_json_and_back(name: str) -> None:
    config = preset(name, vocab_size=32_000)
    assert ModelConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("d_model", 0, "at least 1"),
        ("heads", 7, "multiple of heads"),
        ("dropout", 1.0, r"\[0, 1\)"),
        ("norm_order", "middle", "post, pre"),
        ("positions", "guessed", "interleaved, halves, learned, rotary"),
        ("activation", "tanh", "relu, gelu"),
        ("eos_id", 1, "four different ids"),
        ("unk_id", 32_000, "below vocab_size"),
        ("d_model", "512", "d_model must be a whole number, but is '512'"),
        ("d_model", 512.0, "d_model must be a whole number"),
        ("heads", True, "heads must be a whole number"),
        ("dropout", None, "dropout must be a number"),
        ("tie_embeddings", 1, "tie_embeddings must be true or false"),
    ],
)
def test_a_contradiction_is_refused_by_name(field: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        preset("paper-base", 32_000, **{field: value})


def test_an_odd_width_is_refused_since_sinusoids_come_in_pairs() -> None:
    with pytest.raises(ConfigError, match="even"):
        ModelConfig(vocab_size=100, d_model=9, heads=3)


def test_rotary_positions_want_heads_of_an_even_width() -> None:
    with pytest.raises(ConfigError, match=r"d_model / heads must be even, but is 3"):
        ModelConfig(vocab_size=100, d_model=6, heads=2, positions="rotary")


def test_an_unknown_field_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"num_heads.*Known:.*heads"):
        preset("small", 1000, num_heads=4)


def test_an_unknown_preset_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(ConfigError, match="paper-base, paper-big, small"):
        preset("huge", 1000)


def test_vocab_size_has_no_default() -> None:
    with pytest.raises(ConfigError, match="vocab_size must be given"):
        ModelConfig.from_dict({"d_model": 8, "heads": 2})
