"""The bookkeeping of a search: which hypotheses live, which have finished, and when nothing better can come.

A search holds R sentences of one width W at any age; numpy does the work of all of them at once. It knows no network:
the batcher carries candidates in and parents out. A sentence's result depends on its own candidates alone.

Order is total, so results are reproducible: candidates of equal log-probability go to the lower lane, then to the
lower id; of finished hypotheses of equal score the one that finished first stays ahead.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model.decode.coverage import coverage_penalty
from model.decode.options import DecodeOptions, Hypothesis, SpecialIds
from model.decode.stepper import ROUNDING, Attention, LogProbs, Tokens
from model.errors import DecodeError


def length_penalty(length: int, alpha: float) -> float:
    """((5 + |y|) / 6)^α with |y| = `length`, EOS counted (Wu et al., 2016, equation 14; paper, section 6.1)."""
    return float(((5.0 + length) / 6.0) ** alpha)


class Advance(NamedTuple):
    """What one step changed."""

    parents: Tokens | None
    """(R, W): the lane whose history each lane now carries on; None where every lane carries on its own."""
    ended: list[int]
    """Rows whose search is over, ascending."""


class Search(ABC):
    """R sentences of `width` lanes each, rows in the order they entered."""

    width: int
    candidates: int
    """k: how many continuations of each lane `advance` wants."""
    tokens: Tokens
    """(R, W): what to feed next."""

    @abstractmethod
    def enter(self, sentences: Sequence[tuple[DecodeOptions, int]]) -> None:
        """Append a row for each (options, most target tokens)."""

    @abstractmethod
    def advance(self, log_probs: LogProbs, ids: Tokens, attention: Sequence[Attention] | None = None) -> Advance:
        """Take the candidates of one step, (R, W, k) each, best first.

        Where coverage counts, also what the lanes of each row attended to in it, R times (W, S), in every step.
        """

    @abstractmethod
    def histories(self, row: int) -> list[Sequence[int]]:
        """The target ids of each lane of a row so far, without BOS; those of a dead lane mean nothing."""

    @abstractmethod
    def outcome(self, row: int) -> tuple[Hypothesis, ...]:
        """The hypotheses of an ended row, best first: finished ones, then truncated ones.

        At most n_best; fewer where there are no more. Raises `DecodeError` when the network gave no usable numbers.
        """

    @abstractmethod
    def leave(self, rows: Collection[int]) -> None:
        """Drop rows; the others keep their order."""


def open_search(width: int, special: SpecialIds) -> Search:
    """The search of `width` lanes: greedy for one, beam for more."""
    return GreedySearch(special) if width == 1 else BeamSearch(width, special)


@dataclass(slots=True)
class _Line:
    """One sentence of a greedy search."""

    options: DecodeOptions
    limit: int
    ids: list[int] = field(default_factory=list)
    token_log_probs: list[float] = field(default_factory=list)
    log_prob: float = 0.0
    broken: bool = False


class GreedySearch(Search):
    """The most likely token at each step, until EOS."""

    def __init__(self, special: SpecialIds) -> None:
        self.width = 1
        self.candidates = 1
        self.tokens = np.empty((0, 1), np.int64)
        self._special = special
        self._lines: list[_Line] = []

    def enter(self, sentences: Sequence[tuple[DecodeOptions, int]]) -> None:
        """See `Search.enter`."""
        self._lines += [_Line(options, limit) for options, limit in sentences]
        first = np.full((len(sentences), 1), self._special.bos_id, np.int64)
        self.tokens = np.concatenate((self.tokens, first))  # (R, 1), (N, 1) -> (R + N, 1)

    def advance(self, log_probs: LogProbs, ids: Tokens, attention: Sequence[Attention] | None = None) -> Advance:
        """See `Search.advance`."""
        self.tokens = ids[:, :, 0].copy()  # (R, 1, k) -> (R, 1); a copy, for the stepper may reuse its array
        best = log_probs[:, 0, 0].tolist()  # (R, 1, k) -> R numbers
        eos, ended = self._special.eos_id, []
        for row, (line, log_prob, token) in enumerate(zip(self._lines, best, self.tokens[:, 0].tolist(), strict=True)):
            line.ids.append(token)
            line.token_log_probs.append(log_prob)
            line.log_prob += log_prob
            line.broken = not -math.inf < log_prob <= ROUNDING  # NaN too
            if token == eos or len(line.ids) >= line.limit or line.broken:
                ended.append(row)
        return Advance(None, ended)

    def histories(self, row: int) -> list[Sequence[int]]:
        """See `Search.histories`."""
        return [self._lines[row].ids]

    def outcome(self, row: int) -> tuple[Hypothesis, ...]:
        """See `Search.outcome`."""
        line = self._lines[row]
        if line.broken:
            raise _no_numbers(len(line.ids))
        truncated = line.ids[-1] != self._special.eos_id
        score = line.log_prob / length_penalty(len(line.ids), line.options.length_penalty)
        ids = tuple(line.ids if truncated else line.ids[:-1])
        gains = tuple(line.token_log_probs) if line.options.token_scores else ()
        return (Hypothesis(ids, line.log_prob, score, truncated, gains),)

    def leave(self, rows: Collection[int]) -> None:
        """See `Search.leave`."""
        keep = [row for row in range(len(self._lines)) if row not in rows]
        self._lines = [self._lines[row] for row in keep]
        self.tokens = self.tokens[keep]


class _Finished(NamedTuple):
    """A hypothesis that met EOS: its score, and where its history starts in the trellis."""

    score: float
    log_prob: float
    length: int
    lane: int
    last: float
    """Log-probability of its EOS."""


@dataclass(slots=True)
class _Beam:
    """One sentence of a beam search: its trellis and its finished set."""

    options: DecodeOptions
    limit: int
    """Most target tokens, EOS included."""
    trellis: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """(parents, tokens) of the W lanes after each step. Append-only: no history is ever copied."""
    gains: list[list[float]] = field(default_factory=list)
    """The log-probabilities of those tokens, if some sentence of the group wants them."""
    finished: list[_Finished] = field(default_factory=list)
    """The n_best best, best first."""
    coverage: Attention | None = None
    """(W, S): the attention that each source token has had from each hypothesis; None where it does not count."""
    worst: float = -math.inf
    """The score a new hypothesis must exceed."""
    top_penalty: float = field(init=False)
    """The penalty of a hypothesis of `limit` tokens."""
    broken: bool = False

    def __post_init__(self) -> None:
        self.top_penalty = length_penalty(self.limit, self.options.length_penalty)

    def attend(self, attention: Attention) -> None:
        """The lanes have attended to this, (W, S), in the step that is about to be taken."""
        self.coverage = attention.copy() if self.coverage is None else self.coverage + attention

    def reorder(self, parents: list[int]) -> None:
        """Lane j carries on the hypothesis of lane parents[j]."""
        if self.coverage is not None:
            self.coverage = self.coverage[parents]  # (W, S) -> (W, S)

    def score(self, log_prob: float, length: int, lane: int) -> float:
        """What a hypothesis of so many tokens that `lane` holds, or that ends where it is, is ranked by."""
        score = log_prob / length_penalty(length, self.options.length_penalty)
        if self.coverage is None:
            return score
        return score + coverage_penalty(self.coverage[lane], self.options.coverage_penalty)

    def finish(self, log_prob: float, lane: int, last: float = 0.0) -> None:
        """EOS, with log-probability `last`, followed the history of `lane`, and the whole has `log_prob`."""
        length = len(self.trellis) + 1
        score = self.score(log_prob, length, lane)
        place = bisect_right(self.finished, -score, key=lambda other: -other.score)
        self.finished.insert(place, _Finished(score, log_prob, length, lane, last))
        del self.finished[self.options.n_best :]
        if len(self.finished) == self.options.n_best:
            self.worst = self.finished[-1].score

    def history(self, steps: int, lane: int) -> tuple[int, ...]:
        """The tokens that led to `lane` after `steps` steps."""
        ids = []
        for parents, tokens in reversed(self.trellis[:steps]):
            ids.append(tokens[lane])
            lane = parents[lane]
        return tuple(reversed(ids))

    def scores(self, steps: int, lane: int) -> tuple[float, ...]:
        """The log-probabilities of those tokens; none if they were not asked for."""
        if not self.options.token_scores:
            return ()
        found = []
        for (parents, _), gains in zip(reversed(self.trellis[:steps]), reversed(self.gains[:steps]), strict=True):
            found.append(gains[lane])
            lane = parents[lane]
        return tuple(reversed(found))


class BeamSearch(Search):
    """W living hypotheses a sentence, and apart from them the best finished ones.

    Each step ranks the W·k continuations and looks at the best 2W. Of the first W those with EOS finish: an ending that
    W continuations outrank is no translation that this beam believes in, and would win only by being short. The first W
    without EOS live on. A sentence ends when no living hypothesis can beat the worst kept finished one.
    Log-probabilities only fall, and dividing a negative number by a larger penalty brings it nearer to zero; so the
    best score a living hypothesis can still reach is log_prob / penalty(limit), its source then being covered. The
    bound is exact: it never changes the answer.
    """

    def __init__(self, width: int, special: SpecialIds) -> None:
        self.width = width
        self.candidates = 2 * width
        self.tokens = np.empty((0, width), np.int64)
        self._special = special
        self._beams: list[_Beam] = []
        self._alive: NDArray[np.float64] = np.empty((0, width))  # (R, W), descending; -inf: a dead lane
        self._own_lanes = list(range(width))
        self._scored = False
        """True if a row wants the scores of its tokens."""

    def enter(self, sentences: Sequence[tuple[DecodeOptions, int]]) -> None:
        """See `Search.enter`."""
        count = len(sentences)
        self._beams += [_Beam(options, limit) for options, limit in sentences]
        self._scored = any(beam.options.token_scores for beam in self._beams)
        alive = np.full((count, self.width), -np.inf)
        alive[:, 0] = 0.0  # One empty hypothesis; W equal ones would fill the beam with copies.
        # (R, W), (N, W) -> (R + N, W)
        self.tokens = np.concatenate((self.tokens, np.full((count, self.width), self._special.bos_id)))
        self._alive = np.concatenate((self._alive, alive))

    def advance(self, log_probs: LogProbs, ids: Tokens, attention: Sequence[Attention] | None = None) -> Advance:
        """See `Search.advance`."""
        count, width, k = log_probs.shape
        for beam, attended in zip(self._beams, attention or (), strict=False):
            beam.attend(attended)
        gains = self._usable(log_probs)
        totals = (self._alive[:, :, None] + gains).reshape(count, width * k)  # (R, W, k) -> (R, W·k)
        order = (-totals).argsort(axis=1, kind="stable")[:, : 2 * width]  # (R, W·k) -> (R, 2W)
        places = order + np.arange(0, totals.size, width * k)[:, None]  # in all R·W·k
        total, lane = totals.take(places), order // k
        gain = gains.take(places) if self._scored else None
        living = total > -np.inf
        # A dead lane is still fed; give it an id that surely is in the vocabulary.
        token = np.where(living, ids.take(places), self._special.eos_id)
        ends = living & (token == self._special.eos_id)
        if np.count_nonzero(ends):
            self._finish(ends[:, :width], total, lane, gain)  # (R, 2W) -> (R, W)
            # A lane offers EOS once, so at most W of the 2W end and W are left to live.
            rest = ends.argsort(axis=1, kind="stable")[:, :width]  # (R, 2W) -> (R, W)
            rows = np.arange(count)[:, None]
            total, lane, token = total[rows, rest], lane[rows, rest], token[rows, rest]
            gain = None if gain is None else gain[rows, rest]
        self._alive, parents, self.tokens = total[:, :width], lane[:, :width], token[:, :width]
        return self._carry_on(parents, None if gain is None else gain[:, :width])

    def _carry_on(self, parents: Tokens, gain: LogProbs | None) -> Advance:
        """Write down what lives on: the lanes' parents (R, W), and what their tokens gained (R, W) if it is wanted."""
        lanes, tokens, best = parents.tolist(), self.tokens.tolist(), self._alive[:, 0].tolist()
        ended = []
        for row, beam in enumerate(self._beams):
            beam.trellis.append((lanes[row], tokens[row]))
            beam.reorder(lanes[row])
            if best[row] / beam.top_penalty <= beam.worst or len(beam.trellis) >= beam.limit:
                ended.append(row)
        if gain is not None:
            for beam, gains in zip(self._beams, gain.tolist(), strict=True):
                beam.gains.append(gains)
        stay = all(own == self._own_lanes for own in lanes)
        return Advance(None if stay else parents, ended)

    def _usable(self, log_probs: LogProbs) -> LogProbs:
        """The candidates; rows with a NaN or an impossible number are marked broken and offer nothing."""
        if np.maximum.reduce(log_probs, axis=None) <= ROUNDING:  # false for NaN
            return log_probs
        broken = ~(log_probs.max(axis=(1, 2)) <= ROUNDING)  # (R, W, k) -> (R,)
        for row in np.flatnonzero(broken).tolist():
            self._beams[row].broken = True
        return np.where(broken[:, None, None], np.float32(-np.inf), log_probs)

    def _finish(self, ends: NDArray[np.bool_], total: NDArray[np.float64], lane: Tokens, gain: LogProbs | None) -> None:
        """Put the candidates that `ends` (R, W) marks, of the best (R, 2W), into their sentences' finished sets."""
        rows, ranks = np.nonzero(ends)
        log_probs, lanes = total[rows, ranks].tolist(), lane[rows, ranks].tolist()
        lasts = [0.0] * len(rows) if gain is None else gain[rows, ranks].tolist()
        for row, log_prob, parent, last in zip(rows.tolist(), log_probs, lanes, lasts, strict=True):
            self._beams[row].finish(log_prob, parent, last)

    def histories(self, row: int) -> list[Sequence[int]]:
        """See `Search.histories`."""
        beam = self._beams[row]
        return [beam.history(len(beam.trellis), lane) for lane in range(self.width)]

    def outcome(self, row: int) -> tuple[Hypothesis, ...]:
        """See `Search.outcome`."""
        beam = self._beams[row]
        steps, found = len(beam.trellis), []
        for end in beam.finished:
            ids = beam.history(end.length - 1, end.lane)
            gains = (*beam.scores(end.length - 1, end.lane), end.last) if beam.options.token_scores else ()
            found.append(Hypothesis(ids, end.log_prob, end.score, False, gains))
        alive = [
            (beam.score(log_prob, steps, lane), lane, log_prob)
            for lane, log_prob in enumerate(self._alive[row].tolist())
            if log_prob > -np.inf
        ]
        for score, lane, log_prob in sorted(alive, key=lambda one: -one[0])[: beam.options.n_best - len(found)]:
            found.append(Hypothesis(beam.history(steps, lane), log_prob, score, True, beam.scores(steps, lane)))
        if beam.broken or not found:
            raise _no_numbers(steps)
        return tuple(found)

    def leave(self, rows: Collection[int]) -> None:
        """See `Search.leave`."""
        keep = [row for row in range(len(self._beams)) if row not in rows]
        self._beams = [self._beams[row] for row in keep]
        self._scored = any(beam.options.token_scores for beam in self._beams)
        self.tokens, self._alive = self.tokens[keep], self._alive[keep]


def _no_numbers(step: int) -> DecodeError:
    error = DecodeError(
        f"every step must offer a continuation with a log-probability of at most 0, but step {step} did not; "
        "if this persists, serve the model in float32."
    )
    error.__cause__ = FloatingPointError(f"no usable log-probabilities at step {step}")
    return error
