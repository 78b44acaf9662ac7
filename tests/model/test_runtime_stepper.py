"""OnnxStepper against its slow twin, and what it promises about batches, caches and memory."""

from __future__ import annotations

import gc
import hashlib

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import ModelConfig
from model.decode.batcher import BatcherLimits, decode_all
from model.decode.options import DecodeOptions, SpecialIds
from model.decode.reference import ReferenceStepper
from model.errors import DecodeError
from model.export.compare import full_pass_language
from model.ports import decoder_ports
from model.runtime import sessions
from model.runtime import stepper as stepper_module
from model.runtime.pool import Pool
from model.runtime.sessions import RuntimeOptions
from model.runtime.stepper import RUN_TOKENS, OnnxStepper, by_length
from tests.model.networks import TEXTS, VARIANTS, exported, random_sources, train_tokenizer

pytestmark = pytest.mark.usefixtures("each_set_of_operators")

BOS = 1
MADE = exported("odd")
CONFIG = MADE.config
SHORT, MIDDLE, LONG = random_sources(CONFIG, (3, 12, 40))


def bos(rows: int, width: int = 1) -> np.ndarray:
    return np.full((rows, width), BOS)


def follow(stepper: OnnxStepper, slots: list[int], tokens: list[int]) -> np.ndarray:
    """Feed the same tokens to every slot (of one lane); the best log-probabilities of each step, (T, R, 5)."""
    return np.stack([stepper.step(slots, np.full((len(slots), 1), token), 5)[0][:, 0].copy() for token in tokens])


def pools(stepper: OnnxStepper) -> list[Pool]:
    return list(stepper._pools.values())


# --- against the slow twin -------------------------------------------------------------------------------------------


class Walk:
    """One random use of the four verbs, done to the fast stepper and to its slow twin at once."""

    def __init__(self, config: ModelConfig, fast: OnnxStepper, slow: ReferenceStepper, seed: int) -> None:
        self.config, self.fast, self.slow = config, fast, slow
        self.rng = np.random.default_rng(seed)
        self.slots: list[tuple[int, int, int, int]] = []  # fast slot, slow slot, width, steps taken

    def some(self, width: int) -> list[int]:
        """Places in `slots` of some sentences of one width, in any order."""
        places = [i for i, slot in enumerate(self.slots) if slot[2] == width]
        return list(self.rng.permutation(places)[: self.rng.integers(1, len(places) + 1)])

    def start(self) -> None:
        width = int(self.rng.choice([1, 3]))
        lengths = tuple(int(n) for n in self.rng.integers(1, 30, self.rng.integers(1, 4)))
        sources = random_sources(self.config, lengths, int(self.rng.integers(1 << 30)))
        pairs = zip(self.fast.start(sources, width), self.slow.start(sources, width), strict=True)
        self.slots += [(fast, slow, width, 0) for fast, slow in pairs]

    def step(self) -> None:
        width = self.slots[self.rng.integers(len(self.slots))][2]
        chosen = self.some(width)
        tokens = self.rng.integers(2, self.config.vocab_size, (len(chosen), width))
        for row, place in enumerate(chosen):
            if self.slots[place][3] == 0:
                tokens[row] = BOS
        fast, fast_ids = self.fast.step([self.slots[i][0] for i in chosen], tokens, 4)
        slow, slow_ids = self.slow.step([self.slots[i][1] for i in chosen], tokens, self.config.vocab_size)
        np.testing.assert_allclose(fast, slow[:, :, :4], atol=1e-4)
        # Two tokens that are nearly equal may change places, but each has its own value.
        by_id = np.take_along_axis(slow, np.argsort(slow_ids, axis=-1), axis=-1)
        np.testing.assert_allclose(fast, np.take_along_axis(by_id, fast_ids, axis=-1), atol=1e-4)
        for place in chosen:
            slot, twin, _, steps = self.slots[place]
            self.slots[place] = (slot, twin, width, steps + 1)

    def reorder(self) -> None:
        begun = [slot for slot in self.slots if slot[2] == 3 and slot[3] > 0]
        if begun:
            parents = self.rng.integers(0, 3, (len(begun), 3))
            self.fast.reorder([slot[0] for slot in begun], parents)
            self.slow.reorder([slot[1] for slot in begun], parents)

    def finish(self) -> None:
        width = self.slots[self.rng.integers(len(self.slots))][2]
        chosen = set(self.some(width))
        self.fast.finish([self.slots[i][0] for i in chosen])
        self.slow.finish([self.slots[i][1] for i in chosen])
        self.slots = [slot for i, slot in enumerate(self.slots) if i not in chosen]


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_sequence_of_verbs_gives_what_the_slow_twin_gives(variant, seed):
    """Rows of any age in one step, subsets in any order, reordering, holes, growth and shrinking."""
    made = exported(variant)
    special = SpecialIds(bos_id=made.config.bos_id, eos_id=made.config.eos_id)
    slow = ReferenceStepper(
        full_pass_language(made.network), made.config.vocab_size, made.config.max_positions, special
    )
    walk = Walk(made.config, made.stepper(), slow, seed)
    for verb in np.random.default_rng(seed).choice(["start", "step", "reorder", "finish"], 40, p=[0.1, 0.6, 0.2, 0.1]):
        if verb == "start" or not walk.slots:
            walk.start()
        else:
            getattr(walk, verb)()
    assert walk.slow.breaches == []


