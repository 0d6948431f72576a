"""The routes that supervisors and load balancers ask."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from server.app.health.state import Health, OneAtATime

_STARTING = "the server is starting"


class Probe(BaseModel):
    """The answer of a probe; ``reason`` says why the state is not good."""

    status: str
    reason: str | None = None


def probes_router() -> APIRouter:
    """``/health/live``, ``/health/ready`` and ``/health/generate``; ``/health`` and ``/ping``, which vLLM has too, are
    as ``/health/ready``."""
    router = APIRouter(tags=["health"], responses={200: {"model": Probe}, 503: {"model": Probe}})
    generating = OneAtATime()

    @router.get("/health/live")
    async def live(request: Request) -> JSONResponse:
        """200 until the engine has ended: then the server must be started anew."""
        health = _health(request)
        return _answer("live", health.why_not_live() if health else None)

    @router.get("/health")
    @router.get("/ping")
    @router.post("/ping", include_in_schema=False)
    @router.get("/health/ready")
    async def ready(request: Request) -> JSONResponse:
        """200 if new requests may be sent: not while the server starts or drains, or the engine does not answer."""
        health = _health(request)
        return _answer("ready", health.why_not_ready() if health else _STARTING)

    @router.get("/health/generate")
    async def generate(request: Request) -> JSONResponse:
        """200 once the engine has generated one token. The request waits in the queue as others do."""
        health = _health(request)
        if health is None:
            return _answer("generating", _STARTING)
        if reason := health.why_not_ready():
            return _answer("generating", reason)
        return _answer("generating", await generating.result(health.why_no_token))

    return router


def _health(request: Request) -> Health | None:
    return getattr(request.app.state, "posenc_health", None)


def _answer(status: str, reason: str | None) -> JSONResponse:
    probe = Probe(status=status) if reason is None else Probe(status=f"not {status}", reason=reason)
    # A proxy must not answer for us.
    headers = {"Cache-Control": "no-store"}
    return JSONResponse(probe.model_dump(exclude_none=True), 200 if reason is None else 503, headers)
