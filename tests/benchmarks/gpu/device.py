"""The GPU that everything is measured on: which it is, and how fast it runs at the moment. It is only looked at."""

from __future__ import annotations

import shutil
import subprocess

import torch

_DEVICE = "H200"  # whose bandwidth the targets are counted for
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
    if _DEVICE not in name():
        return f"needs an NVIDIA {_DEVICE}, for which the targets are, and torch finds an {name()}"
    return None


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
