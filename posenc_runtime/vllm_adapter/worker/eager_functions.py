"""Functions of vLLM that torch compiles at their first call, which would be in the middle of a request.

vLLM decorates a few small functions of its sampler with ``torch.compile``, whatever ``enforce_eager`` says: one ranks
tokens for ``logprobs``, one draws tokens. On a CPU the first request that needs one compiles C++ for a quarter of a
minute, while all others wait, and without a compiler it ends the engine. Run as they are written, they give the same.
"""

from __future__ import annotations

import sys
from types import FunctionType


def call_uncompiled(package: str = "vllm.v1") -> list[str]:
    """Put the original in the place of each function that ``torch.compile`` has wrapped, in all imported modules.

    Functions of models and their layers (the norm of Command R) stay compiled: they are numbers of the model, and an
    unscaled request has stock vLLM's.

    Args:
        package: whose modules; those of its subpackages, too.

    Returns:
        The names of the functions, ``module.function``.
    """
    found = []
    for name, module in list(sys.modules.items()):
        if module is None or not f"{name}.".startswith(f"{package}."):
            continue
        for attribute, value in list(vars(module).items()):
            original = getattr(value, "_torchdynamo_orig_callable", None) if isinstance(value, FunctionType) else None
            if original is not None:
                setattr(module, attribute, original)
                found.append(f"{name}.{attribute}")
    return sorted(found)
