"""Puts our middleware into an API server of vLLM, from the settings that travel in ``additional_config``."""

from __future__ import annotations

import argparse

from fastapi import FastAPI

from posenc_runtime.vllm_adapter.settings.front_end import FrontEndSettings


def settings_of(args: argparse.Namespace) -> FrontEndSettings:
    """What vLLM's arguments say of access and limits.

    Args:
        args: of vLLM's server, at ``app.state.args``.
    """
    return FrontEndSettings.of_additional_config(getattr(args, "additional_config", None))


def install(app: FastAPI) -> None:
    """Add our middleware. It runs inside of vLLM's own middleware, which is added later, and before every route."""
    settings_of(app.state.args)
