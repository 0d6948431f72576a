"""An unscaled request is bit-identical to stock vLLM, which knows nothing of us."""

from __future__ import annotations

import pathlib

import pytest

from tests.engine.conftest import PromptMaker
from tests.engine.run_engine import run_engine
from tests.engine.test_scales_in_one_batch import arguments


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_and_logprobs_of_unscaled_requests_are_those_of_stock_vllm_to_the_bit(
    dtype: str, tiny: pathlib.Path, prompts: PromptMaker, tmp_path: pathlib.Path
) -> None:
    ours = arguments("yarn", dtype=dtype, enforce_eager=True)
    stock = {
        name: value
        for name, value in ours.items()
        if name not in ("additional_config", "kv_transfer_config", "hf_overrides", "max_model_len")
    }
    batch = [(prompts(length), 24) for length in (1, 7, 63, 64, 65, 150, 232)]
    (theirs,) = run_engine(tiny, stock, [batch], plugins="", folder=tmp_path)
    (answers,) = run_engine(tiny, ours, [batch], folder=tmp_path)
    assert [answer.posenc and answer.posenc["scale"] for answer in answers] == [1.0] * len(batch)
    assert [answer.posenc for answer in theirs] == [None] * len(batch)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in theirs]
    assert [answer.logprobs for answer in answers] == [answer.logprobs for answer in theirs]
