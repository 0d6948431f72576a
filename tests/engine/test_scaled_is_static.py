"""A scaled request is stock vLLM's at a static scale, to the bit, given a table of exact angles."""

from __future__ import annotations

import pathlib

import pytest

from posenc_runtime.kv.deployment import Deployment, OnCrossing
from tests.checkpoints import TRAINED
from tests.engine.beside_stock import answers_of_both, assert_same_to_the_bit
from tests.engine.conftest import PromptMaker

FACTOR = 4


@pytest.mark.parametrize(
    ("rope_type", "on_crossing", "dtype"),
    [
        ("yarn", "pin", "float32"),
        pytest.param("yarn", "rerotate", "bfloat16", marks=pytest.mark.promise("scaled")),
        ("linear", "rerotate", "float32"),
    ],
)
def test_scaled_requests_equal_those_of_a_static_deployment_to_the_bit(
    rope_type: str,
    on_crossing: OnCrossing,
    dtype: str,
    tiny: pathlib.Path,
    prompts: PromptMaker,
    tmp_path: pathlib.Path,
) -> None:
    deployment = Deployment(
        rope_type=rope_type,
        scales=(1, 2, FACTOR),
        original_max_position_embeddings=TRAINED,
        max_model_len=FACTOR * TRAINED,
        headroom_tokens=24,
        on_crossing=on_crossing,
    )
    rope_parameters = {
        "rope_type": rope_type,
        "rope_theta": 10000.0,
        "factor": float(FACTOR),
        "original_max_position_embeddings": TRAINED,
    }
    batch = [(prompts(length), 24) for length in (489, 513, 600, 767, 1000)]  # all over twice the trained length
    answers, theirs = answers_of_both(
        tiny,
        deployment,
        batch,
        dtype=dtype,
        hf_overrides={"rope_parameters": rope_parameters},
        folder=tmp_path,
        environment={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"},
        module="tests.engine.static_in_float64",
    )
    assert [answer.posenc and (answer.posenc["scale"], answer.posenc["crossings"]) for answer in answers] == [
        (FACTOR, [])
    ] * len(batch)
    assert_same_to_the_bit(answers, theirs)
