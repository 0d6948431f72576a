"""Every route that the installed vLLM can register has a class."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import vllm.entrypoints
import vllm.plugins
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from starlette.routing import Mount, Route
from vllm.config import ProfilerConfig
from vllm.entrypoints.launchers.app import build_app
from vllm.utils.argparse_utils import FlexibleArgumentParser

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.in_server.endpoints import with_ours
from server.app.edge.route_classes import CLASSES, RouteClass

ADMINISTRATION_OF_VLLM = {"/pause", "/resume", "/sleep", "/wake_up", "/collective_rpc", "/scale_elastic_ep"}


@pytest.fixture(autouse=True)
def restored_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the handlers for adapters, which every later application in this process would have, too."""
    registry = importlib.import_module("model_hosting_container_standards.common.handler").handler_registry
    for name, handlers in vars(registry).items():
        monkeypatch.setattr(registry, name, dict(handlers))


def templates_of_routers() -> set[str]:
    """Of every router in vLLM's modules, whether a server includes it or not."""
    found = set()
    for module in pkgutil.walk_packages(vllm.entrypoints.__path__, "vllm.entrypoints."):
        if not module.name.endswith("api_router"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, APIRouter):
                found |= {getattr(route, "path", type(route).__name__) for route in value.routes}
    return found


def applications(monkeypatch: pytest.MonkeyPatch, **access: Any) -> Iterator[FastAPI]:
    """With every task, the routes of development, and everything else that arguments turn on; with our plugin."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    monkeypatch.setattr(vllm.plugins, "load_endpoint_plugins", with_ours(lambda tasks: []))
    flags = ["--model", "none", "--enable-scale-out", "--enable-tokenizer-info-endpoint", "--api-key", "good"]
    args = releases.cli_args().make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    args.enable_fault_tolerance = True
    args.profiler_config = ProfilerConfig(profiler="cuda")
    args.additional_config = {"posenc": {}, "posenc_access": access}
    tasks: Any = (
        *("generate", "transcription", "realtime", "render"),
        *("embed", "classify", "token_embed", "token_classify"),
    )
    for args.enable_offline_docs in (True, False):
        args.api_key = ["good"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield build_app(args, tasks)


def templates(app: FastAPI) -> set[str]:
    return {getattr(route, "path", type(route).__name__) for route in app.routes}


def test_every_route_of_vllm_has_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    found = templates_of_routers().union(*map(templates, applications(monkeypatch)))
    assert len(found) > 70 and found >= ADMINISTRATION_OF_VLLM
    assert found - CLASSES.keys() == set(), "give these routes a class in server/app/edge/route_classes.py"


def test_every_route_of_vllm_that_is_not_open_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for app in applications(monkeypatch):
        client = TestClient(app)
        asked = {
            (method, route.path): client.request(method, route.path.replace("{", "").replace("}", "")).status_code
            for route in app.routes
            if isinstance(route, Route | Mount) and CLASSES[route.path] is not RouteClass.OPEN
            for method in getattr(route, "methods", None) or ("GET", "POST")
        }
        assert len(asked) > 55 and {each: status for each, status in asked.items() if status != 401} == {}


def test_no_middleware_of_ours_is_outside_of_vllms_and_no_key_is_left_to_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    for app in applications(monkeypatch):
        names = [middleware.cls.__name__ for middleware in app.user_middleware]  # type: ignore[attr-defined]
        assert "AuthenticationMiddleware" not in names
        assert names.index("CORSMiddleware") < names.index("AccessMiddleware")
