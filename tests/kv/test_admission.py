"""At which scale a request starts."""

from __future__ import annotations

import dataclasses

import pytest

from posenc_runtime.kv.admission import admit
from tests.kv.test_deployment import YARN


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "admission_tokens", "scale"),
    [
        (100, 412, 512, 1.0),
        (100, 413, 513, 2.0),
        (512, 0, 512, 1.0),
        (2000, 16, 2016, 4.0),
        (2000, 1000, 2048, 4.0),  # the engine stops it at max_model_len
        (100, None, 356, 1.0),  # headroom
        (400, None, 656, 2.0),
    ],
)
def test_a_pinned_request_is_admitted_at_the_longest_it_may_become(
    num_prompt_tokens: int, max_tokens: int | None, admission_tokens: int, scale: float
) -> None:
    admission = admit(YARN, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens)
    assert admission.admission_tokens == admission_tokens
    assert YARN.scales[admission.scale_index] == scale


def test_the_headroom_decides_for_a_request_that_does_not_say() -> None:
    generous = dataclasses.replace(YARN, headroom_tokens=2000)
    assert admit(generous, num_prompt_tokens=100, max_tokens=None).scale_index == 2


def test_a_prompt_longer_than_the_served_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a prompt may have at most 2048 tokens, got 2049"):
        admit(YARN, num_prompt_tokens=2049, max_tokens=1)
