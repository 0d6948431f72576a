"""Middleware that lets each request ask only for what its key, and the address that it came to, allow."""

from __future__ import annotations

import enum
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from server.app.edge.error_answers import refuse
from server.app.edge.headers import with_security_headers
from server.app.edge.keyring import Keyring, keys_shown
from server.app.edge.route_classes import RouteClass, match_route

logger = logging.getLogger("vllm.posenc")

KEY = "posenc_key"  # in a request's scope: the name of its key; absent where it has none or none is needed
GATE = "posenc_gate"  # in the scope of requests that came to another address than the server's: what that one lets in


class Needs(enum.Enum):
    """The key that a request must show, so that a gate lets it in."""

    NOTHING = enum.auto()
    KEY = enum.auto()
    ADMINISTRATOR = enum.auto()
    CLOSED = enum.auto()


Gate = Mapping[RouteClass, Needs]  # what an address asks of requests to each class of routes


class Refusal(NamedTuple):
    """Why a request is not let in."""

    status: int
    message: str
    headers: Mapping[str, str]


class AccessMiddleware:
    """ASGI middleware: classifies the route of a request, and checks its key.

    Without a valid key, where there are keys, nobody learns which routes exist.

    Args:
        routes: the router's own list, to which routes may still be added.
        classes: of routes by their templates.
        gate: of the server's own address.
        administrators: names of the keys that ``Needs.ADMINISTRATOR`` asks for.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        routes: Sequence[BaseRoute],
        classes: Mapping[str, RouteClass],
        gate: Gate,
        keys: Keyring,
        administrators: Collection[str] = (),
    ) -> None:
        self._app, self._routes, self._classes, self._gate = app, routes, classes, gate
        self._keys, self._administrators = keys, frozenset(administrators)
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request in, or answer it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        send = with_security_headers(send)
        name = self._keys.name_of(keys_shown(scope["headers"])) if self._keys else None
        if name is not None:
            scope[KEY] = name
        if refusal := self._refusal(scope, name):
            await refuse(scope, receive, send, *refusal)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, name: str | None) -> Refusal | None:
        template = match_route(self._routes, scope)
        if template is None:
            needs = Needs.KEY  # the router answers that there is no such route, or redirects to one
        elif template in self._classes:
            needs = scope.get(GATE, self._gate)[self._classes[template]]
        else:
            self._log_unknown(template)
            needs = Needs.CLOSED
        if needs is Needs.NOTHING:
            return None
        if name is None and (self._keys or needs is Needs.ADMINISTRATOR):
            return _no_key(is_shown=bool(keys_shown(scope["headers"])))
        if needs is Needs.CLOSED:
            return Refusal(404, "this route is not served here", {})
        if needs is Needs.ADMINISTRATOR and name not in self._administrators:
            return Refusal(403, f"the key {name} may not administer this server", {})
        return None

    def _log_unknown(self, template: str) -> None:
        if template not in self._logged:
            self._logged.add(template)
            logger.warning(
                "%s is closed, because Posenc does not know this route: to open it, give it a class in access.routes",
                template,
            )


def _no_key(*, is_shown: bool) -> Refusal:
    if is_shown:
        return Refusal(
            401,
            "the API key is not known to this server",
            {"WWW-Authenticate": 'Bearer error="invalid_token"'},
        )
    return Refusal(401, "an API key is needed: send it as Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer"})
