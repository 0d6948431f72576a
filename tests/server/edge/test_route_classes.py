"""Every route that the installed vLLM can register has a class."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from typing import Any

import pytest
import vllm.entrypoints
from fastapi import APIRouter
from vllm.config import ProfilerConfig
from vllm.entrypoints.launchers.app import build_app
from vllm.utils.argparse_utils import FlexibleArgumentParser

from posenc_runtime.vllm_adapter import compat
from server.edge.route_classes import CLASSES

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


def templates_of_application(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Of an application with every task, the routes of development, and everything else that arguments turn on."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    flags = ["--model", "none", "--enable-scale-out", "--enable-offline-docs", "--enable-tokenizer-info-endpoint"]
    args = compat.cli_args().make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    args.enable_fault_tolerance = True
    args.profiler_config = ProfilerConfig(profiler="cuda")
    tasks: Any = (
        "generate",
        "transcription",
        "realtime",
        "embed",
        "classify",
        "token_embed",
        "token_classify",
        "render",
    )
    found = set()
    for offline in (True, False):
        args.enable_offline_docs = offline
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            app = build_app(args, tasks)
        found |= {getattr(route, "path", type(route).__name__) for route in app.routes}
    return found


def test_every_route_of_vllm_has_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = templates_of_application(monkeypatch) | templates_of_routers()
    assert len(templates) > 70 and templates >= ADMINISTRATION_OF_VLLM
    assert templates - CLASSES.keys() == set(), "give these routes a class in server/edge/route_classes.py"
