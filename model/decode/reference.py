"""The slow, obvious twins of the search and of a stepper, for proofs.

Both stand on a plain function: given a source and the target tokens so far, the log-probabilities of every next token.
Nothing is cached, nothing is batched, every history is computed in full.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from model.decode.constraints import SPARE
from model.decode.coverage import coverage_penalty
from model.decode.options import DecodeOptions, Hypothesis, Sampling, SpecialIds
from model.decode.sampling import stream_of, uniform
from model.decode.search import length_penalty
from model.decode.stepper import Attention, LogProbs, Tokens
from model.errors import DecodeError

History = tuple[int, ...]
Language = Callable[[History, History], NDArray[np.float32]]
"""(source, target so far without BOS) -> log-probabilities (V,); -inf for what can't follow."""
Gaze = Callable[[History, History], Attention]
"""(source, target so far without BOS) -> what the token that follows attends to, (S)."""


def reference_search(
    language: Language,
    source: History,
    options: DecodeOptions,
    limit: int,
    special: SpecialIds | None = None,
    gaze: Gaze | None = None,
) -> tuple[Hypothesis, ...]:
    """What a batcher must find. Ranks the whole vocabulary, never stops early, looks through every history in full.

    A coverage penalty and an alignment need `gaze`.
    """
    eos, scores = (special or SpecialIds()).eos_id, _Scores(options, source, gaze)
    width, rules = options.beam_size, _Rules(options, source, limit, eos)
    alive: list[tuple[float, History, tuple[float, ...]]] = [(0.0, (), ())]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates = []
        for lane, (log_prob, history, _) in enumerate(alive):
            for token, more in enumerate(rules.apply(language(source, history), history).tolist()):
                if more > -math.inf:
                    candidates.append((-(log_prob + more), lane, -more, token))
        best = sorted(candidates)[: 2 * width if width > 1 else 1]
        for total, lane, more, token in best[:width]:
            if token == eos:
                _, history, gains = alive[lane]
                finished.append(Hypothesis(history, -total, scores.of(-total, history, length), False, (*gains, -more)))
        alive = [
            (-total, (*alive[lane][1], token), (*alive[lane][2], -more))
            for total, lane, more, token in best
            if token != eos
        ][:width]
        if not alive:
            break
    finished.sort(key=lambda hypothesis: -hypothesis.score)
    truncated = [
        Hypothesis(history, log_prob, scores.of(log_prob, history, limit), True, gains)
        for log_prob, history, gains in alive
    ]
    truncated.sort(key=lambda hypothesis: -hypothesis.score)
    found = [*finished, *truncated][: options.n_best]
    if options.alignment:
        found = [replace(each, attention=scores.attention(each.ids)) for each in found]
    return tuple(found if options.token_scores else [replace(each, token_log_probs=()) for each in found])


@dataclass(frozen=True)
class _Scores:
    """What a hypothesis is ranked by, and what it attends to, looked at from its beginning each time."""

    options: DecodeOptions
    source: History
    gaze: Gaze | None

    def of(self, log_prob: float, history: History, length: int) -> float:
        """The score of a hypothesis of `length` tokens, EOS included if it has one."""
        score = log_prob / length_penalty(length, self.options.length_penalty)
        if not self.options.coverage_penalty or self.gaze is None:
            return score
        coverage = self.gaze(self.source, ())
        for step in range(1, length):
            coverage = coverage + self.gaze(self.source, history[:step])
        return score + coverage_penalty(coverage, self.options.coverage_penalty)

    def attention(self, ids: History) -> tuple[tuple[float, ...], ...]:
        """What each of the ids attends to."""
        if self.gaze is None:
            return ()
        return tuple(tuple(self.gaze(self.source, ids[:step]).tolist()) for step in range(len(ids)))


