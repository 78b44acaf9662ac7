"""The composition root: settings in, a Ray Serve application out; and a whole service on one machine.

Ray is imported inside the functions: it reads its environment when it is imported, and `serve` prepares that first.
"""

# No `from __future__ import annotations` here: Serve reads the annotation of `build` to turn a YAML file's `args` into
# settings, and does not understand one that is text.

import json
import signal
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from model.bundle import Bundle, Manifest
from service.errors import ServiceError, SettingsError
from service.local import claimed_port, interruptible, local_ray, prepare
from service.logs import configure
from service.settings import Settings

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.config import AutoscalingConfig

APPLICATION = "dragoman"
_START_SECONDS = 120.0
"""Loading is a matter of seconds; a machine may be busy."""
_EXAMPLE = "The file could not be opened."


class StartError(ServiceError):
    """The service did not become ready."""


def build(settings: Settings) -> "Application":
    """The ingress, behind Serve's proxy, in front of one engine deployment for each bundle. It starts nothing.

    It is also what a Serve configuration names as `import_path`, with the settings as `args`. Raises `BundleError` when
    a bundle cannot be read, and `SettingsError` when two bundles have the same name.
    """
    return _build(settings, listens=False)


def _build(settings: Settings, listens: bool) -> "Application":
    from ray import serve as ray_serve  # noqa: PLC0415

    from service.ingress.deployment import Ingress, ListeningIngress  # noqa: PLC0415
    from service.translator import Translator  # noqa: PLC0415
    from service.whole import Whole  # noqa: PLC0415

    names = [manifest.name for manifest in _manifests(settings)]
    if len(set(names)) < len(names):
        raise SettingsError(f"bundles must have different names, but are called {', '.join(names)}.")
    if settings.engines == "within" and not listens:
        raise SettingsError("engines must be auto or apart where Serve's proxy takes the connections, but is within.")
    engine, ingress = _engine_options(settings), _ingress_options(settings)
    if listens and settings.holds_engines:
        each = engine["ray_actor_options"]
        ingress["ray_actor_options"] = {name: amount * len(names) for name, amount in each.items()}
        return ray_serve.deployment(name="ingress", **ingress)(Whole).bind(settings)
    translators = [
        ray_serve.deployment(name=f"translator-{name}", **engine)(Translator).bind(path, settings)
        for name, path in zip(names, settings.bundles, strict=True)
    ]
    api = ListeningIngress if listens else ray_serve.ingress()(Ingress)
    return ray_serve.deployment(name="ingress", **ingress)(api).bind(settings, *translators)


def _manifests(settings: Settings) -> list[Manifest]:
    # The replicas verify the files; here only the names are needed.
    return [Bundle.open(path, verify=False).manifest for path in settings.bundles]


def _engine_options(settings: Settings) -> dict[str, Any]:
    from ray.serve.config import BackpressureConfig  # noqa: PLC0415

    from service.engine.opening import max_jobs_for  # noqa: PLC0415

    max_jobs = max_jobs_for(settings)
    return {
        # The engine must refuse before Serve does: at Serve's limit the router tries again at intervals of up to half
        # a second, and meanwhile the batch runs dry.
        "max_ongoing_requests": 2 * max_jobs,
        "max_queued_requests": max_jobs,
        "backpressure_config": BackpressureConfig(status_code=429, retry_after_s=settings.retry_after_s),
        "autoscaling_config": _scaling(settings),
        "ray_actor_options": {"num_cpus": settings.engine_cpus, "num_gpus": settings.engine_gpus},
        **_replica_options(settings),
    }


def _scaling(settings: Settings) -> "AutoscalingConfig":
    from ray.serve.config import AutoscalingConfig  # noqa: PLC0415

    with warnings.catch_warnings():
        # Deprecated, but in this release nothing else sets the pace: the variables that should are not read.
        warnings.filterwarnings("ignore", "The `metrics_interval_s` field", DeprecationWarning)
        return AutoscalingConfig(
            min_replicas=settings.min_replicas,
            max_replicas=settings.max_replicas,
            initial_replicas=max(1, settings.min_replicas),
            target_ongoing_requests=settings.target_ongoing,
            metrics_interval_s=settings.metrics_interval_s,
            look_back_period_s=2 * settings.metrics_interval_s,
            upscale_delay_s=settings.upscale_delay_s,
            downscale_delay_s=settings.downscale_delay_s,
        )


