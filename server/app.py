"""The server: our routes beside vLLM's, in one process with the engine's client."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import serving
from posenc_runtime.vllm_adapter.prometheus import show_attention
from server.report import budget_line
from server.routes import scales_router


async def run(args: argparse.Namespace, deployment: Deployment, say: Callable[[str], None]) -> None:
    """Start the engine, serve until told to stop, stop the engine.

    Args:
        args: vLLM's own, from ``engine_args.serve_arguments``.
        say: shows a line of progress to whoever started the server.

    Raises:
        EngineDied: when the engine ends without having been told to.
    """
    began = time.monotonic()
    address, sock = serving.bind(args)
    try:
        async with serving.running_engine(args) as engine:
            app = await serving.build_openai_app(args, engine, deployment)
            budget = await serving.rerotate_budget(engine, deployment)
            app.include_router(scales_router(deployment, budget=budget))
            groups = await serving.attention_layers(engine)
            show_attention(groups, engine.model_config.served_model_name, serving.engine_numbers(engine))
            say("attention: " + "; ".join(f"layers {g.layers}: {g.backend} ({g.encoding})" for g in groups))
            if budget is not None:
                say(budget_line(budget))
            sock.listen()  # from here on connections wait for what serves them, and are not refused
            say(f"ready after {time.monotonic() - began:.0f} s: {address}")
            stopped = await serving.serve(app, engine, sock, args)
        await stopped
    finally:
        sock.close()
