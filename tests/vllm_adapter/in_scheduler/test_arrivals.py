"""A prompt is hashed once, where it arrives, under the regime of its scale."""

from __future__ import annotations

import types
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.regime import regime, salted
from posenc_runtime.vllm_adapter.in_scheduler.arrivals import salt_on_arrival
from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import SchedulerHalf

YARN = Deployment(rope_type="yarn", scales=(1.0, 2.0, 4.0), original_max_position_embeddings=64, max_model_len=256)
PROMPT = list(range(40))
SCALE = {8: 0, 60: 1, 200: 2}  # of requests of so many tokens past the prompt


@pytest.fixture(autouse=True)
def salting() -> None:
    salt_on_arrival()
    init_none_hash(sha256)


class Engine:
    """What vLLM's engine core has of the arrival of a request, and how many blocks were hashed."""

    def __init__(self, half: SchedulerHalf | None) -> None:
        self.num_hashed = 0
        connector = half and types.SimpleNamespace(scheduler_half=half)
        self.scheduler = types.SimpleNamespace(get_kv_connector=lambda: connector)
        self.mm_receiver_cache = None
        self._stock = get_request_block_hasher(16, sha256)

    def request_block_hasher(self, request: Any) -> list[Any]:
        new = self._stock(request)
        self.num_hashed += len(new)
        return new

    def arrive(self, max_tokens: int, cache_salt: str | None = None, resumable: bool = False, **rest: Any) -> Request:
        request = EngineCoreRequest(
            request_id="r",
            prompt_token_ids=PROMPT,
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=max_tokens, **rest),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=cache_salt,
            data_parallel_rank=None,
            resumable=resumable,
        )
        arrived, _ = EngineCore.preprocess_add_request(self, request)  # type: ignore[arg-type]
        return arrived


def half() -> SchedulerHalf:
    return SchedulerHalf(YARN, [16], num_blocks=64)


@pytest.mark.parametrize("cache_salt", [None, "tenant"])
@pytest.mark.parametrize("max_tokens", SCALE)
def test_the_scheduler_hashes_nothing_again(max_tokens: int, cache_salt: str | None) -> None:
    ours = half()
    engine = Engine(ours)
    request = engine.arrive(max_tokens, cache_salt)
    hashes = list(request.block_hashes)
    ours.on_new_request(request)
    assert engine.num_hashed == 2 and list(request.block_hashes) == hashes
    assert request.cache_salt == salted(cache_salt, regime(YARN, SCALE[max_tokens]))


def test_the_hashes_are_those_of_a_request_that_was_hashed_again() -> None:
    early, late = half(), half()
    request = Engine(early).arrive(60, "tenant")
    early.on_new_request(request)
    again = Engine(None).arrive(60, "tenant")
    late.on_new_request(again)
    assert list(request.block_hashes) == list(again.block_hashes)


def test_what_a_request_asks_for_decides_its_regime_on_arrival() -> None:
    ours = half()
    request = Engine(ours).arrive(200, extra_args={"posenc_on_crossing": "recompute"})
    assert request.cache_salt == salted(None, regime(YARN, 2))
    short = dict(rope_type="yarn", scales=(1.0, 2.0), original_max_position_embeddings=64, max_model_len=128)
    crossing = SchedulerHalf(Deployment(**short, headroom_tokens=4), [16], num_blocks=64)
    assert Engine(crossing).arrive(80).cache_salt is None
    pinned = Engine(crossing).arrive(80, extra_args={"posenc_on_crossing": "pin"})
    assert pinned.cache_salt == salted(None, regime(crossing.deployment, 1))


def test_a_client_that_writes_a_regime_into_its_salt_gets_none() -> None:
    ours = half()
    forged = salted(None, regime(YARN, 1))
    request = Engine(ours).arrive(8, forged)
    ours.on_new_request(request)
    assert list(request.block_hashes) != list(Engine(half()).arrive(60).block_hashes)
    assert request.cache_salt == salted(forged, None) != forged


def test_engines_without_a_connector_of_ours_are_as_before() -> None:
    engine = Engine(None)
    assert engine.arrive(200, "tenant").cache_salt == "tenant" and engine.num_hashed == 2


def test_a_session_is_pinned_and_its_later_inputs_leave_nothing_behind() -> None:
    ours = half()
    engine = Engine(ours)
    session = engine.arrive(8, resumable=True)
    ours.on_new_request(session)
    assert session.cache_salt == salted(None, regime(YARN, 2))
    assert engine.arrive(8, resumable=True).cache_salt is None  # vLLM takes its tokens, and not its salt
    assert not ours._arrived
    ours.request_finished(session)
    assert not ours._arrived and not ours._client_salts


def test_nothing_is_kept_of_a_request_that_vllm_turns_away() -> None:
    ours = half()
    engine = Engine(ours)

    def broken(request: Any) -> list[Any]:
        raise RuntimeError("no hash")

    engine.request_block_hasher = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no hash"):
        engine.arrive(60)
    assert not ours._arrived


def test_a_prompt_that_is_too_long_is_left_to_the_scheduler_to_refuse() -> None:
    ours = SchedulerHalf(
        Deployment(rope_type="yarn", scales=(1.0, 2.0), original_max_position_embeddings=16, max_model_len=32),
        [16],
        num_blocks=64,
    )
    request = Engine(ours).arrive(8)
    assert request.cache_salt is None and not ours._arrived
    with pytest.raises(ValueError, match="a prompt may have at most 32 tokens, got 40"):
        ours.on_new_request(request)
