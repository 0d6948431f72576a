"""Functions of vLLM that torch compiles at their first call, which would be in the middle of a request.

vLLM decorates small functions with ``torch.compile``, whatever ``enforce_eager`` says. On a CPU the first call of one
compiles C++ for a quarter of a minute, while all requests wait, and without a compiler it ends the engine.

Those of its sampler rank tokens for ``logprobs`` and draw tokens. Run as they are written, they give the same.
Those of models (the norm of Command R, the router of grouped experts) give numbers that differ in their last bits.
They stay compiled, as in stock vLLM, and a server calls them before it takes requests. Where there is no compiler,
stock vLLM does not run these models at all, and we run the functions as they are written.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

_SAMPLER = "vllm.v1"
_MODELS = "vllm.model_executor"
# Of these, only models call functions at every size. What is in other modules is called where tensors are parallel.
_CALLED_BY_MODELS = ("vllm.model_executor.models", "vllm.model_executor.layers.fused_moe")
# torch compiles a function for the first size that it meets, for a size of 1, and then for all others.
_SIZES = (3, 5, 1)


def compile_nothing_while_serving() -> None:
    """Replace functions that torch would compile while requests run; a model's, only if there is no compiler."""
    call_uncompiled(_SAMPLER)
    if not has_compiler():
        call_uncompiled(_MODELS)


def has_compiler() -> bool:
    """Whether torch finds a C++ compiler."""
    from torch._inductor import exc
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except (exc.InvalidCxxCompiler, OSError):  # OSError: CXX names what is no program
        return False
    return True


def call_uncompiled(package: str) -> list[str]:
    """Put the original in the place of each function that ``torch.compile`` has wrapped, in all imported modules.

    Args:
        package: whose modules; those of its subpackages, too.

    Returns:
        The names of the functions, ``module.function``.
    """
    found = _compiled(package)
    for module, name, original in found:
        setattr(module, name, original)
    return sorted(f"{module.__name__}.{name}" for module, name, _ in found)


def compile_functions_of_models(model_runner: Any) -> None:
    """Run a model over a few tokens that nobody asked for, if it calls functions that are compiled at their first call.

    Args:
        model_runner: vLLM's, with its KV cache.
    """
    if any(_compiled(package) for package in _CALLED_BY_MODELS):
        for size in _SIZES:
            model_runner._dummy_run(size)


def _compiled(package: str) -> list[tuple[Any, str, FunctionType]]:
    """Modules, and in each the functions that are compiled when they are called, with their originals."""
    found = []
    for name, module in list(sys.modules.items()):
        if module is None or not f"{name}.".startswith(f"{package}."):
            continue
        for attribute, value in list(vars(module).items()):
            original = getattr(value, "_torchdynamo_orig_callable", None) if isinstance(value, FunctionType) else None
            if original is not None:
                found.append((module, attribute, original))
    return found
