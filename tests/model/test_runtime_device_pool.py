"""Caches on a device, with the CPU as the device: bit for bit what caches in ordinary memory give."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.decode.batcher import BatcherLimits, decode_all
from model.decode.options import DecodeOptions
from model.errors import DecodeError
from model.runtime.device import Device
from model.runtime.device_memory import HostMemory
from model.runtime.device_pool import DevicePool, DevicePoolOptions, Size, step_up
from model.runtime.stepper import OnnxStepper
from tests.model.networks import exported, exported_copying, random_sources

MADE = exported("odd")
CONFIG = MADE.config
BOS = CONFIG.bos_id
SHORT, MIDDLE, LONG = random_sources(CONFIG, (3, 12, 40))

SMALL = DevicePoolOptions(least=Size(1, 16, 16))
PADDED = DevicePoolOptions(least=Size(8, 32, 32))
FORGETFUL = DevicePoolOptions(least=Size(1, 16, 16), kept_bytes=1)


def on_device(options: DevicePoolOptions = SMALL) -> OnnxStepper:
    plain = MADE.stepper()
    return OnnxStepper(CONFIG, plain.sessions, Device(CONFIG, HostMemory(), options))


def pool_of(stepper: OnnxStepper) -> DevicePool:
    (pool,) = stepper._pools.values()
    assert isinstance(pool, DevicePool)
    return pool


class Walk:
    """One random use of the four verbs, done with both kinds of memory at once."""

    def __init__(self, options: DevicePoolOptions, seed: int) -> None:
        self.steppers = (on_device(options), MADE.stepper())
        self.rng = np.random.default_rng(seed)
        self.slots: dict[int, list[tuple[int, int]]] = {1: [], 3: []}

    def some(self) -> tuple[int, list[tuple[int, int]]]:
        width = int(self.rng.choice([width for width, slots in self.slots.items() if slots]))
        slots = self.slots[width]
        chosen = self.rng.permutation(len(slots))[: self.rng.integers(1, len(slots) + 1)]
        return width, [slots[i] for i in chosen]

    def start(self) -> None:
        width = int(self.rng.choice([1, 3]))
        lengths = tuple(int(n) for n in self.rng.integers(1, 40, self.rng.integers(1, 5)))
        sources = random_sources(CONFIG, lengths, int(self.rng.integers(1 << 30)))
        self.slots[width] += zip(*(stepper.start(sources, width) for stepper in self.steppers), strict=True)

    def step(self) -> None:
        width, chosen = self.some()
        tokens = self.rng.integers(1, CONFIG.vocab_size, (len(chosen), width))
        k = int(self.rng.choice([1, 4, 6]))
        found, wanted = (
            stepper.step(list(slots), tokens, k)
            for stepper, slots in zip(self.steppers, zip(*chosen, strict=True), strict=True)
        )
        np.testing.assert_array_equal(found[1], wanted[1])
        np.testing.assert_array_equal(found[0], wanted[0])

    def reorder(self) -> None:
        width, chosen = self.some()
        parents = self.rng.integers(0, width, (len(chosen), width))
        for stepper, slots in zip(self.steppers, zip(*chosen, strict=True), strict=True):
            stepper.reorder(list(slots), parents)

    def finish(self) -> None:
        width, chosen = self.some()
        for stepper, slots in zip(self.steppers, zip(*chosen, strict=True), strict=True):
            stepper.finish(list(slots))
        self.slots[width] = [slot for slot in self.slots[width] if slot not in chosen]


@pytest.mark.parametrize("options", [SMALL, PADDED, FORGETFUL], ids=["small", "padded", "forgetful"])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_sequence_of_verbs_gives_the_same_bits_in_both_kinds_of_memory(options, seed):
    """Joining, leaving holes, filling them, growing, shrinking, and memory that is used again."""
    walk = Walk(options, seed)
    verbs = np.random.default_rng(seed).choice(["start", "step", "reorder", "finish"], 60, p=[0.12, 0.63, 0.13, 0.12])
    for verb in verbs:
        if verb == "start" or not any(walk.slots.values()):
            walk.start()
        else:
            getattr(walk, verb)()


@pytest.mark.parametrize("options", [SMALL, PADDED], ids=["small", "padded"])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_sentence_is_bit_equal_alone_and_in_any_company(options, beam_size):
    stepper = on_device(options)
    sources = random_sources(CONFIG, (3, 30, 7, 12, 25, 1, 18, 9, 40), seed=1)
    asked = DecodeOptions(beam_size=beam_size, max_length=24)

    def outcomes(order: list[int], slots: int) -> dict[int, list]:
        results = decode_all(stepper, [sources[i] for i in order], asked, BatcherLimits(max_slots=slots))
        return {i: [(h.ids, h.score) for h in result.hypotheses] for i, result in zip(order, results, strict=True)}

    straight = list(range(len(sources)))
    alone = outcomes(straight, 1)
    assert len({str(text) for text in alone.values()}) > len(sources) // 2
    assert outcomes(straight, 32) == alone
    assert outcomes(straight[::-1], 3) == alone


def test_what_lies_in_a_hole_disturbs_nobody():
    quiet, loud = on_device(PADDED), on_device(PADDED)
    slots = [stepper.start([SHORT, LONG, MIDDLE], 2) for stepper in (quiet, loud)]
    for stepper, (_, middle, _) in zip((quiet, loud), slots, strict=True):
        stepper.finish([middle])
    pool = pool_of(loud)
    occupied = set(pool._where.tolist())
    for name, _ in pool._cached():
        block, shape = pool._block(name, pool._size), pool._shape(name, pool._size)
        cache = block.keeper.view(np.float32).reshape(shape)
        for place in set(range(pool._size.rows)) - occupied:
            cache[place] = 1e4
    for token in (BOS, 7, 30):
        tokens = np.full((2, 2), token)
        found, wanted = (s.step([slot[0], slot[2]], tokens, 4) for s, slot in zip((loud, quiet), slots, strict=True))
        np.testing.assert_array_equal(found[0], wanted[0])
        np.testing.assert_array_equal(found[1], wanted[1])


def test_the_same_shape_has_the_same_binding_and_so_the_same_addresses():
    """What a CUDA graph was recorded over must still be there when it is replayed."""
    stepper = on_device()
    seen: dict[Size, set[int]] = {}
    for _ in range(3):
        slots = stepper.start([SHORT, LONG], 1)
        for _ in range(40):
            stepper.step(slots, np.full((2, 1), 9), 2)
            pool = pool_of(stepper)
            assert pool._last is not None
            seen.setdefault(pool._size, set()).add(id(pool._last))
        stepper.finish(slots)
    assert len(seen) > 2
    assert all(len(bindings) == 1 for bindings in seen.values())


def test_each_shape_and_each_k_records_a_graph_of_its_own():
    numbers = itertools.count(1)
    stepper = on_device(DevicePoolOptions(least=Size(1, 16, 16), next_graph=numbers.__next__))
    slots = stepper.start([SHORT], 1)
    for k in (2, 4, 2, 4):
        stepper.step(slots, np.array([[9]]), k)
    assert next(numbers) == 3  # two were taken
    (bound, other) = pool_of(stepper)._bounds.values()
    assert {b.options.get_run_config_entry("gpu_graph_id") for b in (bound, other)} == {"1", "2"}


def test_a_step_may_run_twice_and_gives_the_same(monkeypatch):
    """As the recording of a CUDA graph does."""
    once, twice = on_device(), on_device()
    slots = [stepper.start([MIDDLE, SHORT], 3) for stepper in (once, twice)]
    pool, tokens = pool_of(twice), np.full((2, 3), 11)

    class Repeating:
        def __getattr__(self, name):
            return getattr(MADE_SESSION, name)

        def run_with_iobinding(self, binding, options):
            for _ in range(3):
                MADE_SESSION.run_with_iobinding(binding, options)

    MADE_SESSION = pool._session  # noqa: N806
    monkeypatch.setattr(pool, "_session", Repeating())
    for _ in range(20):
        found, wanted = (stepper.step(slot, tokens, 4) for stepper, slot in zip((twice, once), slots, strict=True))
        np.testing.assert_array_equal(found[0], wanted[0])


def test_memory_of_an_idle_pool_is_kept_up_to_a_limit():
    stepper = on_device(DevicePoolOptions(least=Size(1, 16, 16), kept_bytes=1 << 20))
    slots = stepper.start([SHORT], 1)
    stepper.finish(slots)
    assert stepper.cache_bytes > 0
    pool_of(stepper).trim()
    assert stepper.cache_bytes > 0
    slots = stepper.start(random_sources(CONFIG, (150,) * 16), 1)
    assert stepper.cache_bytes > 1 << 20
    stepper.finish(slots)
    pool_of(stepper).trim()
    assert stepper.cache_bytes == 0


def test_the_attention_of_a_layer_comes_back_too():
    made = exported_copying()
    plain = made.stepper()
    device = OnnxStepper(made.config, plain.sessions, Device(made.config, HostMemory(), PADDED))
    sources = [source for source, _ in made.pairs][:3]
    found = []
    for stepper in (device, plain):
        slots = stepper.start(sources, 1, attending=True)
        stepper.step(slots, np.full((3, 1), made.config.bos_id), 2)
        found.append([stepper.attention(slots)[i, 0, : len(source)] for i, source in enumerate(sources)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_source_that_cannot_be_encoded_takes_no_slot():
    stepper = on_device()
    with pytest.raises(DecodeError, match="split it"):
        stepper.start([SHORT, [5] * 225], 1)
    assert stepper.cache_bytes == 0


@given(need=st.integers(1, 5000), least=st.sampled_from([1, 2, 8, 16, 32]))
def test_room_comes_in_few_sizes_and_is_at_most_half_too_large(need, least):
    room = step_up(need, least)
    assert need <= room <= max(least, 1.5 * need)
    assert room % max(least // 2, 1) == 0
    assert step_up(room, least) == room
