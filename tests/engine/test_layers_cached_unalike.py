"""Where layers' keys are cached in different types, each request still has its own scale in all of them."""

from __future__ import annotations

import pathlib

import pytest
import torch

from posenc_runtime.kv.deployment import OnCrossing
from tests.checkpoints import WIDE, save_tiny
from tests.engine import test_crossing
from tests.engine.conftest import PromptMaker
from tests.engine.device import ON_CUDA
from tests.engine.run_engine import run_engine
from tests.engine.unrotated_oracle import UnrotatedOracle
from tests.gpu.test_engine_bfloat16 import assert_near
from tests.tolerance import LOGPROB_RMS_FLOAT8

pytestmark = pytest.mark.skipif(
    not ON_CUDA and not torch.cpu._is_avx512_supported(),
    reason="vLLM keeps float8 keys on a CPU with AVX-512 only",
)


@pytest.mark.parametrize("on_crossing", ["pin", "rerotate"])
def test_a_bfloat16_layer_among_float8_layers_keeps_requests_at_their_own_scales(
    on_crossing: OnCrossing, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    model = save_tiny(tmp_path / "wide", **WIDE)
    batch = [(prompts(40), 6), (prompts(240), 24), (prompts(520), 6)]  # the second grows past the trained length
    arguments = test_crossing.arguments(
        "yarn",
        {"on_crossing": on_crossing},
        dtype="bfloat16",
        kv_cache_dtype="fp8",
        kv_cache_dtype_skip_layers=["0"],
    )
    (answers,) = run_engine(model, arguments, [batch], folder=tmp_path)
    oracle = UnrotatedOracle(model, "yarn", test_crossing.SCALES)
    for (prompt, _), answer, scale in zip(batch, answers, (1, 2, 4), strict=True):
        assert answer.posenc is not None and answer.posenc["scale"] == scale
        began_at = 1 if on_crossing == "rerotate" and scale == 2 else scale
        assert_near(oracle, prompt, answer, began_at, LOGPROB_RMS_FLOAT8)
