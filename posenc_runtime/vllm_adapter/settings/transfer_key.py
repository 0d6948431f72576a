"""The key that servers share which hand keys of scaled requests to each other; the environment has it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from posenc_runtime.vllm_adapter.contract.names import NIXL
from posenc_runtime.vllm_adapter.settings.section import SettingRefused

VARIABLE = "POSENC_TRANSFER_KEY"
_SHORTEST = 32  # characters


def transfer_key(environment: Mapping[str, str] = os.environ) -> bytes:
    """The key of ``POSENC_TRANSFER_KEY``.

    Raises:
        SettingRefused: when there is none, or a short one.
    """
    key = environment.get(VARIABLE, "").strip()
    if len(key) < _SHORTEST:
        got = "none" if not key else f"{len(key)}"
        raise SettingRefused(
            f"{VARIABLE} must have at least {_SHORTEST} characters where {NIXL} hands keys of scaled requests from "
            f"server to server, got {got}: with it, a server that prefills signs the scale of its keys. Set it to one "
            "value for all servers, such as `openssl rand -hex 32` prints"
        )
    return key.encode()
