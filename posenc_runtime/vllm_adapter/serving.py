"""vLLM's engine and OpenAI routes, started in this process for our server."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from posenc_runtime.kv.budget import Budget, Speed, given, measured
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import compat
from posenc_runtime.vllm_adapter.attention.layer_groups import LayerGroup, layer_groups
from posenc_runtime.vllm_adapter.engine_args import refusals_of_vllm, with_section
from posenc_runtime.vllm_adapter.flags import ArgumentRefused
from posenc_runtime.vllm_adapter.requests import check_requests, default_max_tokens, refuse_several
from posenc_runtime.vllm_adapter.responses import announce_scales, announce_stopped
from posenc_runtime.vllm_adapter.support import Unsupported, refuse_block_size, refuse_unsupported

if TYPE_CHECKING:
    from fastapi import FastAPI
    from vllm.config import ModelConfig, VllmConfig


_LAST_ANSWERS_SECONDS = 10  # that clients have to read the ends of their answers when the engine has stopped


class EngineDidNotStart(RuntimeError):
    """The engine's process ended while starting: no memory, no weights, or a bug."""


class EngineDied(RuntimeError):
    """The engine's process ended while it served: no memory, or a bug."""


class CannotListen(RuntimeError):
    """The address is taken, is not this machine's, or may not be used."""