def _ingress_options(settings: Settings) -> dict[str, Any]:
    from ray.serve.config import BackpressureConfig  # noqa: PLC0415

    return {
        "num_replicas": settings.ingress_replicas,
        # The API must refuse before Serve does, whose refusals are no JSON and are not counted.
        "max_ongoing_requests": 2 * settings.ingress_max_ongoing,
        "max_queued_requests": 2 * settings.ingress_max_ongoing,
        "backpressure_config": BackpressureConfig(status_code=429, retry_after_s=settings.retry_after_s),
        "ray_actor_options": {"num_cpus": settings.ingress_cpus},
        **_replica_options(settings),
    }


def _replica_options(settings: Settings) -> dict[str, Any]:
    from ray.serve.schema import LoggingConfig  # noqa: PLC0415

    return {
        "health_check_period_s": settings.health_period_s,
        "health_check_timeout_s": settings.health_timeout_s,
        "graceful_shutdown_timeout_s": settings.graceful_shutdown_s,
        "graceful_shutdown_wait_loop_s": 0.1,
        "max_constructor_retry_count": 3,
        # Our own lines say who asked for what, with the request's id.
        "logging_config": LoggingConfig(enable_access_log=False, encoding="JSON", log_level="WARNING"),
    }


def serve(settings: Settings, announce: Callable[[str], object] = sys.stdout.write) -> None:
    """Serve on this machine until SIGINT or SIGTERM, then end everything that was started.

    `announce` is told the address once a translation has worked. Raises `SettingsError` before anything is started when
    the port is taken, `BundleError` when a bundle cannot be read or lacks what is asked for, `ProviderError` when what
    is to run its graphs is not there, and `StartError` when the service does not come up.
    """
    from service.engine.opening import check_graphs  # noqa: PLC0415

    configure(settings.log_level)
    for path in settings.bundles:
        check_graphs(Bundle.open(path), settings)
    prepare()
    with claimed_port(settings.host, settings.port) as port, suppress(KeyboardInterrupt), interruptible():
        settings = settings.model_copy(update={"port": port})
        with local_ray(settings) as ray:
            _deploy(settings)
            ray.in_use = True
            announce(_greeting(settings))
            sys.stdout.flush()
            while True:
                signal.pause()


def _deploy(settings: Settings) -> None:
    from ray import serve as ray_serve  # noqa: PLC0415

    application = _build(settings, listens=settings.listener == "ingress")
    target = ray_serve.RunTarget(application, name=APPLICATION, route_prefix="/")
    ray_serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    deadline = time.monotonic() + _START_SECONDS
    while (reason := _not_running() or _not_ready(settings)) is not None:
        if time.monotonic() > deadline:
            raise StartError(f"the service must start within {_START_SECONDS:.0f} s, but {reason}.")
        time.sleep(0.1)


def _not_running() -> str | None:
    """What Serve still waits for, if it does. Raises `StartError` when it has given up."""
    from ray import serve as ray_serve  # noqa: PLC0415

    application = ray_serve.status().applications[APPLICATION]
    if application.status == "RUNNING":
        return None
    told = [deployment.message for deployment in application.deployments.values() if deployment.message]
    reason = "; ".join(told) or application.message or "Serve is still deploying"
    if application.status == "DEPLOY_FAILED":
        raise StartError(f"every replica must start, but one does not: {reason}")
    return reason


def _not_ready(settings: Settings) -> str | None:
    # Not through a proxy that the environment may name: this is our own machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{_url(settings)}/readyz", timeout=settings.ready_timeout_s + 1.0):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return f"/readyz answers {error.code}"
    except OSError as error:
        return f"/readyz does not answer ({error})"


def _url(settings: Settings) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    return f"http://{host}:{settings.port}"


def _greeting(settings: Settings) -> str:
    manifest = _manifests(settings)[0]
    source, target = manifest.source_languages[0], manifest.target_languages[0]
    body = json.dumps({"text": _EXAMPLE, "source": source, "target": target})
    return (
        f"\nDragoman is ready on {_url(settings)}   (documentation: {_url(settings)}/docs; Ctrl-C ends it)\n\n"
        f"  curl -H 'Content-Type: application/json' {_url(settings)}/v1/translate \\\n    -d '{body}'\n\n"
    )
