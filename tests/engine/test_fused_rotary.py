"""Attention that rotates by itself answers as attention over an un-rotated cache, whatever crosses beside it."""

from __future__ import annotations

import pathlib

import pytest

from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice, FusedKeys
from posenc_runtime.vllm_adapter.settings.arguments import engine_args
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.engine import test_crossing
from tests.engine.conftest import PromptMaker
from tests.engine.device import on_the_cpu
from tests.engine.run_engine import run_engine
from tests.engine.test_crossing import SCALES, assert_all_answer_as_unrotated, batches, deployment
from tests.engine.unrotated_oracle import UnrotatedOracle


@on_the_cpu("its attention stands in for a GPU's, which tests/gpu/test_engine.py runs")
@pytest.mark.parametrize("fused_keys", ["pure", "stock"])
def test_requests_that_cross_answer_as_an_unrotated_cache_would(
    fused_keys: FusedKeys,
    tiny: pathlib.Path,
    prompts: PromptMaker,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_args, "_is_cuda", lambda: True)
    asked = batches(prompts) if fused_keys == "pure" else batches(prompts)[:1]
    arguments = engine_arguments(
        deployment("yarn"), test_crossing.ENGINE, AttentionChoice(fused_rotary="on", fused_keys=fused_keys)
    )
    answers = run_engine(tiny, arguments, asked, module="tests.engine.rotating_on_cpu", folder=tmp_path)
    assert_all_answer_as_unrotated(UnrotatedOracle(tiny, "yarn", SCALES), asked, answers)