# --- batch invariance ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> list[list[int]]:
    """Real sentences of very different lengths, in ids below every tiny vocabulary."""
    from model.tokenizer import Tokenizer

    tokenizer = Tokenizer(train_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    return [[min(i, CONFIG.vocab_size - 1) for i in tokenizer.encode(text)] for text in TEXTS]


@pytest.mark.parametrize("precision", ["f32", "int8"])
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_sentence_is_bit_equal_alone_in_any_batch_and_in_any_order(texts, variant, beam_size, precision):
    stepper = exported(variant).stepper(precision)
    options = DecodeOptions(beam_size=beam_size, n_best=beam_size, max_length=24)

    def outcomes(order: np.ndarray, limits: BatcherLimits) -> list:
        results = decode_all(stepper, [texts[i] for i in order], options, limits)
        found = {int(i): [(h.ids, h.score) for h in r.hypotheses] for i, r in zip(order, results, strict=True)}
        return [found[i] for i in range(len(order))]

    straight = np.arange(len(texts))
    alone = outcomes(straight, BatcherLimits(max_slots=1))
    assert len({str(text) for text in alone}) > len(texts) // 3
    assert outcomes(straight, BatcherLimits()) == alone
    for seed in range(2):
        shuffled = np.random.default_rng(seed).permutation(len(texts))
        assert outcomes(shuffled, BatcherLimits(max_slots=3 + seed)) == alone


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_a_row_that_joins_late_is_bit_equal_to_one_that_ran_alone(precision):
    tokens = [BOS, 20, 21, 22, 23]
    stepper = MADE.stepper(precision)
    alone = follow(stepper, stepper.start([SHORT], 1), tokens)
    others = stepper.start([LONG, MIDDLE], 1)
    follow(stepper, others, [BOS, *range(30, 60)])
    late = stepper.start([SHORT], 1)
    beside = []
    for token in tokens:
        log_probs, _ = stepper.step([*others, *late], np.array([[40], [41], [token]]), 5)
        beside.append(log_probs[2:, 0].copy())
    np.testing.assert_array_equal(np.stack(beside), alone)


def test_rows_that_sit_out_a_step_are_not_touched_by_it():
    stepper = MADE.stepper()
    expected = follow(stepper, stepper.start([MIDDLE], 1), [BOS, 5, 6, 7])
    idle, busy = stepper.start([MIDDLE, LONG], 1)
    first = follow(stepper, [idle], [BOS, 5])
    follow(stepper, [busy], [BOS, *range(4, 40)])
    rest = follow(stepper, [idle], [6, 7])
    np.testing.assert_array_equal(np.concatenate([first, rest]), expected)


@given(lengths=st.lists(st.integers(1, 200), min_size=1, max_size=40))
def test_sources_are_encoded_with_others_of_their_length(lengths):
    groups = by_length(lengths)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))

    def padded(rows: list[int]) -> int:
        return len(rows) * max(lengths[i] for i in rows)

    assert sum(map(padded, groups)) + RUN_TOKENS * (len(groups) - 1) <= padded(list(range(len(lengths))))
    for group in groups:
        ordered = sorted(group, key=lengths.__getitem__)
        for cut in range(1, len(ordered)):
            parts = padded(ordered[:cut]) + padded(ordered[cut:])
            assert padded(group) - parts < RUN_TOKENS


