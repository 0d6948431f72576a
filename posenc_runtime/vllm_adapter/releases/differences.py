"""What the older of the releases of vLLM that we know do differently from the newest, each difference in one place.

Code asks a difference whether it ``is_here``, and names no version. Whoever drops a release also removes the
differences that none of the other releases has: a test names them. Decision 60.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from posenc_runtime.vllm_adapter.releases.versions import SUPPORTED, as_numbers, installed_version


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that older releases of vLLM do differently from the newest.

    Attributes:
        before: the first release that behaves like the newest.
        what: how the older ones behave, in a sentence.
        seen: finds the difference in vLLM's code itself; only tests and reports call it, because it reads sources.
    """

    before: str
    what: str
    seen: Callable[[], bool]

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions that have the difference, of those that we know."""
        return tuple(version for version in SUPPORTED if as_numbers(version) < as_numbers(self.before))

    @functools.cached_property
    def is_here(self) -> bool:
        """Whether the vLLM in this process has the difference."""
        return installed_version() in self.versions


def _lacks(module: str, path: str, parameter: str = "") -> bool:
    """Whether a module lacks the attribute at ``path``, or the attribute lacks the parameter."""
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    if not hasattr(owner, name):
        return True
    return bool(parameter) and parameter not in inspect.signature(getattr(owner, name)).parameters


def _says(module: str, path: str, pattern: str) -> bool:
    """Whether the source of a class or a function matches the pattern."""
    owner: Any = importlib.import_module(module)
    for name in path.split("."):
        owner = getattr(owner, name)
    return re.search(pattern, inspect.getsource(owner)) is not None


ARGUMENTS_BESIDE_LAUNCHERS = Difference(
    before="0.33.0",
    what="the parser of the arguments of vllm serve is in vllm.entrypoints.launchers",
    seen=lambda: importlib.util.find_spec("vllm.entrypoints.launchers.cli_args") is not None,
)
STREAMS_WITHOUT_PARAMS = Difference(
    before="0.33.0",
    what="chunks of a streamed chat or completion have no kv_transfer_params",
    seen=lambda: (
        "kv_transfer_params"
        not in importlib.import_module(
            "vllm.entrypoints.openai.chat_completion.protocol"
        ).ChatCompletionStreamResponse.model_fields
    ),
)
MESSAGES_MADE_OF_TEXTS = Difference(
    before="0.33.0",
    what="the Anthropic route makes a streamed message from a chat's events (strings), not from its chunks",
    seen=lambda: _lacks(
        "vllm.entrypoints.anthropic.serving", "AnthropicServingMessages.chat_completion_stream_generator_raw"
    ),
)
PREFIX_HITS_WITHOUT_BOUND = Difference(
    before="0.33.0",
    what="the scheduler looks up a cached prefix without a largest length",
    seen=lambda: _lacks(
        "vllm.v1.core.sched.scheduler", "Scheduler._get_local_prefix_cache_hit", "max_cache_hit_length"
    ),
)
ADAPTERS_OF_A_STEP_ALONE = Difference(
    before="0.33.0",
    what="only the adapters of running requests in the present step count towards max_loras",
    seen=lambda: _says("vllm.v1.core.sched.scheduler", "Scheduler.schedule", r"for req in scheduled_running_reqs\s+if"),
)
OUTPUTS_AHEAD_APART = Difference(
    before="0.33.0",
    what="the asynchronous scheduler processes outputs in a method of its own",
    seen=lambda: (
        "_update_request_with_output"
        in vars(importlib.import_module("vllm.v1.core.sched.async_scheduler").AsyncScheduler)
    ),
)
NO_FETCH_STAGES = Difference(
    before="0.32.0",
    what="the scheduler does not record how far the transfer of a request's keys has come",
    seen=lambda: _lacks("vllm.v1.core.sched.scheduler", "Scheduler._set_kv_fetch_stage"),
)

PAUSES_ADMIT_NOBODY = Difference(
    before="0.32.0",
    what="while no new requests are admitted, preempted requests are not resumed either",
    seen=lambda: _says(
        "vllm.v1.core.sched.scheduler", "Scheduler.schedule", r"_pause_state == PauseState\.UNPAUSED:\s+step_skipped"
    ),
)
CORS_OPEN_BY_DEFAULT = Difference(
    before="0.32.0",
    what="pages of every origin may read answers unless origins are named",
    seen=lambda: cli_args().FrontendArgs().allowed_origins == ["*"],
)

DIFFERENCES: dict[str, Difference] = {
    name: value for name, value in list(globals().items()) if isinstance(value, Difference)
}


def cli_args() -> ModuleType:
    """The module with the parser of serve's arguments, what checks them, and ``FrontendArgs``."""
    where = "launchers" if ARGUMENTS_BESIDE_LAUNCHERS.is_here else "common"
    return importlib.import_module(f"vllm.entrypoints.{where}.cli_args")