def prepare_environment(*, verbose: bool, world_size: int) -> None:
    """Set what vLLM reads from the environment, before it is imported. What the user set stays.

    Args:
        verbose: let vLLM log what it does; otherwise errors only.
        world_size: workers on this machine.
    """
    if not verbose:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # The deployment's largest scale covers max_model_len; a tokenizer's model_max_length must not refuse it.
    os.environ.setdefault("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    # An idle connection must be closed by whoever sends on it: a server that closes first resets the request that is
    # just under way. vLLM's 5 s are httpx's own; load balancers keep idle connections for 60 s.
    os.environ.setdefault("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "75")
    # With any connector vLLM reserves a second core a worker for network transfers, of which there are none here;
    # on two cores that leaves the worker without a core of its own.
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", str(world_size))


def engine_configuration(args: argparse.Namespace) -> VllmConfig:
    """vLLM's whole configuration, as the engine will have it on this machine.

    Args:
        args: from ``engine_args.serve_arguments``.

    Raises:
        ArgumentRefused: when vLLM refuses a value, the combination of two, or what it reads beside the weights.
        Unsupported: when the configuration cannot be combined with scaling.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    try:
        engine_args = AsyncEngineArgs.from_cli_args(args)
        vllm_config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        refuse_unsupported(vllm_config)
        refuse_block_size(vllm_config)
    except Unsupported as error:
        raise Unsupported(with_section(str(error))) from None
    except (ValueError, TypeError, NotImplementedError, AssertionError, ImportError, OSError, RuntimeError) as error:
        # As vLLM refuses settings. Anything else, a KeyError for example, is a mistake in it or here, and has to show.
        raise ArgumentRefused("\n".join(refusals_of_vllm(error))) from error
    _read_beside_weights(vllm_config.model_config)
    return vllm_config


def _read_beside_weights(model_config: ModelConfig) -> None:
    """Read what vLLM would read only when it starts: the tokenizer, which is kept for then, and how to sample."""
    from vllm.tokenizers.registry import cached_tokenizer_from_config

    with _refused("engine.tokenizer", "a tokenizer's name or folder (default: the model's)", model_config.tokenizer):
        cached_tokenizer_from_config(model_config)
    allowed = "auto, vllm, or a folder with a generation_config.json"
    with _refused("engine.generation_config", allowed, model_config.generation_config):
        model_config.try_get_generation_config()


@contextlib.contextmanager
def _refused(setting: str, allowed: str, value: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # tokenizers raises nothing more particular for a file that it cannot read
        why = " ".join(str(error).split())
        raise ArgumentRefused(f"{setting}: must be {allowed}, got {value!r}: {why}") from error


@contextlib.asynccontextmanager
async def running_engine(args: argparse.Namespace) -> AsyncIterator[Any]:
    """Start the engine, and stop it on leaving.

    Raises:
        ArgumentRefused: when vLLM refuses a value, or the combination of two.
        EngineDidNotStart: when the engine's process ended while starting.
        IncompatibleVllm: when vLLM lacks a name that we touch.
        Unsupported: when the engine's configuration cannot be combined with scaling.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client_from_engine_args
    from vllm.usage.usage_lib import UsageContext

    compat.verify_server()
    engine_configuration(args)
    engine_args = AsyncEngineArgs.from_cli_args(args)
    starting = build_async_engine_client_from_engine_args(engine_args, usage_context=UsageContext.OPENAI_API_SERVER)
    async with contextlib.AsyncExitStack() as stack:
        try:
            engine = await stack.enter_async_context(starting)
        except RuntimeError as error:
            # The cause was logged by the engine's own process; here is only that it ended.
            raise EngineDidNotStart(
                "the engine did not start: the cause is above; --verbose shows all that vLLM says"
            ) from error
        yield engine


async def build_openai_app(args: argparse.Namespace, engine: Any, deployment: Deployment) -> FastAPI:
    """vLLM's application with its own routes, told what a request may ask for and what it gets without asking."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    if not deployment.changes_scales:
        announce_stopped(engine, deployment)
    tasks = await engine.get_supported_tasks()
    app: FastAPI = build_app(args, tasks, engine.model_config)
    await init_app_state(engine, app.state, args, tasks)
    if len(deployment.scales) > 1:
        refuse_several(app.state)
        if deployment.on_crossing == "pin":
            default_max_tokens(app.state, deployment)
    check_requests(deployment)
    announce_scales(app.state)
    return app


async def attention_layers(engine: Any) -> list[LayerGroup]:
    """What attends in each layer of a running engine, as its workers say."""
    workers = await engine.collective_rpc("posenc_attention")
    return layer_groups((name, backend, encoding) for layers in workers for name, backend, encoding in layers)


async def rerotate_budget(engine: Any, deployment: Deployment) -> Budget | None:
    """Cached tokens that a running engine re-rotates before a step, and why as many; None where it turns none.

    Workers say what they told the scheduler. Of several engines that serve in parallel one is asked.
    """
    if not deployment.rerotates:
        return None
    if deployment.rerotate_budget_tokens is not None:
        return given(deployment.rerotate_budget_tokens)
    return measured([Speed(**told) for told in await engine.collective_rpc("posenc_speed")])


def engine_numbers(engine: Any) -> list[int]:
    """Of the engines that this server manages, which may be some of many that serve in parallel."""
    return list(engine.engine_core.engine_ranks_managed)


async def serve(app: FastAPI, engine: Any, sock: Any, args: argparse.Namespace) -> Any:
    """Serve until a signal says stop; returns vLLM's shutdown task, to be awaited after the engine has stopped.

    Raises:
        EngineDied: when no signal did, and vLLM has stopped to serve because its engine was gone.
    """
    from vllm import envs
    from vllm.entrypoints.launchers.launcher import serve_http

    ending = await serve_http(
        app,
        sock=sock,
        enable_ssl_refresh=args.enable_ssl_refresh,
        host=args.host,
        port=args.port,
        log_level=args.uvicorn_log_level,
        timeout_keep_alive=envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE,
        timeout_graceful_shutdown=_LAST_ANSWERS_SECONDS,
        access_log=not args.disable_uvicorn_access_log,
        ssl_keyfile=args.ssl_keyfile,
        ssl_certfile=args.ssl_certfile,
        ssl_ca_certs=args.ssl_ca_certs,
        ssl_cert_reqs=args.ssl_cert_reqs,
        ssl_ciphers=args.ssl_ciphers,
        h11_max_incomplete_event_size=args.h11_max_incomplete_event_size,
        h11_max_header_count=args.h11_max_header_count,
    )
    if not hasattr(app, "state"):  # vLLM takes it away when its routes close, which after a signal they do only later
        await ending
        raise EngineDied("the engine ended while it served: the cause is above; --verbose shows all that vLLM says")
    _end_requests(engine)
    return ending


def _end_requests(engine: Any) -> None:
    """End the requests of an engine that has stopped, with what they have said so far.

    vLLM's engine says that they are aborted and is killed at once. What it had no time to say would be waited for.
    """
    requests = engine.output_processor
    requests.abort_requests(list(requests.request_states), internal=True)


def bind(args: argparse.Namespace) -> tuple[str, Any]:
    """Bind the address before the engine takes its time. Returns the address and the socket.

    Raises:
        CannotListen: naming the address, the reason and the settings.
    """
    from vllm.entrypoints.launchers.launcher import setup_server

    try:
        address, sock = setup_server(args, reuse_port=False)
    except OSError as error:
        settings, address = "server.host, server.port", f"{args.host} and {args.port}"
        if args.uds is not None:
            settings, address = "server.uds", args.uds
        raise CannotListen(
            f"{settings}: must be an address that is free, got {address}: {error.strerror or error}"
        ) from error
    return address, sock
