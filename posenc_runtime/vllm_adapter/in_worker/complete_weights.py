"""Refuses a model if loading left some of its weights unset. vLLM would compute with whatever the memory held.

vLLM's own check (``DefaultModelLoader.track_weights_loading``) leaves out the modules that most weights are in: of an
unquantised model, all linear layers, embeddings and experts. It also counts a parameter as loaded when one of several
tensors that make it was: a layer without its ``k_proj`` still sets a part of ``qkv_proj``. We fill the parameters of
these modules with one NaN that no checkpoint has, and look for this NaN after loading.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from posenc_runtime.vllm_adapter.contract.errors import Refused
from posenc_runtime.vllm_adapter.refusals.drafters import is_drafter

Load = Callable[[Any, nn.Module, Any], None]

# The bits of a NaN for each data type of weights. Arithmetic makes NaNs with other bits.
_UNSET = {torch.float32: 0x7FE5A5A5, torch.float16: 0x7FA5, torch.bfloat16: 0x7FE5}
_BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
_METHODS = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, UnquantizedFusedMoEMethod)
_NUM_NAMED = 3


class WeightsRefused(Refused):
    """A checkpoint lacks weights of the model that its configuration describes."""


@functools.cache
def require_complete_weights() -> None:
    """Make vLLM's loader of checkpoints refuse those that lack weights, in this process."""
    DefaultModelLoader.load_weights = completely(DefaultModelLoader.load_weights)


def completely(load: Load) -> Load:
    """vLLM's ``DefaultModelLoader.load_weights`` with the check.

    ``model_loader_extra_config: {enable_weights_track: false}``, which turns vLLM's own check off, turns it off, too.

    Returns:
        A function that raises WeightsRefused as ``refuse_unset`` does.
    """

    @functools.wraps(load)
    def load_weights(self: Any, model: nn.Module, model_config: Any) -> None:
        # A drafter may get its embeddings and its head from the model after it was loaded, and changes no answer.
        is_checked = getattr(self, "enable_weights_track", None) is not False and not is_drafter(model_config)
        if is_checked:
            unset(model)
        load(self, model, model_config)
        if is_checked:
            refuse_unset(model)

    return load_weights


def unset(model: nn.Module) -> None:
    """Fill the parameters that vLLM does not check with a NaN that marks them as not loaded."""
    for _, _, parameter in _unchecked(model):
        parameter.data.view(_BITS[parameter.dtype]).fill_(_UNSET[parameter.dtype])


def refuse_unset(model: nn.Module) -> None:
    """Check that loading set every element which ``unset`` has filled.

    Experts can be larger in memory than in a checkpoint. What only pads them becomes zero.

    Raises:
        WeightsRefused: naming parameters with elements that are not set.
    """
    missing = []
    for name, module, parameter in _unchecked(model):
        if not parameter.data.aminmax().min.isnan():
            continue
        left = parameter.data.view(_BITS[parameter.dtype]) == _UNSET[parameter.dtype]
        if isinstance(module.quant_method, UnquantizedFusedMoEMethod) and not _lacks_an_expert(left, name):
            parameter.data.masked_fill_(left, 0)
        elif left.any():
            missing.append(_told(name, left))
    if missing:
        more = f", and {len(missing) - _NUM_NAMED} more" if len(missing) > _NUM_NAMED else ""
        raise WeightsRefused(
            "model: the checkpoint must have all weights that its configuration asks for, but it lacks "
            f"{'; '.join(missing[:_NUM_NAMED])}{more}: download it again, or mend its config.json"
        )


def _unchecked(model: nn.Module) -> Iterator[tuple[str, Any, nn.Parameter]]:
    """Parameters of modules that vLLM's check leaves out, with their names and modules; a shared one comes once."""
    for name, parameter in model.named_parameters():
        module = model.get_submodule(name.rpartition(".")[0])
        is_unchecked = isinstance(getattr(module, "quant_method", None), _METHODS)
        if is_unchecked and parameter.dtype in _BITS and parameter.numel() and not parameter.is_meta:
            yield name, module, parameter


def _lacks_an_expert(left: Tensor, name: str) -> bool:
    """Whether no element of some expert's matrix is set. ``left`` is ``(num_experts, rows, ...)``."""
    matrices = left.chunk(2, dim=1) if ".w13_" in name else (left,)  # gate and up, one above the other
    return any(bool(matrix.flatten(1).all(dim=1).any()) for matrix in matrices)


def _told(name: str, left: Tensor) -> str:
    if left.all():
        return name
    rows = left.flatten(1).any(dim=1) if left.dim() > 1 else left
    numbers = rows.nonzero().flatten().tolist()
    ranges = [
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(numbers), lambda each: each[1] - each[0])
    ]
    told = ", ".join(f"{run[0]} to {run[-1]}" for run in ranges[:_NUM_NAMED])
    return f"{name} ({'rows' if left.dim() < 3 else 'experts'} {told} of {len(rows)})"
