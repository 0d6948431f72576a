"""Puts our middleware into an API server of vLLM, from the settings that travel in ``additional_config``."""

from __future__ import annotations

import argparse
import asyncio
import pathlib

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from posenc_runtime.vllm_adapter.in_server import stock_access
from posenc_runtime.vllm_adapter.in_server.engine_state import capacity_of
from posenc_runtime.vllm_adapter.metrics.refusals import refusal_counter
from posenc_runtime.vllm_adapter.settings.addresses import is_address
from posenc_runtime.vllm_adapter.settings.api_keys import ApiKey, in_environment
from posenc_runtime.vllm_adapter.settings.front_end import AccessSettings, FrontEndSettings, LimitSettings
from server.app.edge.access import AccessMiddleware, Gate, Needs
from server.app.edge.bounded_validation import bound_validation
from server.app.edge.error_answers import OTHER_REASONS, shape_error
from server.app.edge.keyring import Keyring
from server.app.edge.limits import LimitsMiddleware
from server.app.edge.listeners import Listener, bound, serve
from server.app.edge.parsing import use_what_is_parsed
from server.app.edge.request_ids import RequestIdMiddleware
from server.app.edge.route_classes import CLASSES, RouteClass

_NEEDS = {"open": Needs.NOTHING, "key": Needs.KEY, "off": Needs.CLOSED}


class Edge:
    """The parts of our middleware between clients and the routes of an application.

    Attributes:
        access: who may ask for what.
        asks_for_key: whether requests need an API key.
    """

    def __init__(self, app: FastAPI, access: AccessSettings, *, asks_for_key: bool) -> None:
        self.access, self.asks_for_key = access, asks_for_key
        self._app, self._args, self._tasks = app, app.state.args, set[asyncio.Task[None]]()
        is_shared = (getattr(self._args, "api_server_count", None) or 1) > 1
        self._listeners = [
            Listener(bound(f"access.{setting}", address, is_shared=is_shared), gate_of(access, address))
            for address, setting in {access.administration: "administration", access.metrics: "metrics"}.items()
            if is_address(address)
        ]

    def listen(self) -> None:
        """Serve at the addresses of metrics and administration, until the application's own server ends."""
        for listener in self._listeners:
            task = asyncio.create_task(serve(self._app, listener, self._app.state, self._args))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def settings_of(args: argparse.Namespace) -> FrontEndSettings:
    """The settings of access and limits in vLLM's arguments.

    Args:
        args: of vLLM's server, at ``app.state.args``.
    """
    return FrontEndSettings.of_additional_config(getattr(args, "additional_config", None))


def install(app: FastAPI) -> Edge:
    """Add our middleware. It runs inside of vLLM's own middleware, which is added later, and before every route.

    What is added last runs first: access is checked before anything else.

    Raises:
        CannotListen: when an address of metrics or administration cannot be bound.
        KeysRefused: when there are keys that cannot be read.
    """
    settings = settings_of(app.state.args)
    stock_access.close_cors(app.state.args)
    app.add_exception_handler(HTTPException, shape_error)
    hold_to(app, settings.limits)
    return _add_access(app, settings.access)


def name_requests(app: FastAPI) -> None:
    """Give each request and its answer a name. Call it after all other middleware is added, whose answers then have
    names, too."""
    app.state.args.enable_request_id_headers = False  # vLLM's own would name the answer anew
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


def _add_access(app: FastAPI, access: AccessSettings) -> Edge:
    stock = [ApiKey.of(key) for key in stock_access.take_keys(app.state.args)]
    keys = Keyring([*in_environment(), *stock], None if access.keys_file is None else pathlib.Path(access.keys_file))
    app.add_middleware(
        AccessMiddleware,
        routes=app.router.routes,
        classes={**CLASSES, **{template: RouteClass(its_class) for template, its_class in access.routes.items()}},
        gate=own_gate(access),
        keys=keys,
        administrators=access.administrators,
    )
    return Edge(app, access, asks_for_key=bool(keys))


def own_gate(access: AccessSettings) -> Gate:
    """What the server's own address asks for."""
    return {
        RouteClass.OPEN: Needs.NOTHING,
        RouteClass.INFERENCE: Needs.KEY,
        RouteClass.METRICS: Needs.CLOSED if is_address(access.metrics) else _NEEDS[access.metrics],
        RouteClass.ADMINISTRATION: Needs.ADMINISTRATOR if access.administration == "key" else Needs.CLOSED,
    }


def gate_of(access: AccessSettings, address: str) -> Gate:
    """What an address of metrics, of administration, or of both asks for."""
    administers = Needs.ADMINISTRATOR if access.administrators else Needs.NOTHING
    return {
        RouteClass.OPEN: Needs.NOTHING,
        RouteClass.INFERENCE: Needs.CLOSED,
        RouteClass.METRICS: Needs.NOTHING if access.metrics == address else Needs.CLOSED,
        RouteClass.ADMINISTRATION: administers if access.administration == address else Needs.CLOSED,
    }
