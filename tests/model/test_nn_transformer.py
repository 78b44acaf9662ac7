"""Equivalences of the network: step = full pass, padding and neighbours change nothing."""

import pytest
import torch

from model.config import ModelConfig
from model.nn.transformer import Transformer, greedy

VARIANTS = [
    {"norm_order": norm, "positions": positions, "tie_embeddings": tied, "activation": activation}
    for norm, positions, tied, activation in [
        ("post", "interleaved", True, "relu"),
        ("pre", "interleaved", True, "relu"),
        ("pre", "halves", False, "gelu"),
        ("post", "halves", False, "relu"),
        ("post", "rotary", True, "relu"),
        ("pre", "rotary", False, "relu"),
    ]
]


def small_network(**fields: object) -> Transformer:
    torch.manual_seed(3)
    shape = {"vocab_size": 60, "d_model": 32, "heads": 4, "d_ff": 48, "encoder_layers": 2, "decoder_layers": 2}
    return Transformer(ModelConfig.from_dict({**shape, "max_positions": 64, **fields})).eval()


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(4, 60, shape, generator=torch.Generator().manual_seed(5))


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_with_caches_equal_the_full_pass(variant: dict[str, object]) -> None:
    network = small_network(**variant)
    source, lengths, target = ids(3, 9), torch.tensor([9, 4, 1]), ids(3, 12)
    full = network(source, lengths, target)
    state = network.start(network.encode(source, lengths), lengths)
    for position in range(12):
        step = network.step(target[:, position : position + 1], state)
        assert torch.allclose(step, full[:, position], atol=1e-5), position


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_and_neighbours_change_nothing(variant: dict[str, object]) -> None:
    network = small_network(**variant)
    source, target, lengths = ids(4, 11), ids(4, 7), torch.tensor([11, 6, 3, 1])
    together = network(source, lengths, target)
    for row, length in enumerate(lengths.tolist()):
        alone = network(source[row : row + 1, :length], lengths[row : row + 1], target[row : row + 1])
        assert torch.allclose(alone[0], together[row], atol=1e-5)


@torch.no_grad()
def test_what_stands_in_the_padding_is_never_seen() -> None:
    network = small_network()
    source, target, lengths = ids(2, 8), ids(2, 5), torch.tensor([8, 3])
    other = source.clone()
    other[1, 3:] = 59
    assert torch.equal(network(source, lengths, target), network(other, lengths, target))


@torch.no_grad()
def test_a_position_never_sees_the_future() -> None:
    network = small_network()
    source, lengths, target = ids(1, 5), torch.tensor([5]), ids(1, 9)
    other = target.clone()
    other[0, 6:] = 7
    before, after = network(source, lengths, target), network(source, lengths, other)
    assert torch.allclose(before[:, :6], after[:, :6], atol=1e-6)
    assert not torch.allclose(before[:, 6:], after[:, 6:], atol=1e-3)


@torch.no_grad()
def test_cross_attention_keys_are_computed_once_and_never_change() -> None:
    network = small_network()
    source, lengths = ids(2, 6), torch.tensor([6, 4])
    state = network.start(network.encode(source, lengths), lengths)
    keys = [cache.cross_keys.clone() for cache in state.caches]
    for position in range(20):
        network.step(ids(2, 20)[:, position : position + 1], state)
    assert all(torch.equal(cache.cross_keys, key) for cache, key in zip(state.caches, keys, strict=True))
    assert state.caches[0].self_keys.shape == (2, 4, 20, 8)


def test_greedy_in_a_batch_equals_greedy_alone() -> None:
    network = small_network()
    source, lengths = ids(3, 9), torch.tensor([9, 5, 2])
    together = greedy(network, source, lengths, max_length=15)
    for row, length in enumerate(lengths.tolist()):
        alone = greedy(network, source[row : row + 1, :length], lengths[row : row + 1], max_length=15)
        assert alone[0] == together[row]


def test_greedy_never_emits_pad_or_bos() -> None:
    network = small_network(tie_embeddings=False)
    assert network.projection is not None
    with torch.no_grad():
        network.projection.weight[:2] *= 50.0
    rows = greedy(network, ids(8, 6), torch.full((8,), 6), max_length=20)
    assert not {0, 1} & {token for row in rows for token in row}


def test_gradients_reach_every_parameter() -> None:
    network = small_network(tie_embeddings=False).train()
    network(ids(2, 5), torch.tensor([5, 3]), ids(2, 4)).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())
