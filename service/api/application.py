"""The FastAPI application: every route over one backend, every error in one shape."""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException

from service.api.errors import STATUS, Json, error_response, from_http
from service.api.gate import Gate
from service.api.native import native_router
from service.api.observe import Observe
from service.api.operations import operations_router
from service.api.ports import HttpRecorder, TranslationBackend
from service.errors import Refusal
from service.settings import Settings

_DESCRIPTION = (
    "Translates text. Lines, white space and everything that is not language come back as they came. "
    "Every error is `{error: {code, message, field, request_id}}`; every response has `X-Request-ID`."
)

_log = logging.getLogger("dragoman.api")


def build_api(
    backend: TranslationBackend, settings: Settings, recorder: HttpRecorder, proxied: bool = False
) -> FastAPI:
    """An application that answers from `backend` and leaves its figures with `recorder`. Starts nothing.

    `proxied`: what stands in front gives each request its X-Request-ID and writes it on the response; Ray Serve does.
    """
    api = FastAPI(
        title="Dragoman",
        description=_DESCRIPTION,
        version=_version(),
        docs_url=None,  # the stock page loads its scripts from elsewhere; ours stands alone
        redoc_url=None,
        redirect_slashes=False,  # a redirect would be an answer without JSON
    )
    routers = (native_router(backend, settings), operations_router(backend, settings))
    for router in routers:
        api.include_router(router)

    async def refuse(request: Request, error: Exception) -> Json:
        refusal = error if isinstance(error, Refusal) else from_http(error)  # type: ignore[arg-type]
        request_id: str = request.state.request_id
        if STATUS[refusal.code] >= 500:
            fields = {"request_id": request_id, "code": refusal.code}
            _log.error("request refused", extra={"fields": fields}, exc_info=error)
        response = error_response(refusal, request_id, settings.retry_after_s)
        if allowed := refusal.details.get("allowed"):
            response.headers["Allow"] = ", ".join(allowed)
        return response

    api.add_exception_handler(Refusal, refuse)
    api.add_exception_handler(HTTPException, refuse)
    routes = [*api.routes, *(route for router in routers for route in router.routes)]
    closed = [route for route in routes if hasattr(route, "path")]
    api.add_middleware(Gate, most=settings.ingress_max_ongoing, retry_after_s=settings.retry_after_s)
    api.add_middleware(Observe, recorder=recorder, routes=closed, proxied=proxied)
    return api


def _version() -> str:
    try:
        return version("dragoman")
    except PackageNotFoundError:  # run from a folder of sources
        return "0"
