"""A Ray of our own on this machine, for as long as a block runs: light, on loopback, and gone afterwards.

Ray is imported inside the functions: it reads its environment when it is imported, and `prepare` sets that first.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import math
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from service.engine.cpus import usable_cpus
from service.errors import SettingsError
from service.settings import Settings

ENVIRONMENT: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing leaves the machine
    "RAY_AUTH_MODE": "token",  # Ray's own ports listen on every interface
    # One hop less in each request: half the overhead of the defaults.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(64 * 2**20),  # the ids of the largest request fit many times
    # Find a dead proxy soon, end soon.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
}
"""What Ray must find in the environment here. A cluster's variables stand in its own deployment files."""

_PACKAGES = Path(__file__).resolve().parents[1]
_OBJECT_STORE_BYTES = 80 * 2**20  # about the least that Ray takes; jobs are small and never go there
_OUTER_SECONDS = 5.0


def prepare() -> None:
    """Set what Ray reads when it is imported; what the operator has set stays."""
    for name, value in {**ENVIRONMENT, "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
        os.environ.setdefault(name, value)


@contextmanager
def claimed_port(host: str, port: int) -> Iterator[int]:
    """A port of `host` that is ours while the block runs: `port` itself, or a free one if it is 0.

    Raises `SettingsError` when it is taken, or may not be, or the host is not of this machine. Our replicas and Serve's
    proxy open their port in a way that lets two services share it in silence, so this must be asked before; the claim
    itself is of the kind that they can open beside, and nobody else. HAProxy cannot, and keeps others away by itself.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe, socket.socket(family) as claim:
        # Taken is where somebody listens; connections of an earlier service that still fade away do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind((host, port))
            port = int(probe.getsockname()[1])
            probe.close()
            if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "1":
                claim.bind((host, port))
        except (OSError, UnicodeError) as error:  # the latter for a host that no name server could be asked for
            raise SettingsError(_why_not(host, port, error)) from error
        yield port


def _why_not(host: str, port: int, error: OSError | UnicodeError) -> str:
    """Why nobody can listen there, in words that help."""
    if isinstance(error, UnicodeError | socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"host must be an address of this machine, but is {host}; choose one with --host."
    if isinstance(error, PermissionError):
        return f"port must be one that this user may listen on, but is {port}; choose one above 1023 with --port."
    return (
        f"port {port} on {host} must be free, but cannot be taken ({error.strerror}); "
        "end what uses it, or choose another with --port."
    )


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise `KeyboardInterrupt` in the block."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _on_signals(_interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _on_signals(handler: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _exit_is_interrupt() -> Iterator[None]:
    """While Ray starts, its own handler answers SIGTERM, and in its own way."""
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None


@dataclass(slots=True)
class LocalRay:
    """What a block knows of the Ray it runs on."""

    in_use: bool = False
    """Callers may be waiting for answers: let the replicas finish them before the end."""


@contextmanager
def local_ray(settings: Settings) -> Iterator[LocalRay]:
    """Ray and Serve, listening where `settings` say; both are ended, whatever happens in the block.

    Raises `SettingsError` when the machine has fewer GPUs than the settings want.
    """
    import ray  # noqa: PLC0415
    from ray import serve  # noqa: PLC0415

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    state = LocalRay()
    try:
        with _exit_is_interrupt():
            _start_ray(settings)
            _on_signals(_interrupt)  # Ray has set its own
        _forward_logs()
        there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        wanted, gpus = settings.engine_gpus * len(settings.bundles), there.get("GPU", 0.0)
        if gpus < wanted:
            raise SettingsError(
                f"engine_gpus × bundles must be at most the GPUs of this machine ({gpus:g}), but is "
                f"{settings.engine_gpus:g} × {len(settings.bundles)}; serve fewer bundles, or give each a part of one."
            )
        _start_serve(settings)
        yield state
    finally:
        _on_signals(signal.SIG_IGN)  # a second Ctrl-C must not leave half of it running
        with redirect_stdout(io.StringIO()):  # Ray remarks on what it ends by force
            if state.in_use:
                serve.shutdown()  # type: ignore[no-untyped-call]
            ray.shutdown()


def _start_ray(settings: Settings) -> None:
    import ray  # noqa: PLC0415

    engine_cpus = settings.engine_cpus * settings.max_replicas * len(settings.bundles)
    reserved = math.ceil(engine_cpus + settings.ingress_cpus * settings.ingress_replicas)
    # Ray shows its workers the working folder, where a file called model.py would hide the package.
    with chdir(_PACKAGES):
        ray.init(
            address="local",
            # A count for placing replicas, not a promise: all of them must find a place, however small the machine.
            num_cpus=max(usable_cpus(), reserved),
            num_gpus=None if settings.provider == "cuda" else 0,
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            logging_level=logging.ERROR,
            namespace="serve",
        )


def _start_serve(settings: Settings) -> None:
    from ray import serve  # noqa: PLC0415
    from ray.serve.schema import LoggingConfig  # noqa: PLC0415

    serve.start(
        proxy_location="Disabled" if settings.listener == "ingress" else "HeadOnly",
        http_options={
            "host": settings.host,
            "port": settings.port,
            # Our own deadline answers first, and in JSON.
            "request_timeout_s": settings.request_timeout_s + _OUTER_SECONDS,
        },
        logging_config=LoggingConfig(encoding="JSON", log_level="WARNING", enable_access_log=False),
    )


def _forward_logs() -> None:
    """Write the replicas' log lines to our standard error as they are, without the prefixes that Ray adds."""
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher  # noqa: PLC0415

    dispatcher.remove_handler("ray_print_logs")
    dispatcher.add_handler("dragoman", _write_lines)


def _write_lines(batch: Mapping[str, Any]) -> None:
    if not str(batch.get("actor_name")).startswith("ServeReplica"):
        return  # Ray's own lines stay in its files
    for line in batch["lines"]:
        # Native code does not speak JSON when it fails.
        shown = line if line.startswith("{") else json.dumps({"logger": "ray", "message": line})
        sys.stderr.write(shown + "\n")
    sys.stderr.flush()
