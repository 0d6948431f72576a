"""The places of vLLM's scheduler in which a crossing request must be thought of."""

from __future__ import annotations

import types
from collections.abc import Callable

import pytest
from vllm.v1.request import RequestStatus

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.releases.differences import Difference
from posenc_runtime.vllm_adapter.scheduler import PosencScheduler


def request(adapter: int | None) -> types.SimpleNamespace:
    lora = None if adapter is None else types.SimpleNamespace(lora_int_id=adapter)
    return types.SimpleNamespace(lora_request=lora, status=RequestStatus.WAITING)


@pytest.mark.parametrize(
    ("running", "waiting", "ready"),
    [([1], 1, True), ([1], 2, False), ([1], None, True), ([None], 2, True), ([], 2, True)],
    ids=["same-adapter", "another-adapter", "no-adapter", "nobody-has-one", "nobody-runs"],
)
def test_a_request_that_is_crossing_keeps_its_adapters_place(
    running: list[int | None], waiting: int | None, ready: bool, as_if: Callable[[Difference, bool], None]
) -> None:
    as_if(releases.ADAPTERS_OF_A_STEP_ALONE, True)
    scheduler = object.__new__(PosencScheduler)
    scheduler.lora_config = types.SimpleNamespace(max_loras=1)
    scheduler.running = [request(adapter) for adapter in running]
    assert scheduler._handle_blocked_waiting_request(request(waiting)) is ready
