"""Names of vLLM's arguments that are read in its sources."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.releases import arguments


def test_they_are_the_fields_that_the_imported_classes_have() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    for section, theirs in (("engine", AsyncEngineArgs), ("server", releases.cli_args().FrontendArgs)):
        fields = {field.name for field in dataclasses.fields(theirs)}
        assert arguments.argument_names()[section] == {name for name in fields if not name.startswith("_")}


def test_reading_them_imports_neither_vllm_nor_torch() -> None:
    script = (
        "import sys; from posenc_runtime.vllm_adapter.releases.arguments import argument_names; "
        "print(len(argument_names()['engine']) > 100, {'vllm', 'torch'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "True set()\n"


def test_where_there_is_no_vllm_there_are_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert arguments._fields(("engine/arg_utils.py",), "AsyncEngineArgs") == frozenset()
