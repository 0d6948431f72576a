"""GPUs by name, with the memory that nvidia-smi shows as their total."""

from __future__ import annotations

import re

from posenc_runtime.vllm_adapter.settings.section import SettingRefused

MIB, GIB = 2**20, 2**30

# MiB.
_MEMORY = {
    "t4": 15360,
    "a10g": 23028,
    "l4": 23034,
    "rtx-4090": 24564,
    "rtx-5090": 32607,
    "a100-40gb": 40960,
    "l40s": 46068,
    "h100": 81559,
    "a100-80gb": 81920,
    "h20": 97871,
    "h200": 143771,
    "b200": 183359,
}
_UNITS = {"MiB": MIB, "GiB": GIB, "GB": 10**9}


def names() -> list[str]:
    """The names that are known, by their memory."""
    return list(_MEMORY)


def memory_of(gpu: str) -> int:
    """Bytes of a GPU's memory.

    Args:
        gpu: its name, or its memory as a number with a unit: ``96GiB``.

    Raises:
        SettingRefused: when it is neither.
    """
    if (known := _MEMORY.get(gpu.lower())) is not None:
        return known * MIB
    if (written := bytes_of(gpu)) is None:
        raise SettingRefused(f"--gpu: must be one of {', '.join(_MEMORY)}, or its memory such as 96GiB, got {gpu!r}")
    return written


def bytes_of(text: str) -> int | None:
    """Bytes of a number with a unit, MiB, GiB or GB; None for any other text, and for nothing at all."""
    written = re.fullmatch(r"(\d+(?:\.\d+)?)(MiB|GiB|GB)", text)
    return int(float(written[1]) * _UNITS[written[2]]) or None if written else None
