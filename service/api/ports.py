"""What the API asks of the rest of the service: two protocols and the plain values that pass through them.

The ingress implements `TranslationBackend` with handles to the engines, the tests with fakes. Nothing in here knows
HTTP, Ray or ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from model.decode.options import Sampling
from service.errors import Refusal
from service.languages import Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslateCommand:
    """One checked request: the pair is supported, and every text is within the limits."""

    request_id: str
    texts: tuple[str, ...]
    pair: Pair
    deadline: float
    """Unix time in seconds after which an answer is of no use."""
    beam_size: int | None = None
    """None: what the bundle recommends."""
    length_penalty: float | None = None
    coverage_penalty: float | None = None
    n_best: int | None = None
    """None: no alternatives are wanted."""
    max_length: int | None = None
    min_length: int | None = None
    no_repeat_ngram: int | None = None
    repetition_penalty: float | None = None
    sampling: Sampling | None = None
    prefix: str | None = None
    """What each translation begins with; each text must then be one sentence."""
    suppress: tuple[str, ...] = ()
    """Words that no translation holds."""
    repetition_guard: bool = True
    return_scores: bool = False
    alignment: bool = False


WordLink = tuple[int, int, int, int]
"""A word of a text and one of its translation: start and end of each in code points, the end being one behind."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the n best translations of a text."""

    text: str
    score: float
    """What the search ranks by, log-probability over length penalty plus coverage penalty; summed over sentences."""
    alignment: tuple[WordLink, ...] | None = None
    """If it was asked for."""


@dataclass(frozen=True, slots=True)
class TextScores:
    """How likely the model holds a translation to be."""

    score: float
    log_probability: float
    tokens: tuple[tuple[str, float], ...]
    """Each token and its log-probability; a sentence ends with the end-of-sentence token unless it was cut."""


@dataclass(frozen=True, slots=True)
class Translation:
    """One text, translated."""

    text: str
    truncated: bool
    """True if the length limit ended a segment of it: its end may be missing."""
    repetition_guard: bool = False
    """True if a segment of it went round in circles, or on and on, and was translated again."""
    fragmented: bool = False
    """True if a segment of it was translated in fragments, lest a number, a tag or the like be lost."""
    alternatives: tuple[Alternative, ...] = ()
    """The n best, best first, if they were asked for."""
    scores: TextScores | None = None
    """If they were asked for."""
    alignment: tuple[WordLink, ...] | None = None
    """Which words became which, in the order of the translation; if it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslateAnswer:
    """What became of a command's texts, in its order."""

    model: str
    """Name of the bundle that translated."""
    translations: tuple[Translation | Refusal, ...]
    """A refusal stands in the slot of its own text; the others are whole."""
    source_tokens: int
    target_tokens: int
    queue_seconds: float
    inference_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a caller may know about a loaded bundle."""

    name: str
    version: str
    pairs: tuple[Pair, ...]
    precision: str
    provider: str
    """The execution provider that runs it, read back from the session."""
    operators: str
    """What its graphs are written with: `native` or `stock`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Decoding options used where a request names none."""
    alignment: bool = False
    """True if alignment and coverage_penalty can be asked for."""


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """Whether a real translation just worked, for each model."""

    models: Mapping[str, str | None]
    """Name → None if it is ready, else why not (no text, no path)."""

    @property
    def ready(self) -> bool:
        """True if there is a model, and every one is ready."""
        return bool(self.models) and not any(self.models.values())


class TranslationBackend(Protocol):
    """Everything the routes need."""

    async def translate(self, command: TranslateCommand) -> TranslateAnswer:
        """Translate, or raise a `Refusal` for the whole command. Cancelling it must cancel the work."""
        ...

    def pairs(self) -> Sequence[Pair]:
        """The supported pairs, in the order of the bundles."""
        ...

    def models(self) -> Sequence[ModelInfo]:
        """The loaded bundles."""
        ...

    async def ready(self) -> ReadyReport:
        """Translate something short on the real path, within its own short deadline. Never raises."""
        ...

    async def render_metrics(self) -> str:
        """The Prometheus exposition, over all replicas."""
        ...


class HttpRecorder(Protocol):
    """Where the routes leave their figures. All labels are from closed sets."""

    def http_started(self, endpoint: str) -> None:
        """One more request in flight."""
        ...

    def http_finished(self, *, api: str, endpoint: str, method: str, code: int, seconds: float) -> None:
        """One less in flight; `api` is "native" or an adapter's name, `endpoint` a route template or "other"."""
        ...
