"""Turns of conversations that go on from what earlier turns have cached, over vLLM's scheduler with ours in it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.regime import suffix
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from tests.kv.model_groups import MODELS, ONE
from tests.kv.model_request import smallest_scale
from tests.kv.test_state_machine import TEXTS, deployments
from tests.vllm_adapter.in_scheduler.model_core import Asked, EngineCore, first_of, num_needed, said_alone
from tests.vllm_adapter.in_scheduler.test_scheduler_ahead import PIPELINES

CONVERSATION = Deployment(
    rope_type="linear",
    scales=(1.0, 2.0, 4.0),
    original_max_position_embeddings=64,
    max_model_len=256,
    headroom_tokens=8,
    prefix_reuse="continue",
    rerotate_budget_tokens=1000,
)


def core_of(vllm_config: Any, deployment: Deployment, **settings: Any) -> EngineCore:
    sizes = {"block_size": 4, "num_blocks": 400, "model_runner": 1, "depth": 1, "ahead": False}
    return EngineCore(vllm_config, deployment, **(sizes | settings))


def crossings_of(
    deployment: Deployment, asked: Asked, said: list[int], response: dict[str, Any]
) -> list[dict[str, Any]]:
    """The crossings of a request by ``rerotate``, from the scale at which it began or went on."""
    lengths = [int(scale * deployment.original_max_position_embeddings) for scale in deployment.scales]
    admitted = smallest_scale(deployment, response["admission_tokens"])
    began = deployment.scales.index(response["continued"]["scale"]) if "continued" in response else admitted
    num_computed = len(asked.prompt) + len(said) - 1
    return [
        {"at": lengths[index], "from": deployment.scales[index], "to": deployment.scales[index + 1], "how": "rerotate"}
        for index in range(began, len(lengths) - 1)
        if lengths[index] < num_computed
    ]


def say(core: EngineCore, name: str, prompt: list[int], max_tokens: int = 9) -> list[int]:
    """A turn of a conversation. Returns the beginning of the next one."""
    core.admit(name, Asked(0, prompt, max_tokens))
    core.drain()
    return prompt + core.said[name]


def grown(core: EngineCore, turns: int, *, name: str = "turn") -> list[int]:
    """A conversation of so many turns, each with ten tokens of the user's and nine of the model's."""
    tokens = [1, 2, 3, 0] * 2
    for turn in range(turns):
        tokens = say(core, f"{name}{turn}", tokens + [(turn * 5 + number) % 4 for number in range(10)])
    return tokens


@pytest.mark.parametrize("model_runner", [1, 2])
def test_a_conversation_computes_each_token_once_and_says_where_it_goes_on(model_runner: int, vllm_config: Any) -> None:
    computed = {}
    for prefix_reuse in ("exact", "continue"):
        deployment = dataclasses.replace(CONVERSATION, prefix_reuse=prefix_reuse)
        core = core_of(vllm_config, deployment, model_runner=model_runner)
        counted = core.scheduler._half.build_metadata
        prompts: dict[str, int] = {}

        def build_metadata(output: Any, counted: Any = counted, prompts: Any = prompts) -> Any:
            for new in output.scheduled_new_reqs:
                prompts[new.req_id] = len(new.prompt_token_ids) - new.num_computed_tokens
            return counted(output)

        core.scheduler._half.build_metadata = build_metadata
        grown(core, 12)
        computed[prefix_reuse] = sum(prompts.values())
    # Ten tokens of each turn are new; of the answer before, the last token and the tokens of its last block are.
    assert computed["continue"] <= 8 + 12 * (10 + 4)
    assert computed["exact"] > 2 * computed["continue"]
    last = core.responses["turn11"]
    assert last["continued"] == {"tokens": 216, "first_scale": 1.0, "scale": 4.0}
    assert (last["scale"], last["crossings"]) == (4.0, [])
    assert [core.responses[f"turn{turn}"]["scale"] for turn in (1, 4, 10)] == [1.0, 2.0, 4.0]


def test_every_turn_says_what_one_request_would_say_that_never_ended(vllm_config: Any) -> None:
    core = core_of(vllm_config, CONVERSATION)
    tokens = grown(core, 12)
    alone = said_alone(CONVERSATION, Asked(0, tokens[:-9], 9), first=0)
    assert core.said["turn11"] == alone
    assert alone != said_alone(CONVERSATION, Asked(0, tokens[:-9], 9))  # which begins at its own scale


def test_a_shorter_turn_never_runs_at_the_scale_of_a_longer_one(vllm_config: Any) -> None:
    """A conversation has crossed; somebody asks something else after an earlier turn of it."""
    core = core_of(vllm_config, CONVERSATION)
    tokens = grown(core, 8)
    for length in (40, 62, 100, 127, 131):
        asked = [*tokens[:length], 2, 2]
        say(core, f"branch{length}", asked)
        response = core.responses[f"branch{length}"]
        alone = said_alone(CONVERSATION, Asked(0, asked, 9), first_of(CONVERSATION, response))
        assert core.said[f"branch{length}"] == alone, length


def test_a_long_prompt_does_not_begin_at_a_small_scale_for_a_short_beginning(vllm_config: Any) -> None:
    core = core_of(vllm_config, CONVERSATION)
    system = [1, 0, 2, 3] * 8
    say(core, "short", [*system, 1])
    say(core, "long", system + [2, 3, 1] * 30)
    assert "continued" not in core.responses["long"]
    say(core, "half", system + [3, 3, 1] * 10)
    assert core.responses["half"]["continued"] == {"tokens": 32, "first_scale": 1.0, "scale": 1.0}


def test_a_pinned_request_begins_at_its_own_scale(vllm_config: Any) -> None:
    core = core_of(vllm_config, CONVERSATION)
    tokens = grown(core, 5)
    core.admit("pinned", Asked(0, [*tokens, 1, 1], 9, on_crossing="pin"))
    core.drain()
    assert "continued" not in core.responses["pinned"]
    assert core.said["pinned"] == said_alone(CONVERSATION, Asked(0, [*tokens, 1, 1], 9, on_crossing="pin"))


def test_a_turn_goes_on_whether_or_not_a_router_has_written_the_scale_into_its_salt(vllm_config: Any) -> None:
    """And nobody goes on from what another client has said."""
    core = core_of(vllm_config, CONVERSATION)
    core.admit("first", Asked(0, [1, 2, 3, 0] * 13, 17, cache_salt="tenant"))
    core.drain()
    tokens = [1, 2, 3, 0] * 13 + core.said["first"]
    for name, salt in (("routed", f"tenant{suffix(CONVERSATION, 1)}"), ("plain", "tenant"), ("other", "another")):
        core.admit(name, Asked(0, [*tokens, 2], 9, cache_salt=salt))
        core.drain()
    assert core.responses["routed"]["continued"] == {"tokens": 68, "first_scale": 1.0, "scale": 2.0}
    assert core.responses["plain"]["continued"] == core.responses["routed"]["continued"]
    assert "continued" not in core.responses["other"]


def test_layers_that_no_scale_changes_are_refused(vllm_config: Any) -> None:
    with pytest.raises(Unsupported, match=r"^prefix_reuse must be exact or rerotate for a model in which some layers"):
        core_of(vllm_config, CONVERSATION, groups=MODELS["local ropes"])


@st.composite
def rounds(draw: st.DrawFn, deployment: Deployment) -> list[list[tuple[int, int, list[int], int, str | None]]]:
    """Who asks at the same time: whose tokens are gone on from, how many of these, what is added, and what is asked."""
    asked = st.tuples(
        st.integers(0, 3),
        st.sampled_from([99, 99, 99, 5, 12, 20]),
        st.lists(st.integers(0, 1), min_size=1, max_size=4),
        st.sampled_from([3, 9, 18]),
        st.sampled_from([None] * 6 + ["pin", "recompute"]),
    )
    return draw(st.lists(st.lists(asked, min_size=1, max_size=4), min_size=2, max_size=5))


@pytest.mark.parametrize(
    ("depth", "ahead", "model_runner"),
    [
        pytest.param(*pipeline, runner, id=f"{name}-{runner}", marks=() if runner == quick else pytest.mark.slow)
        for (name, pipeline), quick in zip(PIPELINES.items(), (1, 2, 2), strict=True)
        for runner in (1, 2)
    ],
)
def test_every_turn_says_what_its_history_says(depth: int, ahead: bool, model_runner: int, vllm_config: Any) -> None:
    """Many conversations at once, in a pool so tight that they preempt each other, with branches and other choices."""
    num_continued = num_crossed = 0

    @settings(max_examples=80, database=None, derandomize=True)
    @given(data=st.data())
    def holds(data: st.DataObject) -> None:
        nonlocal num_continued, num_crossed
        deployment = dataclasses.replace(
            data.draw(deployments().filter(lambda drawn: drawn.on_crossing == "rerotate")), prefix_reuse="continue"
        )
        block_size = data.draw(st.integers(1, 4))
        vllm_config.scheduler_config.max_num_seqs = data.draw(st.integers(2, 5))
        max_tokens = data.draw(st.sampled_from([6, 16, 40]))
        vllm_config.scheduler_config.max_num_batched_tokens = max_tokens
        vllm_config.scheduler_config.policy = data.draw(st.sampled_from(["fcfs", "priority"]))
        groups = data.draw(st.sampled_from([ONE, MODELS["windowed"], MODELS["every other windowed"]]))
        needed = [num_needed(group, deployment.max_model_len, block_size, depth * max_tokens) for group in groups]
        num_blocks = 1 + sum(needed) + data.draw(st.sampled_from([40, 16, 4, 1, 0]))
        core = core_of(
            vllm_config,
            deployment,
            block_size=block_size,
            num_blocks=num_blocks,
            model_runner=model_runner,
            depth=depth,
            ahead=ahead,
            groups=groups,
        )
        texts: list[list[int]] = [list(TEXTS[0])]
        for number, together in enumerate(data.draw(rounds(deployment))):
            asked = {}
            for index, (of, length, more, num_asked, on_crossing) in enumerate(together):
                prompt = (texts[of % len(texts)][:length] + more)[: deployment.max_model_len - 1]
                longest = deployment.max_model_len - len(prompt)
                asked[f"{number}-{index}"] = Asked(
                    0, prompt, min(num_asked, longest), on_crossing=on_crossing, priority=index % 2
                )
            for name, one in asked.items():
                core.admit(name, one)
                if data.draw(st.booleans()):
                    core.step()
            core.drain()
            for name, one in asked.items():
                response = core.responses[name]
                first = first_of(deployment, response)
                assert core.said[name] == said_alone(deployment, one, first)
                if one.on_crossing is None:
                    assert response["crossings"] == crossings_of(deployment, one, core.said[name], response)
                num_continued += first is not None
                num_crossed += bool(response["crossings"])
                texts.append(one.prompt + core.said[name])
        assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == num_blocks - 1

    holds()
    assert num_continued > 5 and num_crossed > 5
