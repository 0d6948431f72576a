"""The GPU that everything is measured on: which it is, and how fast it runs at the moment. It is only looked at."""

from __future__ import annotations

import shutil
import subprocess

import torch

_LEAST_BYTES = 75 * 2**30  # a request of 131,072 tokens, with as many free blocks
_ASKED = {
    "driver": ("driver_version", ""),
    "GPU memory": ("memory.total", "MiB of GPU memory"),
    "SM clock": ("clocks.sm", "MHz"),
    "memory clock": ("clocks.mem", "MHz"),
    "temperature": ("temperature.gpu", "°C"),
    "power": ("power.draw", "W"),
}
FIXED = ("driver", "GPU memory")


def missing() -> str | None:
    """Why nothing can be measured here, or None."""
    if not torch.cuda.is_available():
        return "needs an NVIDIA GPU, and torch finds none"
    if memory_bytes() < _LEAST_BYTES:
        return f"needs {_LEAST_BYTES / 2**30:g} GiB of GPU memory, and the {name()} has {memory_bytes() / 2**30:.0f}"
    return None


def memory_bytes() -> int:
    """All of it; 0 without a GPU."""
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0


def name() -> str:
    return torch.cuda.get_device_name()


def short_name() -> str:
    """As a part of a file's name."""
    return name().removeprefix("NVIDIA ").lower().replace(" ", "-")


def looked_at() -> dict[str, str]:
    """What nvidia-smi says of the first GPU, by the names above; empty where it says nothing."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = ",".join(field for field, _ in _ASKED.values())
    try:
        said = subprocess.run(
            [program, f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return read(said)


def read(said: str) -> dict[str, str]:
    """A line of nvidia-smi's, with units."""
    values = [value.strip() for value in said.split(",")]
    return {name: f"{value} {unit}".strip() for (name, (_, unit)), value in zip(_ASKED.items(), values, strict=False)}
