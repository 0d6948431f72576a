"""Nothing of vLLM's sampler compiles while requests run."""

from __future__ import annotations

import ast
import pathlib
import sys
import types

import pytest
import torch
import vllm

from posenc_runtime.vllm_adapter.in_worker.eager_functions import call_uncompiled


def test_each_name_of_a_compiled_function_leads_to_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiling(*_: object) -> None:
        raise AssertionError("it compiles")

    @torch.compile(backend=compiling)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    here, there = types.ModuleType("theirs.here"), types.ModuleType("theirs.deep.there")
    here.doubled = there.imported = doubled  # type: ignore[attr-defined]
    here.other = sum  # type: ignore[attr-defined]
    elsewhere = types.ModuleType("theirs_too")
    elsewhere.doubled = doubled  # type: ignore[attr-defined]
    for module in (here, there, elsewhere):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert call_uncompiled("theirs") == ["theirs.deep.there.imported", "theirs.here.doubled"]
    for function in (here.doubled, there.imported):
        assert torch.equal(function(torch.ones(3)), torch.full((3,), 2.0))
    assert here.other is sum and call_uncompiled("theirs") == []
    assert elsewhere.doubled is doubled


def test_what_vllms_sampler_compiles_is_a_function_of_a_module() -> None:
    """So ``call_uncompiled`` finds it: a call of torch.compile anywhere else would be missed."""
    folder = pathlib.Path(vllm.__file__).parent / "v1" / "sample"
    decorated, calls = 0, 0
    for source in folder.rglob("*.py"):
        tree = ast.parse(source.read_text(encoding="utf-8"))
        calls += sum(ast.unparse(node.func) == "torch.compile" for node in ast.walk(tree) if isinstance(node, ast.Call))
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        decorated += sum(
            ast.unparse(each).startswith("torch.compile") for node in functions for each in node.decorator_list
        )
    assert calls == decorated > 0
