"""vLLM's reader of configurations without the rest of vLLM says what all of vLLM says."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_checkpoint
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.releases import later, reader
from tests import model_configs
from tests.checkpoints import save_tiny

ROOT = pathlib.Path(__file__).parents[3]
NAMES = sorted(name for name, said in vars(model_configs).items() if isinstance(said, dict) and "architectures" in said)
# Their code is with the checkpoint, or vLLM has a class of its own for them.
LEFT = (*model_configs.OWN_CODE, "sarvam_mla", "step3p5")
# Reads the configurations in the folders that it is given, and prints what is read and whether vLLM is there.
READ = """
import json, pathlib, sys
from posenc_runtime.vllm_adapter.checkpoint import checkpoint
from posenc_runtime.vllm_adapter.releases import reader
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.checkpoint import own_models
own_models.register_configurations()
for folder in map(pathlib.Path, sys.argv[1:]):
    try:
        config = reader.read_alone(str(folder), trust_remote_code=False)
    except reader.NotRead as error:
        print(json.dumps([folder.name, "not read", "vllm" in sys.modules]))
        continue
    try:
        found = repr(checkpoint._said_by(config))
    except Unsupported as error:
        found = str(error)
    print(json.dumps([folder.name, [config.to_dict(), found], "vllm" in sys.modules], default=str))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    parent = tmp_path_factory.mktemp("published")
    for name in NAMES:
        (parent / name).mkdir()
        (parent / name / "config.json").write_text(json.dumps(getattr(model_configs, name)))
    return {name: parent / name for name in NAMES}


@pytest.fixture(scope="module")
def alone(folders: dict[str, pathlib.Path]) -> dict[str, Any]:
    """What a process without vLLM has read, by name."""
    command = [sys.executable, "-c", READ, *map(str, folders.values())]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    said = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]
    assert not any(has_vllm for *_, has_vllm in said)
    return {name: found for name, found, _ in said}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_is_read_alone_as_all_of_vllm_reads_it(
    name: str, alone: dict[str, Any], folders: dict[str, pathlib.Path]
) -> None:
    if getattr(model_configs, name)["model_type"] in LEFT:
        assert alone[name] == "not read"
        return
    from vllm.transformers_utils.config import get_config

    config, found = alone[name]
    assert config == json.loads(json.dumps(get_config(folders[name], False).to_dict(), default=str))
    try:
        assert found == repr(read_checkpoint(str(folders[name]), {}))
    except Unsupported as error:
        assert found == str(error)


def test_the_table_of_models_has_what_vllm_has_registered() -> None:
    from vllm.model_executor.models.registry import _VLLM_MODELS, _resolve_module_name

    theirs = {name: (_resolve_module_name(module), model) for name, (module, model) in _VLLM_MODELS.items()}
    assert reader.registered_models() == theirs


def test_with_vllm_in_the_process_nothing_is_read_alone() -> None:
    assert not reader.reads_alone()


@pytest.mark.parametrize("asked", [{"trust_remote_code": True}, {"config_format": "mistral"}], ids=["code", "format"])
def test_code_and_formats_of_others_are_left_to_all_of_vllm(asked: dict[str, Any], tmp_path: pathlib.Path) -> None:
    with pytest.raises(reader.NotRead):
        reader.read_alone(str(save_tiny(tmp_path)), **asked)


def test_a_module_imports_what_it_is_told_to_only_when_it_uses_it(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "reading.py"
    source.write_text(
        "from decimal import Decimal\nfrom wave import Error as Wrong, open\n\ndef half():\n    return 'x'\n"
    )
    before = set(sys.modules)
    module = later.load("posenc_reading", source, ("wave",))
    try:
        assert "wave" in before or "wave" not in sys.modules
        import wave

        assert isinstance(wave.Error("of its own"), module.Wrong)
        assert module.half() == "x"
    finally:
        del sys.modules["posenc_reading"]
