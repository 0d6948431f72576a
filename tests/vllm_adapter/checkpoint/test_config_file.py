"""What is refused before vLLM is imported, against what vLLM refuses."""

from __future__ import annotations

import json
import pathlib

import pytest

from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_checkpoint
from posenc_runtime.vllm_adapter.checkpoint.config_file import look
from posenc_runtime.vllm_adapter.checkpoint.hub import UnreadableCheckpoint
from tests.checkpoints import save_tiny

CONFIGURATIONS = {
    "missing": (None, "there is no config.json in this folder"),
    "empty": (b"", "config.json is not JSON: Expecting value: line 1 column 1 (char 0)"),
    "torn": (b'{"model_type": "llama"', "config.json is not JSON: Expecting ',' delimiter: line 1 column 23 (char 22)"),
    "no-text": (b"\xff\xfe{}", "config.json is not JSON: 'utf-8' codec can't decode byte 0xff"),
    "list": (b"[1, 2]", "config.json must be an object of keys and values, got list"),
}


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_a_folder_that_vllm_refuses_is_refused_in_the_same_words_before_its_import(
    case: str, tmp_path: pathlib.Path
) -> None:
    content, reason = CONFIGURATIONS[case]
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    model = str(tmp_path)
    with pytest.raises(UnreadableCheckpoint) as first:
        look(model, {})
    assert str(first.value).startswith(f"the configuration of {model!r} cannot be read: {reason}")
    with pytest.raises(UnreadableCheckpoint) as later:
        read_checkpoint(model, {})
    assert str(later.value) == str(first.value)
    with pytest.raises(UnreadableCheckpoint, match="cannot be read: "):
        read_checkpoint(model, {}, place=model)  # vLLM's own refusal


@pytest.mark.parametrize(
    ("file", "engine"),
    [
        ("params.json", {}),
        ("model-Q4_K_M.gguf", {}),
        ("consolidated.safetensors", {"config_format": "mistral"}),
        ("consolidated.safetensors", {"config_format": "somebodys-own"}),
    ],
)
def test_a_folder_that_vllm_may_read_in_another_way_is_left_to_it(
    file: str, engine: dict[str, object], tmp_path: pathlib.Path
) -> None:
    (tmp_path / file).touch()
    assert look(str(tmp_path), engine).place == str(tmp_path)


def test_a_configuration_elsewhere_is_looked_at_there(tmp_path: pathlib.Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "config").mkdir()
    engine = {"hf_config_path": str(tmp_path / "config")}
    with pytest.raises(UnreadableCheckpoint, match=r"the configuration of '.*/config' cannot be read"):
        look(str(tmp_path / "weights"), engine)
    (tmp_path / "config" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert look(str(tmp_path / "weights"), engine).place == str(tmp_path / "config")


def test_a_checkpoint_that_can_be_served_passes(tmp_path: pathlib.Path) -> None:
    folder = str(save_tiny(tmp_path))
    assert look(folder, {}).place == folder and read_checkpoint(folder, {}).architecture == "LlamaForCausalLM"
