"""Puts our middleware into an API server of vLLM, from the settings that travel in ``additional_config``."""

from __future__ import annotations

import argparse
import pathlib

from fastapi import FastAPI

from posenc_runtime.vllm_adapter.http import stock_access
from posenc_runtime.vllm_adapter.settings.addresses import is_address
from posenc_runtime.vllm_adapter.settings.api_keys import ApiKey, in_environment
from posenc_runtime.vllm_adapter.settings.front_end import AccessSettings, FrontEndSettings
from server.edge.access import AccessMiddleware, Gate, Needs
from server.edge.keys import Keyring
from server.edge.route_classes import CLASSES, RouteClass

_NEEDS = {"open": Needs.NOTHING, "key": Needs.KEY, "off": Needs.CLOSED}


def settings_of(args: argparse.Namespace) -> FrontEndSettings:
    """What vLLM's arguments say of access and limits.

    Args:
        args: of vLLM's server, at ``app.state.args``.
    """
    return FrontEndSettings.of_additional_config(getattr(args, "additional_config", None))


def install(app: FastAPI) -> None:
    """Add our middleware. It runs inside of vLLM's own middleware, which is added later, and before every route.

    What is added last runs first: access is checked before anything else.
    """
    settings = settings_of(app.state.args)
    _add_access(app, settings.access)


def _add_access(app: FastAPI, access: AccessSettings) -> None:
    args = app.state.args
    stock = [ApiKey.of(key) for key in stock_access.take_keys(args)]
    keys = Keyring([*in_environment(), *stock], None if access.keys_file is None else pathlib.Path(access.keys_file))
    app.state.posenc_asks_for_key = bool(keys)
    app.add_middleware(
        AccessMiddleware,
        routes=app.router.routes,
        classes={**CLASSES, **{template: RouteClass(its_class) for template, its_class in access.routes.items()}},
        gate=own_gate(access),
        keys=keys,
        administrators=access.administrators,
    )


def own_gate(access: AccessSettings) -> Gate:
    """What the server's own address asks for."""
    return {
        RouteClass.OPEN: Needs.NOTHING,
        RouteClass.INFERENCE: Needs.KEY,
        RouteClass.METRICS: Needs.CLOSED if is_address(access.metrics) else _NEEDS[access.metrics],
        RouteClass.ADMINISTRATION: Needs.ADMINISTRATOR if access.administration == "key" else Needs.CLOSED,
    }
