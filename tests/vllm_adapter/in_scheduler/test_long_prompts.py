"""A short request beside long prompts, in vLLM's scheduler with ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from posenc_runtime.kv.chunks import even_position
from posenc_runtime.kv.deployment import Deployment
from tests.vllm_adapter.in_scheduler.model_core import Asked, EngineCore

DEPLOYMENT = Deployment(
    rope_type="linear",
    scales=(1.0, 2.0, 4.0),
    original_max_position_embeddings=1024,
    max_model_len=4096,
    headroom_tokens=16,
    rerotate_budget_tokens=1000,
)
STEP, CHUNK, LONG, SHORT = 256, 64, 3000, 59


@pytest.fixture
def core(vllm_config: Any) -> Iterator[EngineCore]:
    config = vllm_config.scheduler_config
    config.max_num_batched_tokens, config.max_num_scheduled_tokens = STEP, None
    config.max_num_seqs, config.long_prefill_token_threshold = 16, CHUNK
    yield EngineCore(vllm_config, DEPLOYMENT, block_size=16, num_blocks=2000, model_runner=1, depth=1, ahead=False)


def prompt(seed: int, num_tokens: int) -> list[int]:
    return [(seed * 31 + 7 * number) % 500 for number in range(num_tokens)]


@pytest.mark.parametrize("num_long", [1, 2, 6])
def test_a_short_request_has_its_first_token_after_one_step_beside_long_prompts(
    num_long: int, core: EngineCore
) -> None:
    for number in range(num_long):
        core.admit(f"long{number}", Asked(0, prompt(number, LONG), 1))
    for _ in range(20):
        core.step()
    core.admit("short", Asked(0, prompt(99, SHORT), 3))
    core.step()
    assert len(core.said["short"]) == 1 and not any(core.said[f"long{number}"] for number in range(num_long))


def test_no_step_costs_more_than_one_without_long_prompts(core: EngineCore, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, costs, schedule = core.scheduler, [], core.scheduler.schedule
    width = scheduler.vllm_config.model_config.get_hidden_size()

    def costed(*arguments: Any) -> Any:
        before = {name: request.num_computed_tokens for name, request in scheduler.requests.items()}
        output = schedule(*arguments)
        costs.append(
            sum(
                tokens * (1 + before[name] / even_position(width))
                for name, tokens in output.num_scheduled_tokens.items()
            )
        )
        return output

    monkeypatch.setattr(scheduler, "schedule", costed)
    core.serve([Asked(0, prompt(number, LONG), 1) for number in range(4)])
    single = 4 * (1 + LONG / even_position(width))  # a token of each, where the budget is spent
    assert STEP / 4 < max(costs) <= STEP + single
