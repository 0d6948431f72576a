"""On NVIDIA GPUs: which backends of vLLM can turn queries, and which settings contradict these backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from posenc_runtime.encodings.far_pages import KEYS_AT_A_TIME
from posenc_runtime.vllm_adapter.contract.errors import Unsupported

if TYPE_CHECKING:
    from vllm.config import VllmConfig

BACKENDS = ("FLASH_ATTN", "TRITON_ATTN")
_NAMES = " or ".join(BACKENDS)
_CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3")


def is_on_cuda() -> bool:
    """Whether this vLLM runs on NVIDIA GPUs."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cuda())


def refuse_on_cuda(vllm_config: VllmConfig, rope_type: str, page: int) -> None:
    """Check an engine on a GPU before it loads a model.

    Args:
        page: tokens.

    Raises:
        Unsupported: when the kernels or vLLM's backends do not allow a setting; the message names it and the reason.
    """
    where = f"on a GPU where scaling.rope_type is {rope_type}"
    refuse_page(page)
    asked, model, cache = vllm_config.attention_config, vllm_config.model_config, vllm_config.cache_config
    if asked.backend is not None and asked.backend.name not in BACKENDS:
        raise Unsupported(
            f"engine.attention_backend must be {_NAMES} {where}, got {asked.backend.name}: no other turns queries"
        )
    if asked.backend_per_kind:
        raise Unsupported(
            f"attention_config.backend_per_kind must be left out {where}, got {asked.backend_per_kind}: set "
            f"engine.attention_backend to {_NAMES}"
        )
    if cache.cache_dtype not in _CACHE_DTYPES:
        raise Unsupported(
            f"engine.kv_cache_dtype must be one of {', '.join(_CACHE_DTYPES)} {where}, got {cache.cache_dtype}: the "
            "kernels read no other cache"
        )
    if model.is_mm_prefix_lm:
        raise Unsupported(
            f"a model whose images see later tokens is not served {where}: the kernels read earlier keys alone. Choose "
            "another rope_type, or auto"
        )
    if model.rswa_window is not None:
        raise Unsupported(
            f"a model with a window of {model.rswa_window} tokens after its prompt is not served {where}: the kernels "
            "read all earlier keys. Choose another rope_type, or auto"
        )


def refuse_page(page: int) -> None:
    """Check that a page suits the kernel. The size of blocks must be known, too.

    Raises:
        Unsupported: when a kernel would read keys of two pages at a time; the message names the page.
    """
    if page % KEYS_AT_A_TIME:
        raise Unsupported(
            f"scaling.page must be a multiple of {KEYS_AT_A_TIME} tokens on a GPU, because a kernel reads as many keys "
            f"at a time, got {page}: set page (of dual_chunk, chunk_size less local_size) to one"
        )


def refuse_other_backends(layers: Mapping[str, Any], rope_type: str) -> None:
    """Check which backend each layer has. vLLM has chosen it itself if the deployment names none.

    Args:
        layers: vLLM's layers that attend, by name.

    Raises:
        Unsupported: when one of them cannot turn queries; the message names the layer and the backend.
    """
    if not is_on_cuda():
        return
    from vllm.model_executor.layers.attention import Attention

    for name, layer in layers.items():
        if isinstance(layer, Attention) and (backend := layer.attn_backend.get_name()) not in BACKENDS:
            raise Unsupported(
                f"scaling.rope_type {rope_type} needs {_NAMES} on a GPU, but vLLM gave {name} {backend}: set "
                "engine.attention_backend to one of the two"
            )
