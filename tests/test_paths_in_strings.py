"""Strings that name our modules, classes and functions: they are imported when somebody needs them, maybe in a process
of vLLM's, and no tool that renames sees them."""

from __future__ import annotations

import ast
import pathlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

# vLLM warns about things that are not ours when it is imported; see there.
import tests.vllm_adapter.conftest  # noqa: F401

ROOT = pathlib.Path(__file__).parents[1]
PATH = re.compile(r"posenc_runtime(\.\w+)+(:\w+)?")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GROUPS: dict[str, dict[str, str]] = {"scripts": PROJECT["scripts"], **PROJECT["entry-points"]}


def in_the_sources() -> Iterator[str]:
    for folder in ("posenc_runtime", "server"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and PATH.fullmatch(node.value):
                    yield node.value


def resolved(path: str) -> Any:
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{path} names nothing: {error}")


@pytest.mark.parametrize("path", sorted(set(in_the_sources())))
def test_every_path_in_the_sources_names_something(path: str) -> None:
    resolved(path)


def test_the_sources_have_the_paths_that_an_engines_configuration_carries() -> None:
    from posenc_runtime.vllm_adapter.contract import names

    assert {names.SCHEDULER, names.CONNECTOR_MODULE, names.WORKER_EXTENSION} <= set(in_the_sources())
    assert resolved(f"{names.CONNECTOR_MODULE}:{names.CONNECTOR}").__name__ == names.CONNECTOR


@pytest.mark.parametrize("path", [path for group in GROUPS.values() for path in group.values()])
def test_every_entry_point_names_something_that_can_be_called(path: str) -> None:
    assert callable(resolved(path))


def test_the_entry_points_are_in_the_groups_that_are_looked_for() -> None:
    from vllm.plugins import DEFAULT_PLUGINS_GROUP

    from posenc_runtime.vllm_adapter.in_server.endpoints import GROUP

    assert set(GROUPS) == {"scripts", DEFAULT_PLUGINS_GROUP, GROUP}


@pytest.mark.parametrize("name", ["CPU_ATTN", "CUSTOM", "FLASH_ATTN", "TRITON_ATTN"])
def test_every_attention_backend_is_registered_by_a_path_that_names_one_of_ours(name: str) -> None:
    from vllm.v1.attention.backend import AttentionBackend
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from posenc_runtime.vllm_adapter.in_worker import attention

    attention.register()
    path = AttentionBackendEnum[name].get_path()
    assert PATH.fullmatch(path) and issubclass(resolved(path), AttentionBackend)


def test_every_model_is_registered_by_a_path_that_names_one_of_ours() -> None:
    from vllm.model_executor.models import ModelRegistry

    from posenc_runtime.vllm_adapter.checkpoint import own_models

    own_models.register()
    ours = {
        architecture: f"{found.module_name}:{found.class_name}"
        for architecture, found in ModelRegistry.models.items()
        if getattr(found, "module_name", "").startswith("posenc_runtime.")
    }
    assert len(ours) == 5
    for path in ours.values():
        assert isinstance(resolved(path), type)
