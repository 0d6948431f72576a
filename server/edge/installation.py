"""Puts our middleware into an API server of vLLM, from the settings that travel in ``additional_config``."""

from __future__ import annotations

import argparse

from fastapi import FastAPI

from posenc_runtime.vllm_adapter.http.capacity import capacity_of
from posenc_runtime.vllm_adapter.metrics.refusals import refusal_counter
from posenc_runtime.vllm_adapter.settings.front_end import FrontEndSettings, LimitSettings
from server.edge.bounded_validation import bound_validation
from server.edge.errors import OTHER_REASONS
from server.edge.limits import LimitsMiddleware
from server.edge.parsing import use_what_is_parsed
from server.edge.request_ids import RequestIdMiddleware


def settings_of(args: argparse.Namespace) -> FrontEndSettings:
    """What vLLM's arguments say of access and limits.

    Args:
        args: of vLLM's server, at ``app.state.args``.
    """
    return FrontEndSettings.of_additional_config(getattr(args, "additional_config", None))


def install(app: FastAPI) -> None:
    """Add our middleware. It runs inside of vLLM's own middleware, which is added later, and before every route."""
    settings = settings_of(app.state.args)
    hold_to(app, settings.limits)
    # Last, so that it is outermost, and the answers of the others carry the name, too. vLLM's own would name it anew.
    app.state.args.enable_request_id_headers = False
    app.add_middleware(RequestIdMiddleware)


def hold_to(app: FastAPI, limits: LimitSettings) -> None:
    """Hold requests to limits, and bound what their validation costs.

    Args:
        app: with its routes, and vLLM's arguments in its state.
    """
    args = app.state.args
    model_name = (args.served_model_name or [args.model])[0]
    reasons = (*LimitSettings.model_fields, *OTHER_REASONS)
    bound_validation(app)
    use_what_is_parsed()
    app.add_middleware(
        LimitsMiddleware,
        limits=limits,
        capacity=lambda: capacity_of(getattr(app.state, "engine_client", None)),
        refused=refusal_counter(model_name, reasons),
    )
