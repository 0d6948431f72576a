"""The class of every route that the server can have, of vLLM and of ours. A route of no class is closed."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from starlette.routing import BaseRoute, Match
from starlette.types import Scope


class RouteClass(enum.Enum):
    """What a route is for, and so who may ask for it."""

    OPEN = "open"
    INFERENCE = "inference"
    METRICS = "metrics"
    ADMINISTRATION = "administration"


_TEMPLATES = {
    RouteClass.OPEN: (
        *("/", "/docs", "/posenc/page/{name}", "/posenc/page/swagger/{name}"),
        *("/health", "/health/live", "/health/ready", "/ping"),
    ),
    RouteClass.INFERENCE: (
        *("/v1/models", "/version", "/posenc/scales", "/posenc/live"),
        *("/openapi.json", "/docs/oauth2-redirect", "/redoc", "/static"),
        *("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions"),
        *("/v1/responses", "/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel"),
        *("/v1/messages", "/v1/messages/count_tokens", "/cohere/v2/chat", "/invocations"),
        *("/v1/chat/completions/render", "/v1/completions/render", "/v1/messages/render", "/v1/responses/render"),
        *("/v1/chat/completions/derender", "/v1/completions/derender", "/inference/v1/generate"),
        *("/v1/systemone", "/v1/decisions", "/generative_scoring"),
        *("/tokenize", "/detokenize", "/tokenizer_info"),
        *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime"),
        *("/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
        *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    ),
    RouteClass.METRICS: ("/metrics", "/load", "/kv_event_sources", "/health/generate"),
    RouteClass.ADMINISTRATION: (
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters", "/adapters/{adapter_name}"),
        *("/scale_elastic_ep", "/is_scaling_elastic_ep", "/fault_tolerance/apply", "/fault_tolerance/status"),
        *("/abort_requests", "/inference/v1/abort_requests"),
        *("/start_profile", "/stop_profile", "/server_info", "/collective_rpc"),
        *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"),
        *("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory", "/pause", "/resume", "/is_paused"),
        *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update"),
        *("/start_draft_weight_update", "/update_weights", "/finish_weight_update", "/update_weight_version"),
        *("/weight_info", "/weight_checker", "/get_world_size"),
    ),
}

# Routes by their templates. A mount stands for all that is below it.
CLASSES: Mapping[str, RouteClass] = {
    template: its_class for its_class, templates in _TEMPLATES.items() for template in templates
}


def match_route(routes: Iterable[BaseRoute], scope: Scope) -> str | None:
    """The template of the route that the router will choose for a request; None where it finds none.

    As in Starlette's router, the first full match counts, otherwise the first route that has the path, but not the
    method. A route without a template is named by its type.

    Args:
        routes: of the router, in its order.
        scope: of a request or a websocket.
    """
    partial = None
    for route in routes:
        match, _ = route.matches(scope)
        if match is Match.FULL:
            return _named(route)
        if match is Match.PARTIAL and partial is None:
            partial = route
    return None if partial is None else _named(partial)


def _named(route: BaseRoute) -> str:
    template = getattr(route, "path", None)
    return template if isinstance(template, str) else type(route).__name__