def test_slots_come_in_the_order_of_the_sources_however_they_were_encoded():
    stepper = MADE.stepper()
    sources = random_sources(CONFIG, (40, 3, 90, 3, 41))
    together = stepper.start(sources, 1)
    assert len(by_length([len(source) for source in sources])) > 1
    apart = [stepper.start([source], 1)[0] for source in sources]
    np.testing.assert_array_equal(follow(stepper, together, [BOS, 5]), follow(stepper, apart, [BOS, 5]))


# --- the cache -------------------------------------------------------------------------------------------------------


def test_the_cache_is_written_in_place_and_every_bound_array_is_contiguous():
    stepper = MADE.stepper()
    slots = stepper.start([SHORT, MIDDLE, LONG], 4)
    (pool,) = pools(stepper)
    addresses = {name: array.ctypes.data for name, array in pool._arrays.items()}
    key = pool._arrays["past_key_0"]
    assert not key[:3].any()
    stepper.step(slots, bos(3, 4), 8)
    written = key[:3, :, :4].copy()
    assert written.all()
    assert not key[:3, :, 4:].any()
    stepper.step(slots, np.full((3, 4), 9), 8)
    np.testing.assert_array_equal(key[:3, :, :4], written)
    assert key[:3, :, 4:8].all()
    assert {name: array.ctypes.data for name, array in pool._arrays.items()} == addresses
    assert all(array.flags.c_contiguous for array in pool._arrays.values())


def test_the_runtime_does_not_copy_the_cache_either(monkeypatch, capfd, each_set_of_operators):
    """ONNX Runtime warns when a cache write that could be in place is not; here its warnings are let through."""
    if each_set_of_operators == "native":
        pytest.skip("the native operator asks for its outputs itself and copies only what is not the same buffer")

    def talkative(options: RuntimeOptions, settings=sessions._settings) -> ort.SessionOptions:
        talking = settings(options)
        talking.log_severity_level = 2
        return talking

    monkeypatch.setattr(sessions, "_settings", talkative)
    stepper = MADE.stepper()
    follow(stepper, stepper.start([SHORT, LONG], 1), [BOS, *range(4, 30)])
    assert "in-place" not in capfd.readouterr().err
    sheet = decoder_ports(CONFIG)
    sizes = {"rows": 1, "lanes": 1, "capacity": 8, "source": 4}
    feeds = {port.name: np.ones([sizes.get(axis, axis) for axis in port.axes], port.dtype) for port in sheet.inputs}
    stepper.sessions.decoder.run(None, feeds)  # unbound, so that we know what it would have said
    assert "in-place" in capfd.readouterr().err


def test_cross_keys_and_values_are_the_same_at_the_first_step_and_the_twentieth():
    stepper = MADE.stepper()
    slots = stepper.start([SHORT, LONG], 2)
    (pool,) = pools(stepper)

    def digest() -> str:
        cross = [array for name, array in sorted(pool._arrays.items()) if name.startswith("cross_")]
        return hashlib.sha256(b"".join(array[:2].tobytes() for array in cross)).hexdigest()

    before = digest()
    for token in (BOS, *range(4, 24)):
        stepper.step(slots, np.full((2, 2), token), 4)
    assert digest() == before


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_bound_buffers_give_what_a_plain_run_gives(rows, width):
    stepper = MADE.stepper()
    slots = stepper.start([SHORT, MIDDLE, LONG, SHORT][:rows], width)
    rng = np.random.default_rng(width)
    (pool,) = pools(stepper)
    for step in range(4):
        tokens = bos(rows, width) if step == 0 else rng.integers(4, 300, (rows, width))
        before = {name: array[:rows].copy() for name, array in pool._arrays.items() if name != "next"}
        log_probs, ids = stepper.step(slots, tokens, 2 * width)
        changed = ("tokens", "positions", "write_index", "visible")
        feeds = before | {name: pool._arrays[name][:rows] for name in changed} | {"k": np.array([2 * width])}
        plain = stepper.sessions.decoder.run(None, feeds)
        np.testing.assert_array_equal(plain[0], log_probs)
        np.testing.assert_array_equal(plain[1], ids)
        for (past, _), present in zip(pool._caches, plain[2:], strict=True):
            np.testing.assert_array_equal(pool._arrays[past][:rows], present)
        stepper.reorder(slots, rng.integers(0, width, (rows, width)))


