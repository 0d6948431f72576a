"""Parameters with which a router moves keys: a server with NIXL takes them, whole and in their place."""

from __future__ import annotations

import re
from typing import Any

import pytest

from posenc_runtime.vllm_adapter.in_server.engine_state import Capacity
from tests.server.app.edge.application import Served
from tests.server.app.edge.test_limits import error_of

WITH_NIXL = Capacity(transfer_params=frozenset({"kv_transfer_params"}))
TO_PREFILL = {
    **{"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None},
    **{"remote_host": None, "remote_port": None},
}
# As a prefilling server answers it, with our report.
TO_DECODE = {
    **{"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2, 3]]},
    **{"remote_engine_id": "e", "remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 5600},
    **{"tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": 96, "remote_blocks_expiry_time": None},
    **{"remote_registration_generation": 0, "transfer_mode": "pull"},
    **{"posenc": {"rope_type": "rerope", "tokens_past_trained": 0, "crossings": []}},
    **{"posenc_prompts": [{}, {}], "posenc_choices": [{}, None]},
}


@pytest.mark.parametrize("params", [TO_PREFILL, TO_DECODE, {}], ids=["prefill", "decode", "none"])
async def test_a_server_with_nixl_takes_what_routers_send(params: dict[str, Any]) -> None:
    served = Served(capacity=WITH_NIXL)
    body = {"prompt": "a", "kv_transfer_params": params}
    assert (await served.post(body)).status_code == 200
    assert served.bodies == [body]


@pytest.mark.parametrize("params", [TO_PREFILL, TO_DECODE], ids=["prefill", "decode"])
@pytest.mark.parametrize("place", ["vllm_xargs", "extra_args", "sampling_params"])
async def test_their_place_is_the_top_of_the_body(place: str, params: dict[str, Any]) -> None:
    served = Served(capacity=WITH_NIXL)
    error = error_of(await served.post({"prompt": "a", place: {"kv_transfer_params": params}}), 400)
    assert error["param"] == f"{place}.kv_transfer_params"
    assert error["message"] == f"{error['param']} must be left out: its place is the top of the body"
    assert not served.bodies


async def test_an_encoders_parameters_are_none_of_nixls() -> None:
    served = Served(capacity=WITH_NIXL)
    error_of(await served.post({"prompt": "a", "ec_transfer_params": {}}), 400)
    served.capacity = Capacity(transfer_params=frozenset({"ec_transfer_params"}))
    assert (await served.post({"prompt": "a", "ec_transfer_params": {}})).status_code == 200
    error_of(await served.post({"prompt": "a", "kv_transfer_params": TO_PREFILL}), 400)


@pytest.mark.parametrize(
    ("params", "param", "rule"),
    [
        ("text", "", "be an object, got str"),
        ({"do_remote_prefill": 1}, ".do_remote_prefill", "be true or false, got 1"),
        (TO_DECODE | {"remote_block_ids": [1]}, ".remote_block_ids", "be a list of lists of block numbers"),
        (TO_DECODE | {"remote_block_ids": [[-1]]}, ".remote_block_ids", "be a list of lists of block numbers"),
        (TO_DECODE | {"remote_port": 0}, ".remote_port", "be a whole number from 1 to 65535, got 0"),
        (TO_DECODE | {"tp_size": 1.0}, ".tp_size", "be a whole number from 1 to 65535, got 1.0"),
        (TO_DECODE | {"remote_num_tokens": -7}, ".remote_num_tokens", "be a whole number from 0"),
        (TO_DECODE | {"remote_host": ["a"]}, ".remote_host", "be a text of 1 to 256 characters, got list"),
        (TO_DECODE | {"remote_engine_id": "e" * 257}, ".remote_engine_id", "be a text of 1 to 256 characters"),
        (TO_DECODE | {"remote_blocks_expiry_time": "x"}, ".remote_blocks_expiry_time", "be a number, got str"),
        (TO_DECODE | {"remote_prefill_cached_tokens": -7}, ".remote_prefill_cached_tokens", "whole number from 0"),
        (TO_DECODE | {"prompt_token_ids": [1]}, ".prompt_token_ids", "be left out: .* no such parameter"),
        (TO_DECODE | {"_remote_blocks_processed": True}, "._remote_blocks_processed", "be left out: .* no such"),
        (TO_DECODE | {"do_remote_decode": True}, ".do_remote_prefill", "be false where do_remote_decode is true"),
        (TO_PREFILL | {"remote_block_ids": [[1]]}, ".remote_block_ids", "be left out unless do_remote_prefill"),
        ({"do_remote_prefill": True}, ".remote_block_ids", "have remote_block_ids, .* got none of remote_block_ids, "),
        (TO_DECODE | {"tp_size": None}, ".tp_size", "got none of tp_size: pass on all"),
        (TO_DECODE | {"remote_block_ids": []}, ".remote_block_ids", "got none of remote_block_ids: pass on"),
    ],
)
async def test_what_would_end_the_engine_or_wait_for_ever_is_refused(params: Any, param: str, rule: str) -> None:
    served = Served(capacity=WITH_NIXL)
    error = error_of(await served.post({"prompt": "a", "kv_transfer_params": params}), 400)
    assert error["param"] == f"kv_transfer_params{param}"
    assert re.search(rule, error["message"])
    assert served.refused == ["transfer_params"] and not served.bodies