@dataclass(frozen=True)
class _Rules:
    """What steering must come to, with the whole vocabulary and the whole history before its eyes."""

    options: DecodeOptions
    source: History
    limit: int
    eos: int

    def apply(self, log_probs: NDArray[np.float32], history: History) -> NDArray[np.float32]:
        """The log-probabilities (V,) of what may follow `history`."""
        options, changed = self.options, log_probs.copy()
        if len(history) < len(options.prefix):
            changed[:] = -np.inf
            changed[options.prefix[len(history)]] = 0.0
            return changed
        for token in set(history):
            changed[token] = np.float32(float(changed[token]) * options.repetition_penalty)
        changed[[token for token in range(len(changed)) if self._bans((*history, token))]] = -np.inf
        if np.isneginf(changed).all():
            changed[self.eos] = log_probs[self.eos]
        if carried := options.carried(self.source):
            changed = self._without_wrong(changed, history, carried)
        if options.sampling is not None:
            chance = uniform(options.sampling.seed, stream_of(self.source), len(history))
            drawn = _drawn(changed.tolist(), options.sampling, chance)
            changed[[token for token in range(len(changed)) if token != drawn]] = -np.inf
        return changed

    def _without_wrong(
        self, changed: NDArray[np.float32], history: History, carried: Counter[int]
    ) -> NDArray[np.float32]:
        """The best n + SPARE of `changed`, without those that would carry something too often or leave it behind."""
        sampling, wanted = self.options.sampling, 1 if self.options.beam_size == 1 else 2 * self.options.beam_size
        if sampling is not None:
            wanted = sampling.top_k or len(changed)
        best = np.argsort(-changed, kind="stable")[: wanted + SPARE].tolist()

        def wrong(token: int) -> bool:
            if token == self.eos:
                return any(history.count(word) < count for word, count in carried.items())
            return token in self.options.carry and history.count(token) >= carried[token]

        right = [token for token in best if not wrong(token) and changed[token] > -np.inf]
        kept = np.full_like(changed, -np.inf)
        kept[(right or best)[:wanted]] = changed[(right or best)[:wanted]]
        return kept

    def _bans(self, target: History) -> bool:
        """Whether the last token of `target` breaks a rule."""
        n, shortest = self.options.no_repeat_ngram, min(self.options.min_length, self.limit)
        ngrams = [target[start : start + n] for start in range(len(target) - n + 1)]
        early = target[-1] == self.eos and len(target) < shortest
        repeated = n > 0 and len(ngrams) > 1 and ngrams[-1] in ngrams[:-1]
        return early or repeated or any(target[-len(sequence) :] == sequence for sequence in self.options.suppress)


def _drawn(log_probs: list[float], sampling: Sampling, chance: float) -> int:
    """The token on which `chance` falls when the probabilities lie side by side, the likeliest first."""
    order = sorted((-log_prob, token) for token, log_prob in enumerate(log_probs) if log_prob > -math.inf)
    if not order:
        return 0
    kept = [
        (math.exp((order[0][0] - cost) / sampling.temperature), token)
        for cost, token in order[: sampling.top_k or None]
    ]
    whole, nucleus, held = sum(share for share, _ in kept), [], 0.0
    for share, token in kept:
        nucleus.append((share, token))
        held += share
        if held >= sampling.top_p * whole:
            break
    passed = 0.0
    for share, token in nucleus:
        passed += share
        if passed > chance * held:
            return token
    return nucleus[-1][1]


def forced_log_prob(
    language: Language, source: History, hypothesis: Hypothesis, special: SpecialIds | None = None
) -> float:
    """Log-probability of a given translation, token by token: what `Hypothesis.log_prob` must equal."""
    end = () if hypothesis.truncated else ((special or SpecialIds()).eos_id,)
    target, total = (*hypothesis.ids, *end), 0.0
    for position, token in enumerate(target):
        total += float(language(source, target[:position])[token])
    return total


