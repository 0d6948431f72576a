"""Takes over from vLLM's own guard of routes, which guards only some routes, by the start of their paths."""

from __future__ import annotations

import argparse
import os

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.settings.api_keys import VARIABLE
from posenc_runtime.vllm_adapter.settings.front_end import AccessSettings
from posenc_runtime.vllm_adapter.settings.section import SettingRefused

_NONE = [""]  # vLLM leaves out empty keys, and looks into the environment where it has no list


def take_keys(args: argparse.Namespace) -> list[str]:
    """The keys of ``--api-key``, or else of ``VLLM_API_KEY``; vLLM's own check of them is turned off.

    Args:
        args: of vLLM's server, before it adds its middleware.
    """
    from vllm import envs

    keys = [key for key in (args.api_key or [envs.VLLM_API_KEY]) if key]
    args.api_key = _NONE
    return keys


def close_cors(args: argparse.Namespace) -> None:
    """Let no page of another origin read answers, unless origins are named.

    Where vLLM allows every origin by default, that default cannot be told from a user who asks for every origin.

    Args:
        args: of vLLM's server, before it adds its middleware.
    """
    if releases.CORS_OPEN_BY_DEFAULT.is_here and args.allowed_origins == ["*"]:
        args.allowed_origins = []


def refuse_other_front_ends(access: AccessSettings) -> None:
    """Refuse settings of access where vLLM's front end in Rust serves, because that front end runs nothing of ours.

    Raises:
        SettingRefused: naming the variable that chooses that front end.
    """
    from vllm import envs

    is_asked_for = bool(access.model_fields_set) or VARIABLE in os.environ
    if is_asked_for and getattr(envs, "VLLM_USE_RUST_FRONTEND", False):
        raise SettingRefused(
            f"access: must be left out, and {VARIABLE} unset, where VLLM_USE_RUST_FRONTEND is set: vLLM's front end in "
            "Rust checks neither keys nor routes. Unset VLLM_USE_RUST_FRONTEND"
        )
