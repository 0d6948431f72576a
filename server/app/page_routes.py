"""The page for people at ``GET /``, and the documentation of the routes at ``GET /docs``, without another host."""

from __future__ import annotations

import importlib.metadata
import pathlib
from collections.abc import Iterable, Mapping

from fastapi import APIRouter, FastAPI, HTTPException, Response

from posenc_runtime.vllm_adapter.in_server.endpoints import swagger_files

PAGE = "/"
DOCS = "/docs"
FILES = "/posenc/page"
_FOLDER = pathlib.Path(__file__).parent / "page"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The page runs its own scripts, and asks its own server. Swagger UI has pictures in its style sheet.
HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:"),
            *("connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Add the page and its files, and put documentation that needs no other host in the place of FastAPI's.

    The description of the routes gets our name and version.
    """
    app.title, app.version = "Posenc", importlib.metadata.version("posenc")
    app.include_router(_router(_ours()))
    _replace_docs(app)


def _ours() -> Mapping[str, pathlib.Path]:
    return {path.name: path for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES}


def _router(files: Mapping[str, pathlib.Path]) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get(PAGE)
    def page() -> Response:
        return _answer(files["index.html"])

    @router.get(FILES + "/{name}")
    def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, f"the page has no file {name!r}")
        return _answer(files[name])

    return router


def _answer(path: pathlib.Path) -> Response:
    return Response(path.read_bytes(), media_type=_MEDIA_TYPES[path.suffix], headers=HEADERS)


def _replace_docs(app: FastAPI) -> None:
    """Serve Swagger UI from the files that come with vLLM; without them there is no documentation.

    FastAPI's own pages, and vLLM's for machines without a network, name files of other hosts.
    """
    if app.openapi_url is None:
        return
    stock = {DOCS, "/redoc", app.docs_url, app.redoc_url, app.swagger_ui_oauth2_redirect_url}
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) not in stock]
    app.docs_url = app.redoc_url = None
    if found := swagger_files():
        app.include_router(_docs_router(found))


def _docs_router(swagger: Iterable[pathlib.Path]) -> APIRouter:
    router, files = APIRouter(include_in_schema=False), {path.name: path for path in swagger}

    @router.get(DOCS)
    def docs() -> Response:
        return _answer(_FOLDER / "docs.html")

    @router.get(FILES + "/swagger/{name}")
    def file(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, f"the documentation has no file {name!r}")
        return _answer(files[name])

    return router
