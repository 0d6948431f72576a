"""vLLM's own server, configured and started in this process."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from posenc_runtime import vllm_adapter
from posenc_runtime.vllm_adapter.contract.errors import CannotListen, Failed, Refused, Unsupported
from posenc_runtime.vllm_adapter.processes.signals import end_at_signals
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import refusals_of_vllm, with_section
from posenc_runtime.vllm_adapter.settings.arguments.flags import ArgumentRefused

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

    from posenc_runtime.vllm_adapter.settings.plan import Plan


@dataclasses.dataclass(frozen=True)
class Configured:
    """A server that can be started.

    Attributes:
        args: of vLLM's server.
        vllm_config: vLLM's whole configuration, as the engine will have it on this machine.
    """

    args: argparse.Namespace
    plan: Plan
    vllm_config: VllmConfig


# Front-end arguments for routes that do one part of a request: only the work on its text, or only the engine's.
_OF_PARTS = ("enable_scale_out", "tokens_only")


class EngineDidNotStart(Failed):
    """The engine's process ended while starting: no memory, no weights, or a bug."""

    what = "the engine did not start"


class EngineDied(Failed):
    """The engine's process ended while it served: no memory, or a bug."""

    what = "the engine ended while it served"


def prepare_environment(*, verbose: bool) -> None:
    """Set what vLLM reads from the environment, before it is imported. What the user set stays.

    Args:
        verbose: let vLLM log what it does; otherwise errors only.
    """
    if not verbose:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # The client must be the one to close an idle connection: a server that closes it resets a request just under way.
    # vLLM closes after 5 s, as long as httpx keeps idle connections; load balancers keep them for 60 s.
    os.environ.setdefault("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "75")


def configure_server(args: argparse.Namespace, planned: Plan | None = None) -> Configured:
    """What a server is going to be started with: every check that needs no engine has passed.

    Args:
        args: from ``engine_args.serve_arguments``.
        planned: the plan of the same arguments, where it was made before vLLM was imported.

    Raises:
        ArgumentRefused: when vLLM refuses a value, a combination of two, the tokenizer or the generation configuration.
        SettingRefused: when two settings contradict each other, or nobody knows the trained length.
        Unsupported: when the configuration cannot be combined with scaling.
        UnreadableCheckpoint: when the checkpoint's configuration cannot be read.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    from posenc_runtime.vllm_adapter.engine_configuration import configure

    vllm_adapter.register()  # whatever VLLM_PLUGINS says
    stock = inspect.unwrap(AsyncEngineArgs.create_engine_config)
    make = functools.partial(stock, usage_context=UsageContext.OPENAI_API_SERVER)
    try:
        plan, vllm_config = configure(AsyncEngineArgs.from_cli_args(args), make, serves=True, planned=planned)
    except Unsupported as error:
        raise Unsupported(with_section(str(error))) from None
    except Refused:
        raise
    except (ValueError, TypeError, NotImplementedError, AssertionError, ImportError, OSError, RuntimeError) as error:
        # vLLM refuses settings by these. Any other exception, such as a KeyError, is a bug and must show.
        raise ArgumentRefused("\n".join(refusals_of_vllm(error))) from error
    _refuse_parts(args, plan)
    _read_beside_weights(vllm_config.model_config)
    return Configured(args, plan, vllm_config)


def _refuse_parts(args: argparse.Namespace, plan: Plan) -> None:
    for name in _OF_PARTS:
        if getattr(args, name, False) and len(plan.deployment.scales) > 1:
            raise ArgumentRefused(
                f"server.{name}: must be false where scaling.scales has several scales, got true: its routes do only "
                "a part of a request, and their answers do not say at which scale the request ran"
            )


def _read_beside_weights(model_config: ModelConfig) -> None:
    """Read early what vLLM reads at its start: the tokenizer, which stays cached, and the generation configuration."""
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


def run(server: Configured, ended: str, leave: Callable[[int], NoReturn]) -> None:
    """Serve with vLLM's own server, in this process, until it is told to stop.

    Args:
        server: from ``configure_server``; vLLM makes no other configuration.
        ended: attribute of its arguments that says afterwards whether the engine ended by itself.
        leave: called with a signal's number when the signal comes before this process serves; ends the process.

    Raises:
        CannotListen: when the server cannot listen at the address.
        EngineDidNotStart: when the engine's process ended while starting.
        EngineDied: when it ended while it served.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand

    args, stock = server.args, AsyncEngineArgs.create_engine_config

    @functools.wraps(stock)
    def create_engine_config(*given: Any, **named: Any) -> VllmConfig:
        end_at_signals(leave)  # vLLM has set its own handlers by now, and starts the engine next
        return server.vllm_config

    AsyncEngineArgs.create_engine_config = create_engine_config
    try:
        ServeSubcommand.cmd(args)
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        settings, address = "server.host, server.port", f"{args.host} and {args.port}"
        if args.uds is not None:
            settings, address = "server.uds", args.uds
        raise CannotListen(f"{settings}: must be a free address, got {address}: {error.strerror or error}") from error
    except RuntimeError as error:
        if not str(error).startswith("Engine core initialization failed"):
            raise
        # The engine's own process has logged the cause; this error says only that the engine ended.
        raise EngineDidNotStart(
            "the engine did not start: the cause is above; --verbose shows all of vLLM's log"
        ) from error
    except SystemExit:
        if not getattr(args, ended, False):
            raise
    finally:
        AsyncEngineArgs.create_engine_config = stock
    if getattr(args, ended, False):
        raise EngineDied("the engine ended while it served: the cause is above; --verbose shows all of vLLM's log")