def test_each_step_feeds_one_token_a_lane_whatever_the_age(monkeypatch):
    stepper = MADE.stepper()
    slots = stepper.start([SHORT], 1)
    shapes = []
    monkeypatch.setattr(
        Pool, "_bind", lambda self, k, bind=Pool._bind: shapes.append(self._arrays["tokens"].shape[1]) or bind(self, k)
    )
    follow(stepper, slots, [BOS, *range(4, 70)])
    assert set(shapes) == {1}
    assert len(shapes) == 1 + 66 // 16  # one binding for each size of the cache, not one for each step


def test_reordering_copies_no_key():
    stepper = MADE.stepper()
    slots = stepper.start([MIDDLE], 3)
    stepper.step(slots, bos(1, 3), 6)
    stepper.step(slots, np.array([[7, 8, 9]]), 6)
    (pool,) = pools(stepper)
    before = {past: pool._arrays[past].copy() for past, _ in pool._caches}
    stepper.reorder(slots, np.array([[2, 2, 0]]))
    assert all(np.array_equal(pool._arrays[past], before[past]) for past in before)
    log_probs, _ = stepper.step(slots, np.array([[11, 11, 11]]), 6)
    np.testing.assert_array_equal(log_probs[0, 0], log_probs[0, 1])
    assert not np.array_equal(log_probs[0, 0], log_probs[0, 2])


# --- memory ----------------------------------------------------------------------------------------------------------


def test_memory_of_a_large_request_is_given_back(monkeypatch):
    monkeypatch.setattr(stepper_module, "KEPT_BYTES", 1 << 20)  # these networks are tiny, and so is large for them
    stepper = MADE.stepper()

    def small() -> int:
        slots = stepper.start([SHORT], 1)
        follow(stepper, slots, [BOS, 5, 6])
        used = stepper.cache_bytes
        stepper.finish(slots)
        return used

    before = small()
    large = stepper.start(random_sources(CONFIG, (200,) * 32), 1)
    follow(stepper, large, [BOS, *range(4, 104)])
    assert stepper.cache_bytes > 50 * before
    stepper.finish(large)
    gc.collect()
    assert small() == before
    assert stepper.cache_bytes <= before


def test_what_empty_pools_keep_is_bounded_over_all_of_them(monkeypatch):
    stepper = MADE.stepper()
    sizes = []
    for width in (1, 2, 1):
        stepper.finish(stepper.start(random_sources(CONFIG, (40,) * 8), width))
        sizes.append({pool.width: pool.nbytes for pool in pools(stepper)})
    assert sizes[1] == sizes[2]
    assert all(sizes[2].values())
    monkeypatch.setattr(stepper_module, "KEPT_BYTES", max(sizes[2].values()))
    stepper.finish(stepper.start(random_sources(CONFIG, (40,) * 8), 2))
    assert {pool.width: pool.nbytes for pool in pools(stepper)} == {1: 0, 2: sizes[2][2]}


def test_a_pool_shrinks_while_a_small_sentence_still_runs():
    stepper = MADE.stepper()
    small = stepper.start([SHORT], 1)
    expected = follow(stepper, small, [BOS, 5, 6])
    other = stepper.start([SHORT], 1)
    large = stepper.start(random_sources(CONFIG, (200,) * 16), 1)
    follow(stepper, large, [BOS, *range(4, 104)])
    most = stepper.cache_bytes
    stepper.finish(large)
    assert stepper.cache_bytes < most / 20
    np.testing.assert_array_equal(follow(stepper, other, [BOS, 5, 6]), expected)


