"""The targets of an evaluation: servers that run somewhere, and deployments that it starts, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from posenc_runtime.vllm_adapter.contract.names import FORCED_TOKENS
from server.evaluation import EvaluationRefused, baselines
from server.evaluation.asking import Asker, ServedModel

if TYPE_CHECKING:
    from rich.console import Console

    from server.deployment.settings import Settings

_URLS = ("http://", "https://")
_NAMED = re.compile(r"([\w.+-]+)=(.+)")


@dataclasses.dataclass(frozen=True)
class Target:
    """One column of the tables.

    Attributes:
        what: a server's address, a deployment's file, the name of a configuration that ships, or a model.
        place: where its tokenizer is; None where nothing says it.
        max_model_len: longest request, tokens; None where it is not known before the target is started.
        described: what it is, for the journal.
        arguments: of ``posenc serve``; empty for a server that runs.
        static: the deployment whose largest scale stock vLLM gets for all requests; None for other targets.
    """

    name: str
    what: str
    key: str | None
    place: str | None
    max_model_len: int | None
    trained: int | None
    described: dict[str, Any]
    arguments: tuple[str, ...] = ()
    static: Settings | None = None

    @property
    def runs(self) -> bool:
        """Whether it is a server that somebody else started."""
        return self.what.startswith(_URLS)


def parse_targets(specs: Sequence[str], overrides: Sequence[str], key: str | None) -> list[Target]:
    """The targets that the command line names, each looked at: servers are asked, deployments are read.

    Args:
        specs: ``NAME=WHAT`` or ``WHAT``. Of a deployment that begins with ``static:``, stock vLLM is started with its
            largest scale for all requests; one that begins with ``unscaled:`` is started without its scales.
        overrides: ``PATH=VALUE`` for all deployments that are started, ``NAME:PATH=VALUE`` for one of them.
        key: for servers that want one.

    Raises:
        EvaluationRefused: when a target is not there, or two have one name.
        SettingRefused: when a deployment's setting is refused.
    """
    named = [_named(spec) for spec in specs]
    names = [name for name, _ in named]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise EvaluationRefused(f"--target: names must differ, got {double!r} twice: give NAME=TARGET")
    started = {name for name, what in named if not what.startswith(_URLS)}
    by_name: dict[str, list[str]] = {name: [] for name in started}
    for override in overrides:
        name, colon, rest = override.partition(":")
        is_of_one = bool(colon) and "=" not in name
        if is_of_one and name not in started:
            raise EvaluationRefused(f"--set {override}: no deployment that is started here is named {name!r}")
        for each in (name,) if is_of_one else sorted(started):
            by_name[each].append(rest if is_of_one else override)
    return [
        _running(name, what, key) if what.startswith(_URLS) else _deployment(name, what, by_name[name], key)
        for name, what in named
    ]


@contextlib.contextmanager
def serve_target(target: Target, console: Console, *, forces_tokens: bool) -> Iterator[str]:
    """The address of a target; a deployment is started, and stopped on leaving.

    Args:
        forces_tokens: whether a deployment is started so that it can be told what to say.

    Raises:
        EvaluationRefused: when it does not start.
    """
    if target.runs:
        yield _address(target.what)
        return
    from server.client.started_server import DidNotStart, launch, start_server

    forcing = ("--set", f"engine.logits_processors=[{FORCED_TOKENS}]") if forces_tokens else ()
    if target.static is None:
        server = start_server([*target.arguments, *forcing], console)
    else:
        command = baselines.stock_command(target.static, logits_processor=FORCED_TOKENS if forces_tokens else None)
        server = launch(command, console, baselines.ENVIRONMENT)
    with contextlib.ExitStack() as stack:
        try:
            address = stack.enter_context(server)
        except DidNotStart as error:
            raise EvaluationRefused(f"--target {target.name}: {error}") from None
        yield address


def ask_model(target: Target, address: str) -> ServedModel:
    """What a server says that it serves.

    Raises:
        EvaluationRefused: when no server of OpenAI's API answers.
    """

    async def ask() -> ServedModel:
        async with Asker(target.name, address, target.key) as asker:
            return await asker.served()

    return asyncio.run(ask())


def _named(spec: str) -> tuple[str, str]:
    is_url = spec.startswith(_URLS)
    if not is_url and (match := _NAMED.fullmatch(spec)):
        return match[1], match[2]
    if is_url:
        return re.sub(r"^https?://", "", _address(spec)), spec
    if spec.startswith((baselines.STATIC, baselines.UNSCALED)):
        return spec.partition(":")[0], spec
    return spec.rstrip("/").rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml"), spec


def _address(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


def _running(name: str, url: str, key: str | None) -> Target:
    target = Target(name, url, key, None, None, None, {})
    model = ask_model(target, _address(url))
    # The address may change from run to run; what it serves may not.
    described = {"served_model": model.name}
    return dataclasses.replace(target, place=model.root, max_model_len=model.max_model_len, described=described)


def _deployment(name: str, what: str, overrides: Sequence[str], key: str | None) -> Target:
    from server.deployment.target import settings_of
    from server.wheels.preparation import prepare_model

    if what.startswith(baselines.UNSCALED):
        deployment = what.removeprefix(baselines.UNSCALED)
        within = baselines.unscaling(settings_of(deployment, None, list(overrides)))
        return dataclasses.replace(_deployment(name, deployment, [*overrides, *within], key), what=what)
    settings = settings_of(what.removeprefix(baselines.STATIC), None, list(overrides))
    described = settings.model_dump(mode="json", exclude={"server", "log_format", "log_requests"}, exclude_unset=True)
    named = settings.model
    settings.model = prepare_model(named)
    trained = settings.scaling.original_max_position_embeddings
    if what.startswith(baselines.STATIC):
        told = baselines.describe_stock(settings) | {"model": named}
        longest = told["stock vLLM"]["max_model_len"]
        return Target(name, what, key, settings.model, longest, trained, told, static=settings)
    arguments = (what, *(part for each in overrides for part in ("--set", each)))
    return Target(name, what, key, settings.model, settings.max_model_len, trained, described, arguments)
