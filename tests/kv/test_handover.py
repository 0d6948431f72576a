"""What a server signs for a prompt that it has prefilled, and what another takes of it."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import struct
from typing import Any

import pytest

from posenc_runtime.kv.handover import scale_of, sign
from tests.kv.test_deployment import YARN

KEY = b"0123456789abcdef0123456789abcdef"
PROMPT = [5, 70000, 9]
PLACE = {
    **{"remote_engine_id": "engine", "remote_request_id": "request", "remote_block_ids": ([3, 4], [7])},
    **{"remote_host": "prefill", "remote_port": 5601, "tp_size": 1, "dcp_size": 1, "pp_size": 1},
    **{"remote_num_tokens": 3, "transfer_mode": "pull"},
}
EXPIRES = 1_800_000_000


def signed(**changed: Any) -> dict[str, Any]:
    """Parameters of a transfer as a router passes them on: as JSON has them."""
    asked: dict[str, Any] = {"prompt_token_ids": PROMPT, "contents": ["image:a"], "place": PLACE, "scale": 2.0}
    asked |= changed
    signature = sign(KEY, YARN, asked.pop("scale"), expires=EXPIRES, **asked)
    posenc = {"scale": changed.get("scale", 2.0), "expires": EXPIRES, "signature": signature}
    return dict(json.loads(json.dumps(PLACE | {"posenc": posenc, "do_remote_prefill": True})))


def taken(params: dict[str, Any], key: bytes = KEY, **changed: Any) -> float:
    deployment = changed.pop("deployment", YARN)
    asked = {"prompt_token_ids": PROMPT, "contents": ["image:a"], "now": EXPIRES - 1.5} | changed
    return scale_of(key, deployment, params, **asked)


@pytest.mark.parametrize("scale", [1, 1.0, 2.5, 4.0])
def test_a_signed_scale_is_taken_as_the_prefilling_server_said_it(scale: float) -> None:
    assert taken(signed(scale=scale)) == scale


def test_the_signature_is_that_of_rfc_2104_over_what_decides_the_keys() -> None:
    tokens = hashlib.sha256(struct.pack("<3q", *PROMPT)).hexdigest()
    place = [[[3, 4], [7]], "engine", "request", "prefill", 5601, 1, 1, 1, 3, "pull"]
    said = [YARN.fingerprint, 2.0, EXPIRES, tokens, ["image:a"], place]
    expected = hmac.new(KEY, json.dumps(said).encode(), "sha256").hexdigest()
    assert signed()["posenc"]["signature"] == expected


@pytest.mark.parametrize(
    "taken_with",
    [
        {"key": KEY[::-1]},
        {"deployment": dataclasses.replace(YARN, parameters={"beta_fast": 24.0})},
        {"prompt_token_ids": [5, 70000, 8]},
        {"contents": ["image:b"]},
        {"contents": ["image:a", "adapter:x"]},
    ],
    ids=["another key", "other rotations", "another prompt", "another image", "an adapter"],
)
def test_a_signature_of_something_else_is_refused(taken_with: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^kv_transfer_params\.posenc\.signature must be that of this prompt"):
        taken(signed(), **taken_with)


@pytest.mark.parametrize(
    "forged",
    [
        {"posenc": {"scale": 4.0}},
        {"posenc": {"expires": EXPIRES + 1}},
        {"remote_host": "mine"},
        {"remote_port": 5602},
        {"tp_size": 2},
        {"pp_size": 2},
        {"remote_num_tokens": 4},
        {"transfer_mode": "push"},
        {"remote_block_ids": [["3", "4"], ["7"]]},
        {"remote_block_ids": ["34", "7"]},
        {"remote_block_ids": [[3.0, 4], [7]]},
        {"remote_engine_id": "another"},
        {"remote_request_id": "another"},
        {"remote_block_ids": [[3, 5], [7]]},
        {"remote_block_ids": [[3], [4, 7]]},
    ],
    ids=str,
)
def test_what_a_client_changes_is_refused(forged: dict[str, Any]) -> None:
    params = signed()
    posenc = params["posenc"] | forged.pop("posenc", {})
    with pytest.raises(ValueError, match="is another one"):
        taken(params | forged | {"posenc": posenc})


@pytest.mark.parametrize(
    "posenc",
    [
        *(None, "2", {}, {"scale": 2.0, "expires": EXPIRES}, {"signature": "0", "expires": EXPIRES}),
        *({"scale": True, "signature": "0", "expires": EXPIRES}, {"scale": 2.0, "signature": "0", "expires": 2.5}),
    ],
    ids=repr,
)
def test_keys_without_a_signed_scale_are_refused(posenc: object) -> None:
    with pytest.raises(ValueError, match=r"^kv_transfer_params\.posenc must have the scale, expires and the signature"):
        taken(signed() | {"posenc": posenc})


@pytest.mark.parametrize("name", ["remote_engine_id", "remote_block_ids", "remote_host", "tp_size"])
def test_a_place_with_a_part_missing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^kv_transfer_params must have {name} as the prefilling server has answered"):
        taken({key: value for key, value in signed().items() if key != name})


def test_what_a_server_has_signed_is_valid_for_as_long_as_it_keeps_the_blocks() -> None:
    assert taken(signed(), now=EXPIRES) == 2.0
    with pytest.raises(ValueError, match=r"^kv_transfer_params\.posenc\.expires must not be over, got 1800000000"):
        taken(signed(), now=EXPIRES + 0.1)


def test_a_signature_that_is_no_ascii_is_another_one() -> None:
    with pytest.raises(ValueError, match="is another one"):
        taken(signed() | {"posenc": {"scale": 2.0, "expires": EXPIRES, "signature": "é"}})
