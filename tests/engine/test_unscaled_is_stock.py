"""An unscaled request is bit-identical to stock vLLM, which knows nothing of us."""

from __future__ import annotations

import pathlib

import pytest

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from tests.checkpoints import TRAINED
from tests.engine.beside_stock import answers_of_both, assert_same_to_the_bit
from tests.engine.conftest import PromptMaker


@pytest.mark.parametrize(
    ("rope_type", "on_crossing", "dtype"),
    [
        pytest.param("yarn", "rerotate", "float32", marks=pytest.mark.promise("unscaled")),
        ("yarn", "pin", "bfloat16"),
        ("default", "rerotate", "float32"),
    ],
)
def test_tokens_and_logprobs_of_unscaled_requests_are_those_of_stock_vllm_to_the_bit(
    rope_type: str,
    on_crossing: OnCrossing,
    dtype: str,
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
    answers, theirs = answers_of_both(tiny, deployment, batch, dtype=dtype, hf_overrides=hf_overrides, folder=tmp_path)
    assert [answer.posenc and answer.posenc["scale"] for answer in answers] == [1.0] * len(batch)
    assert_same_to_the_bit(answers, theirs)
