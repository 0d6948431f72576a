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
PLACE = {"remote_engine_id": "engine", "remote_request_id": "request", "remote_block_ids": ([3, 4], [7])}


def signed(**changed: Any) -> dict[str, Any]:
    """Parameters of a transfer as a router passes them on: as JSON has them."""
    asked: dict[str, Any] = {"prompt_token_ids": PROMPT, "contents": ["image:a"], "place": PLACE, "scale": 2.0}
    asked |= changed
    signature = sign(KEY, YARN, asked.pop("scale"), **asked)
    posenc = {"scale": changed.get("scale", 2.0), "signature": signature}
    return dict(json.loads(json.dumps(PLACE | {"posenc": posenc, "do_remote_prefill": True})))


def taken(params: dict[str, Any], key: bytes = KEY, **changed: Any) -> float:
    deployment = changed.pop("deployment", YARN)
    asked = {"prompt_token_ids": PROMPT, "contents": ["image:a"]} | changed
    return scale_of(key, deployment, params, **asked)


@pytest.mark.parametrize("scale", [1, 1.0, 2.5, 4.0])
def test_a_signed_scale_is_taken_as_the_prefilling_server_said_it(scale: float) -> None:
    assert taken(signed(scale=scale)) == scale


def test_the_signature_is_that_of_rfc_2104_over_what_decides_the_keys() -> None:
    tokens = hashlib.sha256(struct.pack("<3q", *PROMPT)).hexdigest()
    said = [YARN.fingerprint, 2.0, tokens, ["image:a"], ["engine", "request", [[3, 4], [7]]]]
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
        {"remote_engine_id": "another"},
        {"remote_request_id": "another"},
        {"remote_block_ids": [[3, 5], [7]]},
        {"remote_block_ids": [[3], [4, 7]]},
    ],
    ids=lambda value: next(iter(value)),
)
def test_what_a_client_changes_is_refused(forged: dict[str, Any]) -> None:
    params = signed()
    posenc = params["posenc"] | forged.pop("posenc", {})
    with pytest.raises(ValueError, match="is another one"):
        taken(params | forged | {"posenc": posenc})


@pytest.mark.parametrize(
    "posenc",
    [None, "2", {}, {"scale": 2.0}, {"signature": "0" * 64}, {"scale": True, "signature": "0"}, {"scale": "2"}],
    ids=repr,
)
def test_keys_without_a_signed_scale_are_refused(posenc: object) -> None:
    with pytest.raises(ValueError, match=r"^kv_transfer_params\.posenc must have the scale and the signature"):
        taken(signed() | {"posenc": posenc})


@pytest.mark.parametrize("blocks", [None, 3, [3], [["a", None]]], ids=repr)
def test_a_place_that_is_none_is_refused(blocks: object) -> None:
    with pytest.raises(ValueError, match=r"^kv_transfer_params must have remote_engine_id"):
        taken(signed() | {"remote_block_ids": blocks})


def test_a_signature_that_is_no_ascii_is_another_one() -> None:
    with pytest.raises(ValueError, match="is another one"):
        taken(signed() | {"posenc": {"scale": 2.0, "signature": "é"}})
