"""The parts of the network against the paper's formulas, written out slowly."""

import math

import pytest
import torch

from model.config import ModelConfig, preset
from model.nn.attention import MultiHeadAttention, causal_mask, padding_mask, scaled_dot_product
from model.nn.positions import Rotary, sinusoids
from model.nn.transformer import Transformer, parameter_count


def test_sinusoids_are_the_formula_of_section_3_5() -> None:
    table = sinusoids(50, 16, "interleaved")
    for position in (0, 1, 7, 49):
        for i in range(8):
            angle = position / 10_000 ** (2 * i / 16)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_halves_hold_the_same_columns_in_another_order() -> None:
    pairs, halves = sinusoids(20, 12, "interleaved"), sinusoids(20, 12, "halves")
    assert torch.equal(halves, torch.cat([pairs[:, 0::2], pairs[:, 1::2]], dim=1))


def rotary(head_size: int = 8) -> Rotary:
    return Rotary(ModelConfig(vocab_size=9, d_model=2 * head_size, heads=2, max_positions=60, positions="rotary"))


def test_rotary_positions_turn_pairs_as_complex_numbers_are_turned() -> None:
    """x e^(i m θ) with θ_i = 10000^(-2i/K), formula 16 of Su et al. (2021), for numbers of both halves of a head."""
    heads = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    found = rotary()(heads, 7)
    for t in range(5):
        for i in range(4):
            angle = torch.tensor((7 + t) * 10_000 ** (-2 * i / 8))
            wanted = torch.complex(heads[:, :, t, i], heads[:, :, t, i + 4]) * torch.polar(torch.tensor(1.0), angle)
            assert torch.allclose(found[:, :, t, i], wanted.real, atol=1e-5)
            assert torch.allclose(found[:, :, t, i + 4], wanted.imag, atol=1e-5)


def test_with_rotary_positions_a_score_depends_on_the_distance_alone() -> None:
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    turn = rotary()
    scores = [float((turn(query, 9 + shift) * turn(key, 4 + shift)).sum()) for shift in (0, 1, 20, 50)]
    assert scores == pytest.approx([scores[0]] * 4, abs=1e-5)
    assert abs(float((turn(query, 9) * turn(key, 5)).sum()) - scores[0]) > 1e-3


def test_rotary_positions_turn_no_value_and_nothing_of_the_source_for_the_decoder() -> None:
    config = ModelConfig.from_dict({**preset("small", 40).to_dict(), "positions": "rotary", "d_model": 16, "d_ff": 16})
    network = Transformer(config)
    assert network.positions is None
    turned = {name for name, module in network.named_modules() if isinstance(module, Rotary)}
    assert {name.split(".")[-2] for name in turned} == {"self_attention"}
    attention = network.get_submodule("decoder.layers.0.self_attention")
    assert isinstance(attention, MultiHeadAttention)
    x = torch.randn(1, 3, 16)
    assert torch.equal(attention.keys_values(x, 5)[1], attention.split_heads(attention.w_v(x)))
    assert not any("rotary" in name for name in network.state_dict())


def test_attention_is_formula_1() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    found = scaled_dot_product(query, key, value, None)
    for b in range(2):
        for h in range(3):
            weights = torch.softmax(query[b, h] @ key[b, h].T / math.sqrt(8), dim=-1)
            assert torch.allclose(found[b, h], weights @ value[b, h], atol=1e-6)


def test_heads_are_projected_apart_attended_apart_and_concatenated() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(d_model=8, heads=2)
    x, memory = torch.randn(1, 3, 8), torch.randn(1, 4, 8)
    q, k, v = attention.w_q(x), attention.w_k(memory), attention.w_v(memory)
    heads = [
        torch.softmax(q[0, :, part] @ k[0, :, part].T / math.sqrt(4), dim=-1) @ v[0, :, part]
        for part in (slice(0, 4), slice(4, 8))
    ]
    expected = attention.w_o(torch.cat(heads, dim=-1))
    assert torch.allclose(attention(x, memory, None)[0], expected, atol=1e-6)


