"""Every setting of the service: one frozen object, and the only reader of the environment.

A field `max_texts` is the variable `DRAGOMAN_MAX_TEXTS` and the flag `--max-texts`. Flags win over the environment, the
environment over the profile, the profile over the defaults written here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.errors import SettingsError

ENV_PREFIX = "DRAGOMAN_"

BUNDLED = Path(__file__).parent / "bundled"
"""Where the bundles live that ship with the package."""

_PROFILES: Mapping[str, Mapping[str, Any]] = {
    "laptop": {},
    "cluster": {
        "host": "0.0.0.0",
        "listener": "proxy",
        "ingress_replicas": 2,
        "min_replicas": 1,
        "max_replicas": 8,
        "metrics_interval_s": 2.0,
        "upscale_delay_s": 5.0,
        "downscale_delay_s": 300.0,
        "graceful_shutdown_s": 60.0,
    },
}

Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseSettings):
    """Everything that can be set. Raises pydantic's `ValidationError`; `load` turns it into a `SettingsError`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", use_attribute_docstrings=True, env_ignore_empty=True
    )

    profile: Literal["laptop", "cluster"] = "laptop"
    """Set of defaults: `laptop` is one light machine on loopback, `cluster` is many nodes that scale."""
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """TCP port to listen on; 0 takes a free one."""
    listener: Literal["ingress", "proxy"] = "ingress"
    """Who takes the connections of `dragoman serve`: the ingress replicas themselves, or Ray's HTTP proxy before them,
    as always in a Ray cluster."""
    engines: Literal["auto", "within", "apart"] = "auto"
    """Where engines run: `within` the ingress replica, in processes that it starts, which costs a request least, or
    `apart` in replicas of their own, which scale and which Ray places. `auto`: within, unless the listener is `proxy`,
    there may be several replicas, or there are several bundles on CUDA."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line to write. Lines are JSON and never hold the text."""

    bundles: Annotated[tuple[Path, ...], NoDecode] = (BUNDLED / "en-de", BUNDLED / "de-en")
    """Folders of the bundles to serve, or names of those that ship where there is no such folder, with colons between
    them; one engine, or deployment of engines, for each."""
    precision: Literal["auto", "int8", "f32", "f16"] = "auto"
    """Which graphs of a bundle to run; `auto` takes int8 on the CPU and f16 on CUDA where the bundle has them."""
    provider: Literal["cpu", "cuda"] = "cpu"
    """What runs the graphs. CUDA where there is none is an error, never a silent fall-back."""
    operators: Literal["auto", "native", "stock"] = "auto"
    """Which operators run: `native` are our own, `stock` those of ONNX Runtime; `auto` takes native where it can."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of one engine replica; 0 shares the CPUs this process may use, but one, among the replicas."""

    max_texts: Positive = 128
    """Most texts in one request."""
    max_text_characters: Positive = 10_000
    """Most characters in one text."""
    max_body_bytes: Positive = 4 * 1024 * 1024
    """Most bytes in a request's body, whether its length is announced or not."""
    request_timeout_s: Seconds = 30.0
    """A request is answered or refused within this time: with 504, or 408 if its body has not arrived."""
    ready_timeout_s: Seconds = 5.0
    """The translation behind /readyz must end within this time."""
    retry_after_s: Seconds = 1.0
    """What a 429 or a 503 says in Retry-After, rounded up to whole seconds."""

    max_source_tokens: Annotated[int, Field(ge=16)] = 200
    """Longest piece, in tokens, that reaches a model; longer sentences are cut at clauses, then at spaces."""
    max_slots: Positive = 32
    """Sentences that decode together in one engine replica."""
    max_batch_tokens: Positive = 4096
    """Most padded source tokens that one replica encodes together."""
    max_queued_tokens: Positive = 65_536
    """Source tokens that may wait in one engine replica; more are refused at once with 429."""
    batch_wait_s: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How long an idle engine waits for company before it starts."""

    ingress_replicas: Positive = 1
    """Processes that take HTTP and do the text work."""
    ingress_max_ongoing: Positive = 512
    """Requests that one ingress replica holds at once; more are refused at once with 429."""
    min_replicas: Annotated[int, Field(ge=0)] = 1
    """Fewest engine replicas for each bundle."""
    max_replicas: Positive = 1
    """Most engine replicas for each bundle."""
    target_ongoing: Positive = 8
    """Requests in one engine replica that autoscaling aims for."""
    max_ongoing: Positive = 128
    """Requests that one engine replica holds at once; keep it well above `max_slots`."""
    metrics_interval_s: Seconds = 1.0
    """How often replicas report their load to the autoscaler."""
    upscale_delay_s: Annotated[float, Field(ge=0)] = 2.0
    """How long the load must be high before a replica is added."""
    downscale_delay_s: Annotated[float, Field(ge=0)] = 30.0
    """How long the load must be low before a replica is removed."""
    engine_cpus: Annotated[float, Field(ge=0)] = 1.0
    """CPUs that Ray reserves for one engine replica."""
    engine_gpus: Annotated[float, Field(ge=0)] = 0.0
    """GPUs that Ray reserves for one engine replica; 1 if not set and provider is cuda."""
    health_period_s: Seconds = 5.0
    """How often Ray asks a replica whether it is well."""
    health_timeout_s: Seconds = 10.0
    """How long a replica may take to say so."""
    engine_stall_s: Seconds = 30.0
    """An engine whose step takes longer than this is reported as ill and replaced."""
    engine_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """How often the ingress asks another engine replica when one dies during a request."""
    graceful_shutdown_s: Annotated[float, Field(ge=0)] = 5.0
    """How long a replica that is told to stop may finish its requests."""

    @field_validator("bundles", mode="before")
    @classmethod
    def _split_paths(cls, value: Any) -> Any:
        return [part for part in value.split(os.pathsep) if part] if isinstance(value, str) else value

    @field_validator("bundles")
    @classmethod
    def _absolute(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        # Replicas are other processes, with other working folders.
        return tuple(_of_bundle(path).absolute() for path in value)

    @model_validator(mode="before")
    @classmethod
    def _dependent_defaults(cls, given: Any) -> Any:
        gpus = {"engine_gpus": 1.0} if given.get("provider") == "cuda" else {}
        return {**gpus, **_PROFILES.get(str(given.get("profile", "laptop")), {}), **given}

    @model_validator(mode="after")
    def _consistent(self) -> Settings:
        if broken := [*_impossible_limits(self), *_impossible_replicas(self), *_impossible_devices(self)]:
            raise ValueError(" ".join(broken))
        return self

    def segment_tokens(self, max_positions: int) -> int:
        """Most source tokens of one segment, for a network of so many positions: what is longer is cut."""
        return min(self.max_source_tokens, max_positions)

    @property
    def ingress_cpus(self) -> int:
        """CPUs that Ray reserves for one ingress replica: on a single machine it takes what is left."""
        return 0 if self.profile == "laptop" else 1

    @property
    def holds_engines(self) -> bool:
        """Whether the ingress replica starts the engines itself."""
        if self.engines == "auto":
            return not any(_needs_apart(self))
        return self.engines == "within"

    @classmethod
    def load(cls, flags: Mapping[str, Any] | None = None) -> Settings:
        """Settings from the environment and from `flags`, those given on the command line (field name → value).

        Raises `SettingsError`, with one line for each setting that is wrong: an unknown variable, an unknown flag, a
        value out of range, or settings that contradict each other.
        """
        unknown = sorted(
            name
            for name in os.environ
            if name.startswith(ENV_PREFIX) and name.removeprefix(ENV_PREFIX).lower() not in cls.model_fields
        )
        if unknown:
            raise SettingsError(
                f"unknown settings in the environment: {', '.join(unknown)}. See dragoman serve --help."
            )
        try:
            return cls(**(flags or {}))
        except ValidationError as error:
            raise SettingsError("\n".join(map(_line, error.errors()))) from error


def _of_bundle(path: Path) -> Path:
    """The folder that `path` names: one that is there, or a bundle that ships."""
    path = path.expanduser()
    ships = BUNDLED / path
    return ships if len(path.parts) == 1 and not path.exists() and ships.is_dir() else path


def _impossible_limits(s: Settings) -> Iterator[str]:
    if s.max_source_tokens > s.max_batch_tokens:
        yield (
            f"max_batch_tokens must be at least max_source_tokens ({s.max_source_tokens}), "
            f"but is {s.max_batch_tokens}: no batch could hold the longest piece."
        )
    if s.max_batch_tokens > s.max_queued_tokens:
        yield (
            f"max_queued_tokens must be at least max_batch_tokens ({s.max_batch_tokens}), "
            f"but is {s.max_queued_tokens}: no full batch could ever wait."
        )
    if s.max_text_characters > s.max_body_bytes:
        yield (
            f"max_body_bytes must be at least max_text_characters ({s.max_text_characters}), "
            f"but is {s.max_body_bytes}: the longest text could not be sent."
        )
    if s.ready_timeout_s > s.request_timeout_s:
        yield f"ready_timeout_s must be at most request_timeout_s ({s.request_timeout_s}), but is {s.ready_timeout_s}."


def _impossible_replicas(s: Settings) -> Iterator[str]:
    if not s.bundles:
        yield "bundles must name at least one folder; leave it out for those that ship."
    if len(set(s.bundles)) < len(s.bundles):
        yield f"bundles must be different folders, but are {', '.join(map(str, s.bundles))}."
    if s.min_replicas > s.max_replicas:
        yield f"min_replicas must be at most max_replicas ({s.max_replicas}), but is {s.min_replicas}."
    if s.engines == "within" and (needs := list(_needs_apart(s))):
        yield f"engines must be auto or apart with {', '.join(needs)}."
    if s.target_ongoing > s.max_ongoing:
        yield f"target_ongoing must be at most max_ongoing ({s.max_ongoing}), but is {s.target_ongoing}."


def _needs_apart(s: Settings) -> Iterator[str]:
    """What an ingress that starts its engines cannot do, as settings ask for it."""
    if s.listener == "proxy":
        yield "listener proxy"
    for name in ("ingress_replicas", "min_replicas", "max_replicas"):
        if (value := getattr(s, name)) != 1:
            yield f"{name} {value}"
    if s.provider == "cuda" and len(s.bundles) > 1:  # processes beside an ingress all take the first of its GPUs
        yield f"{len(s.bundles)} bundles on cuda"


def _impossible_devices(s: Settings) -> Iterator[str]:
    if s.provider == "cpu" and s.engine_gpus:
        yield f"engine_gpus must be 0 when provider is cpu, but is {s.engine_gpus}; set provider to cuda."
    if s.provider == "cuda" and not s.engine_gpus:
        yield "engine_gpus must be above 0 when provider is cuda; give each engine replica a GPU or a part of one."
    if s.provider == "cuda" and s.operators == "native":
        yield "operators must be auto or stock when provider is cuda; the native ones are made for the CPU."
    if s.provider == "cuda" and s.precision == "int8":
        yield "precision must be auto, f16 or f32 when provider is cuda; int8 graphs are made for the CPU."
    if s.provider == "cpu" and s.precision == "f16":
        yield "precision must be auto, int8 or f32 when provider is cpu; f16 graphs are made for CUDA."


def _line(error: Any) -> str:
    """One validation error as one line: what must hold, and what was found."""
    message = str(error["msg"]).removeprefix("Value error, ")
    where = ".".join(str(part) for part in error["loc"])
    if not where:
        return message
    return f"{where}: {message[0].lower()}{message[1:]}, but is {error['input']!r}."
