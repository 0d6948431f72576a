"""An unscaled request is bit-identical to stock vLLM, which knows nothing of us."""

from __future__ import annotations

import pathlib

import pytest
import torch

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from tests.checkpoints import TRAINED
from tests.engine.beside_stock import answers_of_both, assert_same_to_the_bit
from tests.engine.conftest import PromptMaker
from tests.engine.device import ON_CUDA

needs_float8 = pytest.mark.skipif(
    not ON_CUDA and not torch.cpu._is_avx512_supported(),
    reason="vLLM keeps float8 keys on a CPU with AVX-512 only",
)


@pytest.mark.parametrize(
    ("rope_type", "on_crossing", "dtype", "kv_cache_dtype"),
    [
        pytest.param("yarn", "rerotate", "float32", "auto", marks=pytest.mark.promise("unscaled")),
        ("yarn", "pin", "bfloat16", "auto"),
        ("default", "rerotate", "float32", "auto"),
        pytest.param("yarn", "rerotate", "bfloat16", "fp8", marks=needs_float8),
    ],
)
def test_tokens_and_logprobs_of_unscaled_requests_are_those_of_stock_vllm_to_the_bit(
    rope_type: str,
    on_crossing: OnCrossing,
    dtype: str,
    kv_cache_dtype: str,
    tiny: pathlib.Path,
    prompts: PromptMaker,
    tmp_path: pathlib.Path,
) -> None:
    deployment = Deployment(
        rope_type=rope_type,
        scales=(1, 8) if rope_type == "yarn" else (1,),
        original_max_position_embeddings=TRAINED,
        max_model_len=8 * TRAINED if rope_type == "yarn" else TRAINED,
        headroom_tokens=32,
        on_crossing=on_crossing,
    )
    batch = [(prompts(length), 24) for length in (1, 7, 63, 64, 65, 150, 232)]
    hf_overrides = {"max_position_embeddings": deployment.max_model_len}
    answers, theirs = answers_of_both(
        tiny,
        deployment,
        batch,
        dtype=dtype,
        hf_overrides=hf_overrides,
        kv_cache_dtype=kv_cache_dtype,
        folder=tmp_path,
    )
    assert [answer.posenc and answer.posenc["scale"] for answer in answers] == [1.0] * len(batch)
    assert_same_to_the_bit(answers, theirs)
