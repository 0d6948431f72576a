"""Which instructions the attentions that are compared were compiled for."""

from __future__ import annotations

import pathlib

from posenc_runtime.kernels.cpu.build import instructions
from tests.benchmarks.attention_step import Layer
from tests.benchmarks.stock_attention import isa_of

# vLLM brings its kernels once for each of these, and loads what the processor has.
_LIBRARIES = {"_C": "AVX-512 with bfloat16", "_C_AVX512": "AVX-512", "_C_AVX2": "AVX2"}


def kernels_of(layer: Layer) -> dict[str, str]:
    """vLLM's kernel and ours for a layer.

    Raises:
        NoCompiler: when ours cannot be compiled here.
    """
    return {"vLLM": ", ".join([f"its {isa_of(layer)} kernel", *_loaded()]), "ours": instructions()}


def _loaded() -> list[str]:
    """What vLLM's library was compiled for, by its name among the files that this process has mapped."""
    try:
        lines = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    names = {path.name.partition(".")[0] for line in lines if (path := pathlib.Path(line)).parent.name == "vllm"}
    return sorted(_LIBRARIES[name] for name in names & _LIBRARIES.keys())
