"""Requests with a LoRA adapter answer as a checkpoint into which the adapter was merged.

All of them have it: where some have none, vLLM's layers on a CPU give it to these, too.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine import test_crossing, test_read_time_beside
from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import Answer, run_engine
from tests.engine.test_crossing import SCALES, Request, assert_answers_as_unrotated
from tests.engine.test_read_time import assert_as
from tests.engine.unrotated_oracle import UnrotatedOracle

RANK, ALPHA = 8, 16
ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj"]
ENGINE: dict[str, Any] = {"enable_lora": True, "max_lora_rank": RANK, "max_loras": 1}


@pytest.fixture(scope="module")
def folders(tiny: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    """An adapter of all that attends, keys among it, and the checkpoint into which it was merged."""
    adapter, merged = tmp_path_factory.mktemp("adapter"), tmp_path_factory.mktemp("merged") / "model"
    shutil.copytree(tiny, merged)
    weights, parts = load_file(tiny / "model.safetensors"), {}
    draw = torch.Generator().manual_seed(1)
    for name in [name for name in weights if name.split(".")[-2] in ADAPTED]:
        num_out, num_in = weights[name].shape
        down, up = (torch.randn(shape, generator=draw) * 0.15 for shape in ((RANK, num_in), (num_out, RANK)))
        module = f"base_model.model.{name.removesuffix('.weight')}"
        parts |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
        weights[name] = weights[name] + ALPHA / RANK * up @ down
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    save_file(parts, adapter / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": ADAPTED, "bias": "none"}
    (adapter / "adapter_config.json").write_text(json.dumps(said))
    return adapter, merged


def answers_of(
    model: pathlib.Path, arguments: dict[str, Any], batch: list[Request], adapter: pathlib.Path, folder: pathlib.Path
) -> list[Answer]:
    module, environment = "tests.engine.with_adapter", {"ADAPTER": str(adapter)}
    (answers,) = run_engine(model, arguments, [batch], module=module, environment=environment, folder=folder)
    return answers


def test_requests_cross_with_an_adapter(
    folders: tuple[pathlib.Path, pathlib.Path], tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    adapter, merged = folders
    oracle = UnrotatedOracle(merged, "yarn", SCALES)
    batch = [(prompts(240), 40), (prompts(500), 40), (prompts(200), 340), (prompts(40), 30)]
    answers = answers_of(tiny, test_crossing.arguments("yarn", **ENGINE), batch, adapter, tmp_path)
    for request, answer in zip(batch, answers, strict=True):
        assert_answers_as_unrotated(oracle, request, answer)


def test_queries_turn_with_an_adapter(
    folders: tuple[pathlib.Path, pathlib.Path], tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    adapter, merged = folders
    batch = test_read_time_beside.mixed(prompts)
    answers = answers_of(tiny, test_read_time_beside.arguments(**ENGINE), batch, adapter, tmp_path)
    assert_as(test_read_time_beside.oracle_of(test_read_time_beside.REROPE, merged), batch, answers)