def test_slots_are_given_out_and_taken_back_without_end():
    stepper = MADE.stepper()
    sizes = set()
    for round_ in range(30):
        slots = stepper.start([SHORT, MIDDLE], 2)
        stepper.step(slots, bos(2, 2), 4)
        stepper.finish(slots if round_ % 2 else slots[::-1])
        sizes.add(stepper.cache_bytes)
    assert len(sizes) == 1
    assert pools(stepper)[0].count == 0


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "says"),
    [([], "1..224 tokens"), ([5] * 225, "225; split it"), ([5, 300, 2], r"in \[0, 300\)"), ([-1, 2], r"in \[0, 300\)")],
)
def test_a_source_that_cannot_be_encoded_is_refused_and_takes_no_slot(source, says):
    stepper = MADE.stepper()
    with pytest.raises(DecodeError, match=says):
        stepper.start([SHORT, source], 1)
    assert not any(pool.count for pool in pools(stepper))


def test_no_sources_take_no_slots():
    assert MADE.stepper().start([], 1) == []


def test_a_slot_without_lanes_is_refused():
    with pytest.raises(DecodeError, match="at least one lane"):
        MADE.stepper().start([SHORT], 0)


@pytest.mark.parametrize(
    ("tokens", "k", "says"),
    [
        (bos(1), 4, r"shape \(2, 1\)"),
        (bos(2, 2), 4, r"shape \(2, 1\)"),
        (np.array([[1], [300]]), 4, r"in \[0, 300\)"),
        (np.array([[1], [-1]]), 4, r"in \[0, 300\)"),
        (bos(2), 0, "k must be"),
        (bos(2), 301, "k must be"),
    ],
)
def test_a_step_that_makes_no_sense_is_refused(tokens, k, says):
    stepper = MADE.stepper()
    slots = stepper.start([SHORT, MIDDLE], 1)
    with pytest.raises(DecodeError, match=says):
        stepper.step(slots, tokens, k)


def test_slots_of_two_widths_do_not_step_together():
    stepper = MADE.stepper()
    slots = [*stepper.start([SHORT], 1), *stepper.start([SHORT], 2)]
    with pytest.raises(DecodeError, match="same number of lanes"):
        stepper.step(slots, bos(2), 1)


@pytest.mark.parametrize(("slots", "says"), [([], "at least one"), ([0, 0], "twice"), ([0, 99], "slot 99")])
def test_slots_that_are_not_there_are_refused(slots, says):
    stepper = MADE.stepper()
    stepper.start([SHORT], 1)
    with pytest.raises(DecodeError, match=says):
        stepper.step(slots, bos(len(slots)), 1)


def test_a_finished_slot_cannot_be_used_again():
    stepper = MADE.stepper()
    slots = stepper.start([SHORT], 1)
    stepper.finish(slots)
    with pytest.raises(DecodeError, match="not in use"):
        stepper.step(slots, bos(1), 1)
    with pytest.raises(DecodeError, match="not in use"):
        stepper.finish(slots)


@pytest.mark.parametrize("parents", [[[0, 1, 0]], [[0, 2]], [[-1, 0]], [[0, 0], [0, 0]]])
def test_parents_that_are_no_lanes_are_refused(parents):
    stepper = MADE.stepper()
    slots = stepper.start([SHORT], 2)
    with pytest.raises(DecodeError, match="parents must be lanes"):
        stepper.reorder(slots, np.array(parents))


def test_a_target_ends_with_the_positions_and_its_neighbours_go_on():
    stepper = MADE.stepper()
    full, other = stepper.start([SHORT, MIDDLE], 1)
    follow(stepper, [full], [BOS, *[5] * (CONFIG.max_positions - 1)])
    with pytest.raises(DecodeError, match="within 224 positions"):
        stepper.step([full], np.array([[5]]), 1)
    fresh = stepper.start([MIDDLE], 1)
    np.testing.assert_array_equal(follow(stepper, [other], [BOS, 6]), follow(stepper, fresh, [BOS, 6]))


def test_the_stepper_says_what_it_can_do(each_set_of_operators):
    stepper = MADE.stepper()
    assert stepper.operators == each_set_of_operators
    assert (stepper.vocab_size, stepper.max_positions, stepper.provider) == (300, 224, "cpu")
