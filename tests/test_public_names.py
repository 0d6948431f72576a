"""Names that others write down: in their Python, in their flags of vLLM, in their files."""

from __future__ import annotations

import importlib.metadata
import inspect
import pathlib
import subprocess
import sys
import tomllib

import pytest

# vLLM warns about things that are not ours when it is imported; see there.
import tests.vllm_adapter.conftest  # noqa: F401

ROOT = pathlib.Path(__file__).parents[1]
CONNECTOR = {
    "kv_connector": "PosencConnector",
    "kv_connector_module_path": "posenc_runtime.vllm_adapter.connector",
    "kv_role": "kv_both",
}
SCHEDULER = "posenc_runtime.vllm_adapter.scheduler.PosencScheduler"


def said_by(code: str) -> str:
    """What an interpreter of its own prints: this one has imported everything."""
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_importing_the_package_imports_neither_torch_nor_vllm() -> None:
    heavy = "{'torch', 'vllm', 'numpy', 'transformers', 'pydantic', 'fastapi'}"
    assert said_by(f"import sys, posenc_runtime; print({heavy} & sys.modules.keys())") == "set()\n"


def test_what_engine_arguments_are_made_of_is_had_without_importing_torch_or_vllm() -> None:
    code = "import sys; from posenc_runtime import AttentionChoice, Deployment, engine_arguments; print(*sys.modules)"
    imported = said_by(code).split()
    assert "posenc_runtime.kv.deployment" in imported and not {"torch", "vllm"} & set(imported)


def test_the_public_names_of_python() -> None:
    import posenc_runtime
    from posenc_runtime import ArgumentRefused, AttentionChoice, Deployment, __version__, engine_arguments

    assert posenc_runtime.__all__ == [
        "ArgumentRefused", "AttentionChoice", "Deployment", "__version__", "engine_arguments",
    ]  # fmt: skip
    assert set(posenc_runtime.__all__) <= set(dir(posenc_runtime))
    for public in (ArgumentRefused, AttentionChoice, Deployment, engine_arguments):
        assert inspect.getdoc(public)
    assert issubclass(ArgumentRefused, ValueError)
    assert list(inspect.signature(engine_arguments).parameters) == ["deployment", "engine", "attention"]
    assert __version__ == importlib.metadata.version("posenc")


def test_the_installed_version_is_that_of_the_sources() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert importlib.metadata.version("posenc") == project["version"]


def test_a_name_that_is_not_public_is_refused_with_those_that_are() -> None:
    import posenc_runtime

    with pytest.raises(
        AttributeError, match=r"'posenc_runtime' has no attribute 'Deploymnt'; the public names are .*Deployment"
    ):
        _ = posenc_runtime.Deploymnt  # type: ignore[attr-defined]


def test_vllm_finds_the_scheduler_by_its_path() -> None:
    from vllm.utils.import_utils import resolve_obj_by_qualname
    from vllm.v1.core.sched.scheduler import Scheduler

    assert issubclass(resolve_obj_by_qualname(SCHEDULER), Scheduler)


def test_vllm_finds_the_connector_by_its_name_and_module() -> None:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    found = KVConnectorFactory.get_connector_class(KVTransferConfig(**CONNECTOR))
    assert found.__name__ == "PosencConnector"


def test_engine_arguments_say_the_names_that_plain_vllm_takes() -> None:
    from posenc_runtime import Deployment, engine_arguments

    deployment = Deployment(
        rope_type="yarn", scales=(1, 2), original_max_position_embeddings=512, max_model_len=1024, headroom_tokens=64
    )
    arguments = engine_arguments(deployment)
    assert arguments["scheduler_cls"] == SCHEDULER
    assert arguments["kv_transfer_config"] == CONNECTOR
    assert arguments["additional_config"]["posenc"]["scales"] == [1, 2]
    assert set(arguments["additional_config"]) == {"posenc", "posenc_attention"}
    assert arguments["additional_config"]["posenc_attention"]["backend"] == "auto"
