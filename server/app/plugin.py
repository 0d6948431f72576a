"""What we add to an API server of vLLM: routes, a page, reports in answers, checks of requests, and a greeting."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from posenc_runtime.vllm_adapter.contract.active import deployment_of
from posenc_runtime.vllm_adapter.in_server import front_end, stopping
from posenc_runtime.vllm_adapter.in_server.engine_state import Pulse
from posenc_runtime.vllm_adapter.in_server.handing_over import hand_over
from posenc_runtime.vllm_adapter.in_server.one_scale import keep_at_one_scale
from posenc_runtime.vllm_adapter.in_server.request_log import Format, RequestLinesMiddleware, log_requests
from posenc_runtime.vllm_adapter.in_server.stopping import Draining
from posenc_runtime.vllm_adapter.in_worker.rotary.wavelengths import rotations
from server.app.edge.headers import hide_server
from server.app.edge.installation import Edge, install, name_requests, settings_of
from server.app.greeting import greeting
from server.app.health.probes import probes_router
from server.app.health.refusing import RefusingWhileDraining
from server.app.health.state import Health
from server.app.page_routes import add_page
from server.app.routes import Served, data_router
from server.printing.deployment_report import attention_layers_line, budget_line

logger = logging.getLogger("vllm.posenc")

# Attributes that posenc serve sets on the namespace of vLLM's arguments.
REQUEST_LOG = "posenc_request_log"
ENDED = "posenc_ended"


class EndpointPlugin:
    """An endpoint plugin of vLLM (``vllm/plugins/endpoint_plugins/interface.py``)."""

    name = "posenc"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._announcing: asyncio.Task[None] | None = None
        self._showing: asyncio.Task[None] | None = None
        self._draining = Draining()
        self._edge: Edge | None = None

    def attach_router(self, app: FastAPI) -> None:
        """Add our routes, the page and our middleware; routes with data answer 404 where there is no deployment."""
        app.include_router(data_router())
        app.include_router(probes_router())
        add_page(app)
        self._edge = install(app)
        app.add_middleware(RefusingWhileDraining, draining=self._draining)
        name_requests(app)
        log_format = getattr(app.state.args, REQUEST_LOG, _of_vllm(app.state.args))
        if log_format != "off":
            app.add_middleware(
                RequestLinesMiddleware, log_format=log_format, is_wanted=lambda: hasattr(app.state, "posenc")
            )

    async def init_state(self, engine_client: Any, state: Any, args: argparse.Namespace) -> None:
        """Once the engine runs, add the checks of requests, the reports in answers, and what our routes show."""
        deployment = deployment_of(engine_client.vllm_config)
        if deployment is None:
            return
        front_end.attach(
            engine_client, state, deployment, self._draining, lambda by_itself: setattr(args, ENDED, by_itself)
        )
        turns_past = deployment.original_max_position_embeddings if deployment.turns_queries else None
        log_requests(engine_client, getattr(args, REQUEST_LOG, _of_vllm(args)), turns_past)
        hand_over(engine_client, deployment)
        keep_at_one_scale(engine_client, state, deployment)
        await front_end.warm_up(engine_client)
        budget = await front_end.rerotate_budget(engine_client, deployment)
        groups = await front_end.attention_layers(engine_client)
        front_end.show_attention(engine_client, groups)
        front_end.show_strategy(engine_client, deployment)
        state.posenc = Served(
            deployment=deployment,
            budget=budget,
            max_model_len=engine_client.model_config.max_model_len,
            registry=front_end.registry(),
            model=(args.served_model_name or [args.model])[0],
            has_chat_template=args.chat_template is not None or front_end.has_chat_template(engine_client),
            rotations=rotations(engine_client.model_config, deployment),
            block_size=engine_client.vllm_config.cache_config.block_size,
        )
        pulse = Pulse(engine_client)
        pulse.start()
        health = Health(engine_client, self._draining, pulse, settings_of(args).health.stalled_seconds)
        state.posenc_health = health
        self._showing = asyncio.create_task(health.shown(front_end.readiness(engine_client)))
        logger.info("%s", attention_layers_line(groups))
        if budget is not None:
            logger.info("%s", budget_line(budget))
        if self._edge is not None:
            self._edge.listen()
            self._announcing = asyncio.create_task(_announced(state, args, self._edge))


def _of_vllm(args: argparse.Namespace) -> Format:
    """How plain vLLM, which has no setting of ours, is to log requests: as its own log."""
    if not getattr(args, "enable_log_requests", False):
        return "off"
    config = getattr(args, "logging_config", None)
    formatter = config.get("formatter") if isinstance(config, Mapping) else getattr(config, "formatter", "text")
    return "json" if formatter == "json" else "text"


async def _announced(state: Any, args: argparse.Namespace, edge: Edge) -> None:
    """Print the greeting once requests are taken: vLLM makes its server only after it has initialised its plugins."""
    while not getattr(getattr(state, "server", None), "started", False):
        await asyncio.sleep(0.02)
    stopping.bound_last_answers(state.server)
    hide_server(state.server)
    names = args.served_model_name or [args.model]
    for line in greeting(args, names[0], state.posenc, edge.access, asks_for_key=edge.asks_for_key):
        logger.info("%s", line)
