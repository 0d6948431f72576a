"""From what workers know to the scheduler, to the report, and to whoever asks a running engine."""

from __future__ import annotations

import dataclasses
import pickle
import types
from typing import Any

import pytest

from posenc_runtime.kv.budget import Budget, Speed, given_budget, measured_budget
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.connector import PosencConnector, PosencHandshake
from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import SchedulerHalf
from posenc_runtime.vllm_adapter.in_server.front_end import rerotate_budget

MEASURED = Deployment(rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=256, max_model_len=512)
SET = dataclasses.replace(MEASURED, rerotate_budget_tokens=96)
PINNED = dataclasses.replace(MEASURED, on_crossing="pin")
FAST = Speed(token_seconds=1e-6, weights_seconds=0.02, weight_bytes=10**9, block_tokens=16)
SLOW = dataclasses.replace(FAST, token_seconds=4e-6)
GROUPS = (frozenset({1}), frozenset({1, 3}))


def connector(deployment: Deployment) -> Any:
    """The scheduler's, of two stages of two workers each."""
    made = PosencConnector.__new__(PosencConnector)
    made._scheduler, made._worker = SchedulerHalf(deployment, [16, 16, 16, 16], num_blocks=64), None
    made._ranks = {(0, 0), (0, 1), (1, 0), (1, 1)}
    return made


def told(**speeds: Speed | None) -> dict[tuple[int, int], PosencHandshake]:
    """By ranks, as in r01; each has been in another process. The second stage scales a group more than the first."""
    return {
        (int(name[1]), int(name[2])): pickle.loads(pickle.dumps(PosencHandshake(speed, GROUPS[int(name[1])])))
        for name, speed in speeds.items()
    }


def test_the_slowest_worker_of_all_stages_decides_and_the_first_report_says_so() -> None:
    made = connector(MEASURED)
    made.set_xfer_handshake_metadata_pp_aware(told(r00=FAST, r01=FAST, r10=SLOW, r11=FAST))
    assert made._scheduler.coordinator.budget_tokens == 4992
    assert made._scheduler.take_report()["rerotate_budget_tokens"] == {"all": 4992}
    assert "rerotate_budget_tokens" not in made._scheduler.take_report()


def test_a_worker_that_does_not_tell_is_an_error_and_not_a_default() -> None:
    made = connector(MEASURED)
    with pytest.raises(RuntimeError, match=r"of these pipeline and tensor ranks did not: \(0, 1\), \(1, 0\)\."):
        made.set_xfer_handshake_metadata_pp_aware(told(r00=FAST, r11=FAST))
    with pytest.raises(RuntimeError, match=r"ranks did not: \(0, 1\)\. Set scaling\.rerotate_budget_tokens"):
        made.set_xfer_handshake_metadata_pp_aware(told(r00=FAST, r01=None, r10=FAST, r11=FAST))
    assert made._scheduler.coordinator.budget_tokens is None


@pytest.mark.parametrize(("deployment", "tokens"), [(SET, 96), (PINNED, None)], ids=["set", "never-turns"])
def test_workers_that_have_nothing_to_measure_tell_no_speed(deployment: Deployment, tokens: int | None) -> None:
    made = connector(deployment)
    made.set_xfer_handshake_metadata_pp_aware(told(r00=None, r10=None))
    assert made._scheduler.coordinator.budget_tokens == tokens
    assert made._scheduler.take_report().get("rerotate_budget_tokens") == (tokens and {"all": tokens})


@pytest.mark.parametrize("deployment", [MEASURED, SET, PINNED], ids=["measured", "set", "never-turns"])
def test_a_group_is_scaled_if_any_stage_of_the_pipeline_scales_it(deployment: Deployment) -> None:
    made = connector(deployment)
    assert made._scheduler.scaled_groups == {0, 1, 2, 3}
    made.set_xfer_handshake_metadata_pp_aware(told(r00=FAST, r01=FAST, r10=FAST, r11=FAST))
    assert made._scheduler.scaled_groups == {1, 3}


@pytest.mark.parametrize("deployment", [MEASURED, SET, PINNED], ids=["measured", "set", "never-turns"])
def test_a_stage_that_tells_no_groups_is_an_error(deployment: Deployment) -> None:
    made = connector(deployment)
    with pytest.raises(RuntimeError, match=r"every stage of the pipeline must say .* nothing came from stage 1: the"):
        made.set_xfer_handshake_metadata_pp_aware(told(r00=FAST, r01=FAST))
    with pytest.raises(RuntimeError, match="nothing came from stage 0, 1: the"):
        made.set_xfer_handshake_metadata_pp_aware({})


@pytest.mark.parametrize("speed", [None, FAST], ids=["set", "measured"])
def test_a_worker_always_tells_its_groups(speed: Speed | None) -> None:
    made = PosencConnector.__new__(PosencConnector)
    made._worker = types.SimpleNamespace(speed=speed, scaled_groups=frozenset({2}))
    assert made.get_handshake_metadata() == PosencHandshake(speed, frozenset({2}))


class Client:
    """vLLM's client of engines whose workers say what they measured."""

    def __init__(self, *engines: list[Speed]) -> None:
        self.core_engines = [number.to_bytes() for number in range(len(engines))]
        self._engines = dict(zip(self.core_engines, engines, strict=True))

    async def _call_utility_async(self, method: str, *args: Any, engine: bytes) -> list[dict[str, Any]]:
        assert (method, args) == ("collective_rpc", ("posenc_speed", None, (), None))
        return [dataclasses.asdict(speed) for speed in self._engines[engine]]


@pytest.mark.parametrize(
    ("deployment", "budget"), [(SET, given_budget(96)), (PINNED, None)], ids=["set", "never-turns"]
)
async def test_a_budget_that_was_not_measured_is_not_asked_for(deployment: Deployment, budget: Budget | None) -> None:
    assert await rerotate_budget(None, deployment) == budget


async def test_a_running_engine_says_the_budget_that_its_scheduler_has() -> None:
    budget = await rerotate_budget(types.SimpleNamespace(engine_core=Client([FAST, SLOW])), MEASURED)
    assert budget is not None and budget.tokens == 4992 and "engines" not in budget.reason


async def test_of_several_engines_the_smallest_budget_is_said_and_that_there_are_others() -> None:
    fast, slow = measured_budget([FAST]), measured_budget([SLOW])
    assert fast.tokens > slow.tokens
    said = await rerotate_budget(types.SimpleNamespace(engine_core=Client([FAST], [SLOW], [FAST])), MEASURED)
    assert said is not None and said.tokens == slow.tokens
    assert said.reason.startswith(slow.reason)
    assert said.reason.endswith(
        f"of 3 engines, this one has the smallest budget, and the largest is {fast.tokens:,} tokens"
    )
