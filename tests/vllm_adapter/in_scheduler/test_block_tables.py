"""The order in which a step's plan is made and workers are told of an exchanged block table."""

from __future__ import annotations

from typing import Any

import pytest

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.ledger import MixedRotations
from posenc_runtime.kv.moves import Moves
from posenc_runtime.vllm_adapter.in_scheduler.crossing_blocks import CrossingBlocks
from tests.kv.test_state_machine import TEXTS
from tests.vllm_adapter.in_scheduler.model_core import Asked, EngineCore, said_alone

TEXT = TEXTS[0]
DEPLOYMENT = Deployment(
    rope_type="linear",
    scales=(1.0, 3.0),
    original_max_position_embeddings=12,
    max_model_len=36,
    headroom_tokens=1,
    rerotate_budget_tokens=100,
)
# The second one reads what the first one wrote, so that blocks are copied when the first one crosses.
CROSSES, READS = Asked(0, TEXT[:9], 20), Asked(3, TEXT[:9], 3, "pin")


@pytest.fixture(params=[False, True], ids=["in-step", "ahead"])
def engine(request: pytest.FixtureRequest, vllm_config: Any) -> Any:
    def of_runner(model_runner: int) -> EngineCore:
        return EngineCore(
            vllm_config,
            DEPLOYMENT,
            block_size=4,
            num_blocks=60,
            model_runner=model_runner,
            depth=2 if request.param else 1,
            ahead=request.param,
        )

    return of_runner


def test_for_runner_v2_a_request_that_has_crossed_stays_at_its_next_scale(engine: Any) -> None:
    core = engine(2)
    core.serve([CROSSES, READS])
    assert [crossing["to"] for crossing in core.responses["r0"]["crossings"]] == [3.0]
    assert core.said["r0"] == said_alone(DEPLOYMENT, CROSSES)


def test_for_runner_v1_the_plan_refuses_a_table_that_still_names_a_copied_block(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = CrossingBlocks.exchange

    def without_the_table(self: CrossingBlocks, request: Any, held: Any, is_copied: Any) -> Moves:
        tables = [table for table, _ in self.tables(request)]
        before = [list(table) for table in tables]
        moves = exchange(self, request, held, is_copied)
        for table, blocks in zip(tables, before, strict=True):
            table[:] = blocks
        return moves

    monkeypatch.setattr(CrossingBlocks, "exchange", without_the_table)
    with pytest.raises(
        MixedRotations, match=r"request r0 reads keys of scale number 1, but block \d+ .* scale number 0"
    ):
        engine(1).serve([CROSSES, READS])
