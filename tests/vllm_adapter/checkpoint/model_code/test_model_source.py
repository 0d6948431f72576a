"""The source of a model is found and read without importing it, wherever it is."""

from __future__ import annotations

import pathlib
import sys
import types

import pytest
from vllm.model_executor.models.registry import ModelRegistry

from posenc_runtime.vllm_adapter.checkpoint.model_code.model_source import (
    _readers,
    condition_of_rotating,
    reader_of_the_table,
    sources,
)
from posenc_runtime.vllm_adapter.checkpoint.scalable_checkpoints import refuse_checkpoint
from posenc_runtime.vllm_adapter.contract.errors import Unsupported

FILES = {
    "plugged/models/wide/__init__.py": "if True:\n    from .parts.model import Wide\n",
    "plugged/models/wide/parts/__init__.py": "",
    "plugged/models/wide/parts/model.py": "from ..attention import Attention\nraise ImportError('needs a device')\n",
    "plugged/models/wide/attention.py": "from . import model\n\ndef rotate(self):\n    return self.cos_sin_cache\n",
    "plugged/models/borrows.py": "from .plain import Plain\n\nclass Borrows(Plain):\n    pass\n",
    "plugged/models/plain.py": (
        "from vllm import LLM\n\ndef forward(self, q, k):\n    if self.rotates:\n        return rotary_emb(q, k)\n"
    ),
}


@pytest.fixture(autouse=True)
def plugged(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of models that somebody else has written, of which the first two folders are no packages."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for architecture, module_name in (
        ("WideForCausalLM", "plugged.models.wide"),
        ("PlainForCausalLM", "plugged.models.plain"),
        ("BorrowsForCausalLM", "plugged.models.borrows"),
        ("TypedForCausalLM", "__main__"),
    ):
        monkeypatch.setitem(ModelRegistry.models, architecture, types.SimpleNamespace(module_name=module_name))
    _readers.cache_clear()
    condition_of_rotating.cache_clear()


def config() -> types.SimpleNamespace:
    return types.SimpleNamespace(rope_parameters={"rope_type": "default", "rope_theta": 10000.0})


def test_all_files_of_a_models_package_are_read_and_none_is_imported() -> None:
    names = [name for name, _ in sources("WideForCausalLM")]
    assert sorted(names) == [f"plugged.models.wide{part}" for part in ("", ".attention", ".parts.model")]
    assert not [name for name in sys.modules if name.startswith("plugged")]


def test_a_file_that_reads_the_table_is_found_in_another_ones_package() -> None:
    with pytest.raises(Unsupported, match=r"plugged\.models\.wide\.attention of vLLM reads the table"):
        refuse_checkpoint(config(), ["WideForCausalLM"])


def test_a_file_that_reads_the_table_for_some_models_is_asked_by_their_configuration() -> None:
    asked = config()
    assert reader_of_the_table(asked, "DeepseekV3ForCausalLM") is None
    asked.index_topk = 2048
    assert reader_of_the_table(asked, "DeepseekV3ForCausalLM") == "vllm.model_executor.models.deepseek_v2"
    # Reads it only by a kernel that is never taken for a scaled embedding.
    assert reader_of_the_table(asked, "Qwen3NextForCausalLM") is None


def test_a_condition_of_rotating_is_found_in_a_file_of_a_folder_that_is_no_package() -> None:
    refuse_checkpoint(config(), ["PlainForCausalLM"])
    assert condition_of_rotating("PlainForCausalLM") == "self.rotates"


@pytest.mark.parametrize(
    ("architecture", "condition"),
    [
        ("BorrowsForCausalLM", "self.rotates"),
        ("GraniteMoeSharedForCausalLM", "self.use_rope"),
        ("LlamaForCausalLM", None),
    ],
)
def test_a_condition_of_rotating_is_found_where_layers_come_from_another_models_file(
    architecture: str, condition: str | None
) -> None:
    assert condition_of_rotating(architecture) == condition


def test_a_model_whose_source_cannot_be_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(
        Unsupported, match="the source of its model in vLLM, __main__, to find how it rotates, and cannot read it"
    ):
        refuse_checkpoint(config(), ["TypedForCausalLM"])
