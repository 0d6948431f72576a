"""The bytes of a recurrent layer's state, by the shapes that vLLM's model says it has."""

from __future__ import annotations

import math
import types
from typing import Any

import torch

from posenc_runtime.vllm_adapter.contract.errors import Unsupported

_DTYPES = {2: torch.bfloat16, 4: torch.float32}
# The keys with which configurations say in which data type their states are kept.
_KEYS = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")


def state_bytes(text_config: Any, architecture: str, model_bytes: int, tensor_parallel_size: int) -> int:
    """Bytes of the state that each recurrent layer keeps for a request, on one GPU.

    Args:
        architecture: vLLM's name of the model.
        model_bytes: bytes of a number of the model.

    Raises:
        Unsupported: when vLLM's model does not say from its configuration alone which state it has.
    """
    from vllm.model_executor.models import ModelRegistry

    dtype = next((str(found) for key in _KEYS if (found := getattr(text_config, key, None))), "auto")
    # What the models look at of vLLM's configuration.
    configuration = types.SimpleNamespace(
        model_config=types.SimpleNamespace(
            hf_config=text_config, hf_text_config=text_config, dtype=_DTYPES[model_bytes]
        ),
        cache_config=types.SimpleNamespace(mamba_cache_dtype="auto", mamba_ssm_cache_dtype=dtype, use_replayssm=False),
        parallel_config=types.SimpleNamespace(tensor_parallel_size=tensor_parallel_size),
        speculative_config=None,
        num_speculative_tokens=0,
    )
    try:
        model = ModelRegistry.models[architecture].load_model_cls()
        shapes = model.get_mamba_state_shape_from_config(configuration)
        dtypes = model.get_mamba_state_dtype_from_config(configuration)
    except (KeyError, AttributeError, ImportError) as error:
        raise Unsupported(
            f"model: {architecture} has recurrent layers, and their state is not known without an engine "
            f"({type(error).__name__}: {error}): start the server, whose log says how many tokens its cache holds"
        ) from None
    sizes = zip(shapes, dtypes, strict=True)
    return sum(math.prod(shape) * torch.empty((), dtype=each).element_size() for shape, each in sizes)