def test_a_row_that_sees_nothing_gives_no_nan() -> None:
    hidden = padding_mask(torch.tensor([0]), 3)
    assert torch.isfinite(scaled_dot_product(*torch.randn(3, 1, 1, 3, 4), hidden)).all()


def test_the_causal_mask_hides_the_future_and_nothing_else() -> None:
    seen = causal_mask(4)[0, 0] == 0
    assert seen.tolist() == [[column <= row for column in range(4)] for row in range(4)]


@pytest.mark.parametrize(
    ("name", "vocabulary", "millions"), [("paper-base", 32_000, 60.52), ("paper-big", 32_000, 209.13)]
)
def test_presets_have_the_published_number_of_parameters(name: str, vocabulary: int, millions: float) -> None:
    with torch.device("meta"):
        count = parameter_count(Transformer(preset(name, vocabulary)))
    assert count / 1e6 == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_parameter_count_is_the_formula(norm_order: str, tied: bool) -> None:
    v, d, f, n, m = 97, 16, 40, 3, 2
    config = ModelConfig.from_dict(
        {
            "vocab_size": v,
            "d_model": d,
            "heads": 4,
            "d_ff": f,
            "encoder_layers": n,
            "decoder_layers": m,
            "norm_order": norm_order,
            "tie_embeddings": tied,
        }
    )
    attention, feed_forward, norm = 4 * (d * d + d), d * f + f + f * d + d, 2 * d
    expected = n * (attention + feed_forward + 2 * norm) + m * (2 * attention + feed_forward + 3 * norm)
    expected += v * d * (1 if tied else 3) + (2 * norm if norm_order == "pre" else 0)
    assert parameter_count(Transformer(config)) == expected


def test_tied_embeddings_are_one_tensor_and_one_update_moves_both_uses() -> None:
    network = Transformer(ModelConfig(vocab_size=20, d_model=8, heads=2, d_ff=8, encoder_layers=1, decoder_layers=1))
    assert network.output_weight.data_ptr() == network.embedding.weight.data_ptr()
    ids, lengths = torch.tensor([[5, 6, 2]]), torch.tensor([3])
    before = network.embed(ids).detach(), network.output_weight.detach().clone()
    network.eval()(ids, lengths, torch.tensor([[1, 7]])).sum().backward()
    with torch.no_grad():
        network.embedding.weight -= 0.1 * network.embedding.weight.grad
    assert not torch.equal(network.embed(ids), before[0])
    assert not torch.equal(network.output_weight, before[1])


def test_embeddings_have_unit_variance_after_scaling_and_pad_is_zero() -> None:
    network = Transformer(preset("small", 4000)).eval()
    scaled = network.embedding.weight * math.sqrt(256)
    assert scaled[1:].std().item() == pytest.approx(1.0, abs=0.02)
    assert network.embedding.weight[0].abs().max() == 0
    assert torch.equal(network.embed(torch.tensor([[9]])), scaled[9][None, None] + network.positions[0])


@pytest.mark.parametrize(("name", "bound"), [("w_q", math.sqrt(6 / (4 * 64))), ("w_o", math.sqrt(6 / (2 * 64)))])
def test_projections_start_as_xavier_with_q_k_v_as_if_stacked(name: str, bound: float) -> None:
    attention = MultiHeadAttention(d_model=64, heads=4)
    weight = getattr(attention, name).weight
    assert weight.abs().max().item() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)


def test_dropout_sits_only_where_the_paper_has_it() -> None:
    network = Transformer(preset("paper-base", 100, encoder_layers=2, decoder_layers=2))
    places = {name for name, module in network.named_modules() if isinstance(module, torch.nn.Dropout)}
    layers = {f"{stack}.layers.{i}.dropout" for stack in ("encoder", "decoder") for i in range(2)}
    assert places == {"dropout"} | layers
