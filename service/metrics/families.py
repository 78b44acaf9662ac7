"""Every metric of the service, its labels and its buckets, for one process; `snapshots` and `hub` merge processes.

Names start with `translation_`, times are in seconds, and every label has a closed set of values: what a caller sends
never becomes a label, an unknown value counts as "other". Model names and pairs come from the loaded bundles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from service.errors import REFUSALS
from service.languages import Pair

Registry = CollectorRegistry
"""Where one process keeps its metrics."""

LATENCY_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Fine where a translation usually ends, with the limits of patience (1, 10, 30) among them."""
STEP_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
RATIO_BUCKETS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

OTHER = "other"
APIS = ("native", "deepl", "libretranslate", "google", "azure")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
ENDPOINTS = (
    "/",
    "/v1/translate",
    "/v1/models",
    "/v1/languages",
    "/healthz",
    "/readyz",
    "/metrics",
    "/docs",
    "/openapi.json",
)
REASONS = tuple(sorted(REFUSALS))

GREATEST = ("translation_model_info", "translation_model_load_seconds")
"""Gauges of which a merge keeps the greatest value; all others are added up."""


def _known(value: str, known: Iterable[str]) -> str:
    return value if value in known else OTHER


class HttpMetrics:
    """What the API counts. Implements `service.api.ports.HttpRecorder`."""

    def __init__(self, registry: Registry) -> None:
        self._requests = Counter(
            "translation_http_requests_total",
            "HTTP requests answered.",
            ("api", "endpoint", "method", "code"),
            registry=registry,
        )
        self._seconds = Histogram(
            "translation_http_request_duration_seconds",
            "Time from the arrival of an HTTP request to the end of its answer.",
            ("api", "endpoint"),
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._in_flight = Gauge(
            "translation_http_requests_in_flight", "HTTP requests being answered.", ("endpoint",), registry=registry
        )
        self._declare()

    def _declare(self) -> None:
        """Show what a healthy service answers from the start, at zero.

        A rate needs two samples: of a series that appears with its first requests, Prometheus never sees the increase.
        """
        for endpoint in ENDPOINTS:
            self._seconds.labels("native", endpoint)
            self._in_flight.labels(endpoint)
            self._requests.labels("native", endpoint, "POST" if endpoint == "/v1/translate" else "GET", "200")

    def http_started(self, endpoint: str) -> None:
        """One more request in flight."""
        self._in_flight.labels(_known(endpoint, ENDPOINTS)).inc()

    def http_finished(self, *, api: str, endpoint: str, method: str, code: int, seconds: float) -> None:
        """One less in flight; count it and its duration."""
        api, endpoint = _known(api, APIS), _known(endpoint, ENDPOINTS)
        status = str(code) if 100 <= code <= 599 else OTHER
        self._in_flight.labels(endpoint).dec()
        self._requests.labels(api, endpoint, _known(method, METHODS), status).inc()
        self._seconds.labels(api, endpoint).observe(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """How much went through one answered request."""

    texts: int
    source_characters: int
    segments: int
    source_tokens: int
    target_tokens: int


class RequestMetrics:
    """What the ingress counts of the translations it asks the engines for."""

    _PAIR = ("model", "source_lang", "target_lang")

    def __init__(self, registry: Registry) -> None:
        self._requests = Counter(
            "translation_requests_total", "Translation requests, refused ones too.", ("model",), registry=registry
        )
        self._failures = Counter(
            "translation_request_failures_total",
            "Translation requests that were refused, by the code of the refusal.",
            ("model", "reason"),
            registry=registry,
        )
        self._retries = Counter(
            "translation_request_retries_total",
            "Requests given to another engine replica because the first one went away.",
            ("model",),
            registry=registry,
        )
        self._fragmented = Counter(
            "translation_fragmented_segments_total",
            "Segments translated again in fragments because their translation lost what must be carried.",
            ("model",),
            registry=registry,
        )
        self._tokenize = Histogram(
            "translation_tokenize_seconds",
            "Time to cut and tokenise the texts of a request.",
            ("model",),
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._volumes = {
            name: Counter(f"translation_{name}_total", help_text, self._PAIR, registry=registry)
            for name, help_text in (
                ("texts", "Texts translated."),
                ("source_characters", "Characters of the texts translated."),
                ("segments", "Segments translated; about one for each sentence."),
                ("source_tokens", "Source tokens translated."),
                ("target_tokens", "Target tokens produced."),
            )
        }

    def declare(self, model: str, pair: Pair) -> None:
        """Show the series of a loaded model from the start, at zero."""
        for family in (self._requests, self._retries, self._fragmented, self._tokenize):
            family.labels(model)
        for reason in REASONS:
            self._failures.labels(model, reason)
        for counter in self._volumes.values():
            counter.labels(model, pair.source, pair.target)

    def tokenized(self, model: str, seconds: float) -> None:
        """The texts of a request became ids in `seconds`."""
        self._tokenize.labels(model).observe(seconds)

    def retried(self, model: str) -> None:
        """A request goes to another engine replica."""
        self._retries.labels(model).inc()

    def fragmented(self, model: str, segments: int) -> None:
        """So many segments are translated again in fragments."""
        self._fragmented.labels(model).inc(segments)

    def refused(self, model: str, reason: str) -> None:
        """A request was refused with the code `reason`."""
        self._requests.labels(model).inc()
        self._failures.labels(model, _known(reason, REASONS)).inc()

    def answered(self, model: str, pair: Pair, volume: Volume) -> None:
        """A request was answered."""
        self._requests.labels(model).inc()
        for name, counter in self._volumes.items():
            counter.labels(model, pair.source, pair.target).inc(getattr(volume, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLabels:
    """What `translation_model_info` says of a loaded model."""

    model: str
    version: str
    precision: str
    provider: str
    operators: str


class EngineMetrics:
    """What one engine replica counts. Its methods may be called from any thread."""

    def __init__(self, registry: Registry, labels: ModelLabels) -> None:
        model = labels.model

        def histogram(name: str, text: str, buckets: tuple[float, ...] = LATENCY_BUCKETS) -> Histogram:
            family = Histogram(f"translation_{name}", text, ("model",), buckets=buckets, registry=registry)
            return family.labels(model)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"translation_{name}", text, ("model",), registry=registry).labels(model)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"translation_{name}_total", text, ("model",), registry=registry).labels(model)

        self.queue_seconds = histogram("queue_seconds", "Wait of a segment before its encoder ran.")
        self.encode_seconds = histogram("encode_seconds", "Time of one run of the encoder over a batch of segments.")
        self.decode_seconds = histogram("decode_seconds", "Time of a segment from its first decoder step to its last.")
        self.inference_seconds = histogram(
            "inference_seconds", "Time of a request from its first segment's start to its last one's end."
        )
        self.step_seconds = histogram(
            "decode_step_seconds", "Time of one decoder step over all running segments.", STEP_BUCKETS
        )
        self.batch_rows = histogram("batch_rows", "Segments that ran together in one decoder step.", ROW_BUCKETS)
        self.padding_ratio = histogram(
            "batch_padding_ratio", "Share of padding in one run of the encoder.", RATIO_BUCKETS
        )
        self.batch_rows_active = gauge("batch_rows_active", "Segments in the batch now.")
        self.queue_length = gauge("queue_length", "Segments waiting for a place in the batch.")
        self.queue_tokens = gauge("queue_tokens", "Source tokens waiting for a place in the batch.")
        self.overloaded = counter("overloads", "Requests refused because the queue was full.")
        self.abandoned = counter("abandoned_segments", "Segments dropped because their caller left or ran out of time.")
        self.truncated = counter("truncated_segments", "Segments that the length limit ended.")
        self.guarded = counter(
            "repetition_guards",
            "Segments translated again because their translation went round in circles or on and on.",
        )
        self.network_failures = counter("network_failures", "Segments on which the network raised.")
        self._load = gauge("model_load_seconds", "Time to load the model and to warm it up.")
        self._info = Gauge(
            "translation_model_info",
            "The loaded model; always 1.",
            tuple(field.name for field in fields(ModelLabels)),
            registry=registry,
        )
        self._labels = labels

    def loaded(self, seconds: float) -> None:
        """The model is loaded and has translated."""
        self._load.set(seconds)
        self._info.labels(**asdict(self._labels)).set(1)


def open_registry(role: str) -> Registry:
    """A registry for one process that plays `role`: "ingress" or "engine"."""
    registry = CollectorRegistry(auto_describe=False)
    Gauge("translation_replica_up", "Live replicas.", ("role",), registry=registry).labels(role).set(1)
    return registry
