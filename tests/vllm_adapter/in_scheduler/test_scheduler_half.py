"""vLLM's requests, as our half of the scheduler sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.request import Request

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.ledger import MixedRotations
from posenc_runtime.vllm_adapter.contract.names import ADMISSION_TOKENS, ON_CROSSING, PREFILLED_SCALE, PROMPT_ALONE
from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import SchedulerHalf

YARN = Deployment(rope_type="yarn", scales=(1.0, 2.0, 4.0), original_max_position_embeddings=64, max_model_len=256)
PROMPT = list(range(40))


@pytest.fixture
def half() -> SchedulerHalf:
    return SchedulerHalf(YARN, [16], num_blocks=64)


def arrived(
    half: SchedulerHalf,
    name: str,
    max_tokens: int,
    cache_salt: str | None = None,
    pictures: Sequence[Any] = (),
    on_crossing: str | None = None,
) -> Request:
    init_none_hash(sha256)
    extra_args = {ON_CROSSING: on_crossing} if on_crossing else None
    request = Request(
        request_id=name,
        prompt_token_ids=PROMPT,
        sampling_params=SamplingParams(max_tokens=max_tokens, extra_args=extra_args),
        pooling_params=None,
        cache_salt=cache_salt,
        mm_features=list(pictures),
        block_hasher=get_request_block_hasher(16, sha256),
    )
    half.on_new_request(request)
    return request


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "is_alone", "scale"),
    [(64, 1, True, 1.0), (64, 1, False, 2.0), (65, 1, True, 2.0), (64, 2, True, 2.0)],
    ids=["prompt", "prompt and a token", "longer prompt", "more than a token"],
)
def test_a_request_for_its_prompt_alone_is_admitted_at_the_prompts_length(
    num_prompt_tokens: int, max_tokens: int, is_alone: bool, scale: float, half: SchedulerHalf
) -> None:
    init_none_hash(sha256)
    request = Request(
        request_id="echo",
        prompt_token_ids=list(range(num_prompt_tokens)),
        sampling_params=SamplingParams(max_tokens=max_tokens, extra_args={PROMPT_ALONE: True} if is_alone else None),
        pooling_params=None,
        block_hasher=get_request_block_hasher(16, sha256),
    )
    half.on_new_request(request)
    said = half.said_so_far(request)["posenc"]
    new_tokens = 0 if is_alone and max_tokens == 1 else max_tokens
    assert (said["scale"], said["admission_tokens"]) == (scale, num_prompt_tokens + new_tokens)


@pytest.mark.parametrize(
    ("together", "scale"), [(65, 2.0), (200, 4.0), (10_000, 4.0)], ids=["next scale", "last scale", "beyond all"]
)
def test_a_request_that_is_told_a_length_begins_at_its_scale_and_stays(
    together: int, scale: float, half: SchedulerHalf
) -> None:
    init_none_hash(sha256)
    request = Request(
        request_id="beam",
        prompt_token_ids=PROMPT,
        sampling_params=SamplingParams(
            max_tokens=1, extra_args={ADMISSION_TOKENS: together, ON_CROSSING: half.deployment.on_crossing}
        ),
        pooling_params=None,
        block_hasher=get_request_block_hasher(16, sha256),
    )
    half.on_new_request(request)
    said = half.said_so_far(request)["posenc"]
    assert (said["scale"], said["admission_tokens"]) == (scale, min(together, half.deployment.max_model_len))
    assert half.coordinator.on_crossing("beam") == "pin"


@pytest.mark.parametrize(
    ("prefilled_at", "scale", "takes_keys"),
    [(1.0, 1.0, True), (2.0, 2.0, True), (3.0, 1.0, False), (None, 1.0, False)],
    ids=["its own scale", "a larger one", "none of ours", "nowhere"],
)
def test_a_request_begins_at_the_scale_at_which_its_prompt_was_prefilled(
    prefilled_at: float | None, scale: float, takes_keys: bool, half: SchedulerHalf
) -> None:
    init_none_hash(sha256)
    request = Request(
        request_id="handed over",
        prompt_token_ids=PROMPT,
        sampling_params=SamplingParams(max_tokens=1, extra_args={PREFILLED_SCALE: prefilled_at}),
        pooling_params=None,
        block_hasher=get_request_block_hasher(16, sha256),
    )
    half.on_new_request(request)
    assert half.said_so_far(request)["posenc"]["scale"] == scale
    assert half.may_take_keys(request) == takes_keys


def stock_hashes(cache_salt: str | None = None) -> list[bytes]:
    init_none_hash(sha256)
    return list(
        Request(
            request_id="stock",
            prompt_token_ids=PROMPT,
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            cache_salt=cache_salt,
            block_hasher=get_request_block_hasher(16, sha256),
        ).block_hashes
    )


def test_an_unscaled_request_keeps_the_block_hashes_of_stock_vllm(half: SchedulerHalf) -> None:
    assert list(arrived(half, "short", max_tokens=8).block_hashes) == stock_hashes()
    assert list(arrived(half, "salted", max_tokens=8, cache_salt="tenant").block_hashes) == stock_hashes("tenant")


def test_no_block_hash_is_shared_between_scales(half: SchedulerHalf) -> None:
    hashes = [arrived(half, str(n), max_tokens=n).block_hashes for n in (8, 60, 200)]
    assert all(len(each) == 2 for each in hashes)
    assert len({value for each in hashes for value in each}) == 6


def test_the_same_scale_gives_the_same_block_hashes(half: SchedulerHalf) -> None:
    assert list(arrived(half, "a", max_tokens=60).block_hashes) == list(arrived(half, "b", max_tokens=70).block_hashes)


def test_a_clients_salt_still_separates_clients_at_the_same_scale(half: SchedulerHalf) -> None:
    one = arrived(half, "a", max_tokens=60, cache_salt="tenant-1")
    other = arrived(half, "b", max_tokens=60, cache_salt="tenant-2")
    assert not set(one.block_hashes) & set(other.block_hashes)


def test_a_request_that_was_preempted_by_a_reset_and_cancelled_since_is_passed_over(half: SchedulerHalf) -> None:
    arrived(half, "stays", max_tokens=8)
    half.request_finished(arrived(half, "leaves", max_tokens=8))
    output = SchedulerOutput.make_empty()
    output.preempted_req_ids = {"stays", "leaves"}
    assert half.build_metadata(output).plan.block_scales == {}


def runs_on(name: str, num_computed_tokens: int, num_new_tokens: int) -> SchedulerOutput:
    """A step in which a request gets no block."""
    output = SchedulerOutput.make_empty()
    output.num_scheduled_tokens = {name: num_new_tokens}
    output.scheduled_cached_reqs = CachedRequestData(
        req_ids=[name],
        resumed_req_ids=set(),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[None],
        num_computed_tokens=[num_computed_tokens],
        num_output_tokens=[1],
    )
    return output


@pytest.mark.parametrize(("num_new_tokens", "is_refused"), [(4, False), (5, True)], ids=["up-to-it", "past-it"])
def test_no_token_past_its_scales_length_is_planned_for_a_request_without_new_blocks(
    num_new_tokens: int, is_refused: bool, half: SchedulerHalf
) -> None:
    request = arrived(half, "chat", max_tokens=24)  # 64 tokens, the length of scale 1
    begins = SchedulerOutput.make_empty()
    begins.scheduled_new_reqs = [NewRequestData.from_request(request, ([1, 2, 3, 4],))]
    begins.num_scheduled_tokens = {"chat": 40}
    half.build_metadata(begins)
    assert half.coordinator.may_be_due() == ["chat"]
    if is_refused:
        with pytest.raises(MixedRotations, match="tokens 60 to 65, but the request has reached the length of its"):
            half.build_metadata(runs_on("chat", 60, num_new_tokens))
    else:
        assert half.build_metadata(runs_on("chat", 60, num_new_tokens)).plan.block_scales == {}


def test_only_the_blocks_of_scaled_groups_have_a_scale() -> None:
    half = SchedulerHalf(YARN, [16, 32, 16], num_blocks=64)
    half.scaled_groups = frozenset({1, 2})
    first, second = arrived(half, "first", max_tokens=60), arrived(half, "second", max_tokens=60)
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs = [NewRequestData.from_request(first, ([1, 2, 3], [4, 5], [6, 7, 8]))]
    output.num_scheduled_tokens = {"first": 40}
    assert half.build_metadata(output).plan.block_scales == {1: [4, 5, 6, 7, 8]}
    # The other begins with 32 tokens of the first. Nobody has told the scale of what it reads in the unscaled group.
    second.num_computed_tokens = 32
    output.scheduled_new_reqs = [NewRequestData.from_request(second, ([1, 2, 9], [4, 10], [0, 7, 11]))]
    output.num_scheduled_tokens = {"second": 8}
    assert half.build_metadata(output).plan.block_scales == {1: [10, 11]}
    assert half.take_report()["kv_blocks"] == {"1": 0, "2": 7, "4": 0}


PICTURE = MultiModalFeatureSpec(
    data=None, modality="image", identifier="a picture", mm_position=PlaceholderRange(offset=3, length=4)
)


@pytest.mark.parametrize(
    ("images_have_axes", "pictures", "asked", "on_crossing"),
    [
        (True, [PICTURE], None, "recompute"),
        (True, [PICTURE], "rerotate", "recompute"),
        (True, [PICTURE], "pin", "pin"),
        (True, [], None, "rerotate"),
        (False, [PICTURE], None, "rerotate"),
    ],
    ids=["axes", "axes although asked", "pinned", "text", "one axis"],
)
def test_keys_of_pictures_with_axes_are_computed_again_and_not_copied_between_scales(
    images_have_axes: bool, pictures: Sequence[Any], asked: str | None, on_crossing: str
) -> None:
    half = SchedulerHalf(YARN, [16], num_blocks=64, images_have_axes=images_have_axes)
    request = arrived(half, "seen", max_tokens=8, pictures=pictures, on_crossing=asked)
    assert half.coordinator.on_crossing(request.request_id) == on_crossing
    assert bool(half.hashes_at_other_scales(request)) is (not (images_have_axes and pictures))


def test_a_prefix_of_another_scale_is_seen_in_every_scaled_group() -> None:
    half = SchedulerHalf(YARN, [16, 16], num_blocks=64)
    for name, max_tokens, scaled, refused in (("unscaled", 8, {0}, False), ("scaled", 8, {0, 1}, True)):
        half.scaled_groups = frozenset(scaled)
        writer, reader = arrived(half, f"{name}-writer", max_tokens=60), arrived(half, name, max_tokens=max_tokens)
        output = SchedulerOutput.make_empty()
        output.scheduled_new_reqs = [NewRequestData.from_request(writer, ([0, 0, 3], [4, 5, 6]))]
        output.num_scheduled_tokens = {writer.request_id: 40}
        half.build_metadata(output)
        reader.num_computed_tokens = 32
        output.scheduled_new_reqs = [NewRequestData.from_request(reader, ([0, 0, 7], [4, 5, 8]))]
        output.num_scheduled_tokens = {name: 8}
        if refused:
            with pytest.raises(MixedRotations, match="block 4 of the prefix cache has scale number 1"):
                half.build_metadata(output)
        else:
            half.build_metadata(output)