class ReferenceStepper:
    """A `Stepper` over a plain function. It checks its driver: every breach of the protocol is noted and raised."""

    def __init__(
        self,
        language: Language,
        vocab_size: int,
        max_positions: int = 64,
        special: SpecialIds | None = None,
        gaze: Gaze | None = None,
    ) -> None:
        """Without `gaze` it does not attend."""
        self._language = language
        self._gaze = gaze
        self._special = special or SpecialIds()
        self._sources: dict[int, History] = {}
        self._lanes: dict[int, list[History]] = {}
        self._kinds: dict[int, tuple[bool, bool]] = {}
        self._stepped: list[int] = []
        self.vocab_size = vocab_size
        self.max_positions = max_positions
        self.breaches: list[str] = []
        """What the driver did wrong; kept, for a driver may swallow what is raised."""
        self.calls: list[tuple[str, int]] = []
        """Each verb called, with its number of slots."""

    @property
    def slots(self) -> dict[int, int]:
        """Width of every slot in use."""
        return {slot: len(lanes) for slot, lanes in self._lanes.items()}

    @property
    def attends(self) -> bool:
        """See `Stepper.attends`."""
        return self._gaze is not None

    def start(
        self, sources: Sequence[Sequence[int]], width: int, apart: bool = False, attending: bool = False
    ) -> list[int]:
        """See `Stepper.start`."""
        self._note("start", len(sources))
        self._demand(len(sources) > 0 and width > 0, "start needs a source and a lane")
        self._demand(self.attends or not attending, "only a stepper that attends has attending slots")
        for source in sources:
            if not 1 <= len(source) <= self.max_positions or not all(0 <= token < self.vocab_size for token in source):
                raise DecodeError(f"a source must be 1..{self.max_positions} ids of the vocabulary, but is {source}.")
        slots = []
        for source in sources:
            slot = next(number for number in range(len(self._lanes) + 1) if number not in self._lanes)
            # The history holds BOS once it was fed; before that it is empty.
            self._sources[slot], self._lanes[slot] = tuple(source), [()] * width
            self._kinds[slot] = (apart, attending)
            slots.append(slot)
        return slots

    def step(self, slots: Sequence[int], tokens: Tokens, k: int) -> tuple[LogProbs, Tokens]:
        """See `Stepper.step`."""
        self._note("step", len(slots))
        self._check_slots(slots)
        widths = {len(self._lanes[slot]) for slot in slots}
        self._demand(len(widths) == 1, f"all slots of a step must have one width, but have {sorted(widths)}")
        self._demand(len({self._kinds[slot] for slot in slots}) == 1, "slots of one kind must step apart from others")
        width = widths.pop()
        self._demand(tokens.shape == (len(slots), width), f"tokens must be {(len(slots), width)}, not {tokens.shape}")
        log_probs = np.full((len(slots), width, k), -np.inf, np.float32)
        ids = np.zeros((len(slots), width, k), np.int64)
        for row, slot in enumerate(slots):
            for lane in range(width):
                history = self._feed(slot, lane, int(tokens[row, lane]))
                scores = self._language(self._sources[slot], history[1:])
                best = np.argsort(-scores, kind="stable")[:k]  # (V,) -> (k,)
                log_probs[row, lane, : len(best)], ids[row, lane, : len(best)] = scores[best], best
        self._stepped = list(slots)
        return log_probs, ids

    def attention(self, slots: Sequence[int]) -> Attention:
        """See `Stepper.attention`."""
        self._demand(list(slots) == self._stepped, "attention is asked of the slots that have just stepped")
        self._demand(all(self._kinds[slot][1] for slot in slots), "attention is asked of attending slots only")
        self._note("attention", len(slots))
        assert self._gaze is not None
        shape = (len(slots), len(self._lanes[slots[0]]), max(len(self._sources[slot]) for slot in slots))
        found = np.zeros(shape, np.float32)
        for row, slot in enumerate(slots):
            source = self._sources[slot]
            for lane, history in enumerate(self._lanes[slot]):
                found[row, lane, : len(source)] = self._gaze(source, history[1:])
        return found

    def reorder(self, slots: Sequence[int], parents: Tokens) -> None:
        """See `Stepper.reorder`."""
        self._note("reorder", len(slots))
        self._check_slots(slots)
        for slot, row in zip(slots, parents.tolist(), strict=True):
            lanes = self._lanes[slot]
            self._demand(len(row) == len(lanes) and all(0 <= lane < len(lanes) for lane in row), f"no parents: {row}")
            self._lanes[slot] = [lanes[parent] for parent in row]

    def finish(self, slots: Sequence[int]) -> None:
        """See `Stepper.finish`."""
        self._note("finish", len(slots))
        self._check_slots(slots)
        for slot in slots:
            del self._sources[slot], self._lanes[slot], self._kinds[slot]

    def _note(self, verb: str, slots: int) -> None:
        self.calls.append((verb, slots))
        self._stepped = []

    def _feed(self, slot: int, lane: int, token: int) -> History:
        history = (*self._lanes[slot][lane], token)
        first = token == self._special.bos_id
        self._demand(first == (len(history) == 1), "BOS must be fed first, and only first")
        self._demand(len(history) <= self.max_positions, f"position {len(history) - 1} is beyond max_positions")
        self._demand(0 <= token < self.vocab_size, f"token {token} is not in the vocabulary")
        self._lanes[slot][lane] = history
        return history

    def _check_slots(self, slots: Sequence[int]) -> None:
        self._demand(len(slots) > 0 and len(set(slots)) == len(slots), f"slots must be some, each once: {slots}")
        self._demand(all(slot in self._lanes for slot in slots), f"slots must be in use: {slots}")

    def _demand(self, kept: bool, rule: str) -> None:
        if not kept:
            self.breaches.append(rule)
            raise RuntimeError(rule)
