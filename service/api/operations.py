"""Routes for those who run the service: health, readiness, metrics and documentation."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from service.api.errors import Json
from service.api.ports import ReadyReport, TranslationBackend
from service.api.schemas import ErrorBody, HealthResponse, ReadyResponse
from service.errors import NotReady
from service.settings import Settings

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of Prometheus text."""

_PAGE = Path(__file__).with_name("docs.html")
_PAGE_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


def operations_router(backend: TranslationBackend, settings: Settings) -> APIRouter:
    """The routes /healthz, /readyz, /metrics and /docs."""
    router = APIRouter(tags=["operations"])

    # Some load balancers and uptime checks ask with HEAD.
    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz", summary="Is the process up?", response_model=HealthResponse)
    async def healthz() -> Json:
        """Say that the process is up; nothing more."""
        return Json({"status": "ok"})

    @router.head("/readyz", include_in_schema=False)
    @router.get(
        "/readyz",
        summary="Does translation work?",
        response_model=ReadyResponse,
        responses={503: {"model": ErrorBody, "description": "not_ready"}},
    )
    async def readyz() -> Json:
        """Translate something short on the real path, and say whether that just worked."""
        report = await _ready(backend, settings)
        if not report.ready:
            raise NotReady(details={"models": {name: reason or "ready" for name, reason in report.models.items()}})
        return Json({"status": "ready", "models": dict.fromkeys(report.models, "ready")})

    @router.get("/metrics", summary="Figures for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Show the figures of all replicas as Prometheus text."""
        return Response(await backend.render_metrics(), media_type=EXPOSITION)

    @router.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> Response:
        """Show this API, readable and ready to try, without any resource from elsewhere."""
        return HTMLResponse(_PAGE.read_text("utf-8"), headers={"Content-Security-Policy": _PAGE_POLICY})

    return router


async def _ready(backend: TranslationBackend, settings: Settings) -> ReadyReport:
    try:
        async with asyncio.timeout(settings.ready_timeout_s):
            return await backend.ready()
    except TimeoutError:
        return ReadyReport({model.name: "the trial translation took too long" for model in backend.models()})
