"""Hashes that take the place of vLLM's list in a request."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from posenc_runtime.vllm_adapter.in_scheduler.block_hashes import PrivateHashes, SaltedHashes

BLOCK_SIZE = 16
PROMPT = [7 * number % 50 for number in range(100)]  # six full blocks


def arrived(cache_salt: str | None = None, hasher: Callable[[Any], list[Any]] | None = None) -> Request:
    init_none_hash(sha256)
    return Request(
        request_id="r",
        prompt_token_ids=PROMPT,
        sampling_params=SamplingParams(max_tokens=9),
        pooling_params=None,
        cache_salt=cache_salt,
        block_hasher=hasher or get_request_block_hasher(BLOCK_SIZE, sha256),
    )


def test_salted_hashes_equal_those_of_a_request_that_came_with_the_salt() -> None:
    plain, salted = arrived(), arrived("salt")
    hashes = SaltedHashes(plain, BLOCK_SIZE, "salt")
    plain.block_hashes = hashes
    for request in (plain, salted):
        request.append_output_token_ids(list(range(20)))
    assert list(hashes) == list(salted.block_hashes) and len(hashes) == 7
    assert list(hashes[2:]) == list(salted.block_hashes[2:]) and hashes[-1] == salted.block_hashes[-1]
    assert hashes[1:][2:][0] == salted.block_hashes[3]
    with pytest.raises(IndexError):
        hashes[7]


def test_salted_hashes_are_computed_as_far_as_somebody_asks() -> None:
    stock, hashed = get_request_block_hasher(BLOCK_SIZE, sha256), []

    def hasher(request: Any) -> list[Any]:
        new = stock(request)
        hashed.append(len(new))
        return new

    request = arrived(hasher=hasher)
    hashes = SaltedHashes(request, BLOCK_SIZE, "salt")
    hashed.clear()
    rest = hashes[1:]  # what vLLM does before it names new blocks
    assert hashed == []
    assert [hashes[0], rest[0]] and hashed == [1, 1]
    assert hashes[1] == rest[0] and hashed == [1, 1]


def test_private_hashes_have_the_form_of_vllms_and_are_nobody_elses() -> None:
    one, other = arrived(), arrived()
    own = set(PrivateHashes(one, BLOCK_SIZE))
    assert len(own) == 6 and {len(each) for each in own} == {len(one.block_hashes[0])}
    assert not own & {*one.block_hashes, *PrivateHashes(one, BLOCK_SIZE), *PrivateHashes(other, BLOCK_SIZE)}


def test_what_events_say_of_private_hashes_is_nobody_elses_either() -> None:
    """vLLM publishes the last 64 bits of a hash."""
    requests = [arrived() for _ in range(3)]
    said = {bytes(each[-8:]) for request in requests for each in PrivateHashes(request, BLOCK_SIZE)}
    assert len(said) == 18


def test_nothing_is_hashed_while_a_request_with_private_hashes_grows() -> None:
    hashed = []

    def hasher(request: Any) -> list[Any]:
        new = get_request_block_hasher(BLOCK_SIZE, sha256)(request)
        hashed.extend(new)
        return new

    request = arrived(hasher=hasher)
    request.block_hashes = PrivateHashes(request, BLOCK_SIZE)
    hashed.clear()
    request.append_output_token_ids(list(range(40)))
    assert hashed == [] and len(request.block_hashes) == 8


@pytest.mark.parametrize("hashes", [PrivateHashes, lambda *request: SaltedHashes(*request, "salt")])
def test_a_request_is_gone_when_nobody_has_it_any_more(hashes: Callable[..., Any]) -> None:
    request = arrived()
    request.block_hashes = hashes(request, BLOCK_SIZE)
    assert request.block_hashes[5]
    gone = weakref.ref(request)
    del request
    assert gone() is None


def test_more_hashes_than_full_blocks_are_an_error() -> None:
    with pytest.raises(ValueError, match="exactly one hash for each full block, got more"):
        PrivateHashes(arrived(), BLOCK_SIZE).extend([b"new"])
