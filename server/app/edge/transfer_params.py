"""Parameters with which a router moves keys between engines: who may send them, and that they are whole.

vLLM's NIXL connector believes what they say: an engine ends, or a request waits for ever, where a part is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from posenc_runtime.kv.handover import NEEDED
from server.app.edge.error_answers import RequestRefused

KV = "kv_transfer_params"
_FIELDS = (KV, "ec_transfer_params")
_CARRIERS = ("vllm_xargs", "extra_args")  # of further arguments, which vLLM passes on
_REASON = "transfer_params"
_NO_CONNECTOR = "this server has no connector that takes keys from another server, or gives them to one"

_FLAGS = ("do_remote_decode", "do_remote_prefill")
_TEXTS = ("remote_engine_id", "remote_request_id", "remote_host", "transfer_mode")
_FROM_ONE = ("remote_port", "tp_size", "dcp_size", "pp_size", "remote_block_size")
_FROM_ZERO = ("remote_num_tokens", "remote_prefill_cached_tokens", "remote_registration_generation")
_BLOCKS = "remote_block_ids"
_EXPIRY = "remote_blocks_expiry_time"
_REPORTS = ("posenc", "posenc_prompts", "posenc_choices")  # of the answer that a router takes the others from


def check_transfer_params(prefix: str, fields: Mapping[str, Any], taken: Collection[str]) -> None:
    """Check the transfer parameters of a body, or of its sampling parameters.

    Args:
        prefix: where these fields are in the body; empty at its top.
        taken: the parameters that the engine's connectors need of clients.

    Raises:
        RequestRefused: when no connector needs them, or NIXL's are incomplete or wrong.
    """
    places: Iterable[tuple[str, Any]] = ((prefix, fields), *((f"{prefix}{n}.", fields.get(n)) for n in _CARRIERS))
    for place, values in places:
        for name in _FIELDS:
            if isinstance(values, dict) and (params := values.get(name)) is not None:
                if place or name not in taken:
                    why = "its place is the top of the body" if name in taken else _NO_CONNECTOR
                    raise RequestRefused(f"{place}{name} must be left out: {why}", _REASON, param=f"{place}{name}")
                if name == KV:
                    _check_of_nixl(params)


def _check_of_nixl(params: Any) -> None:
    if not isinstance(params, dict):
        raise _refusal("", "be an object", params)
    for name, value in params.items():
        if value is not None:
            _check_value(name, value)
    if params.get("do_remote_prefill"):
        if params.get("do_remote_decode"):
            raise _refusal("do_remote_prefill", "be false where do_remote_decode is true", True)
        if missing := [name for name in NEEDED if params.get(name) in (None, [])]:
            raise RequestRefused(
                f"{KV} must have {', '.join(NEEDED)} where do_remote_prefill is true, got none of "
                f"{', '.join(missing)}: pass on all that the prefilling server has answered",
                _REASON,
                param=f"{KV}.{missing[0]}",
            )
    elif params.get(_BLOCKS):
        raise _refusal(_BLOCKS, "be left out unless do_remote_prefill is true", "a list")


def _check_value(name: str, value: Any) -> None:
    if name in _FLAGS:
        is_right, rule = isinstance(value, bool), "be true or false"
    elif name in _TEXTS:
        is_right, rule = isinstance(value, str) and 0 < len(value) <= 256, "be a text of 1 to 256 characters"
    elif name in _FROM_ONE:
        is_right, rule = _is_whole(value, 1, 65535), "be a whole number from 1 to 65535"
    elif name in _FROM_ZERO:
        is_right, rule = _is_whole(value, 0, 2**31), "be a whole number from 0 to 2147483648"
    elif name == _EXPIRY:
        is_right, rule = isinstance(value, int | float) and not isinstance(value, bool), "be a number"
    elif name == _BLOCKS:
        is_right, rule = _are_blocks(value), "be a list of lists of block numbers"
    elif name in _REPORTS:
        return
    else:
        is_right, rule = False, "be left out: vLLM's NIXL connector has no such parameter"
    if not is_right:
        raise _refusal(name, rule, value)


def _is_whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _are_blocks(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(group, list) and all(_is_whole(block, 0, 2**31) for block in group) for group in value
    )


def _refusal(name: str, rule: str, value: Any) -> RequestRefused:
    where = f"{KV}.{name}" if name else KV
    said = value if isinstance(value, bool | int | float) else type(value).__name__
    return RequestRefused(f"{where} must {rule}, got {said}", _REASON, param=where)
