"""The bytes that a request takes in the KV cache of one GPU, by kind of layer, as vLLM lays the cache out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from posenc_runtime.vllm_adapter.checkpoint.model_code.model_rules import caches_latents
from posenc_runtime.vllm_adapter.checkpoint.sizing.layer_kinds import Kept, kept_by_layer, window_of
from posenc_runtime.vllm_adapter.checkpoint.sizing.states import state_bytes
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.releases.arguments import default_memory_share

# By engine.kv_cache_dtype; auto is the model's own.
_BYTES_OF_A_VALUE = {"bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}


@dataclasses.dataclass(frozen=True)
class LayerCache:
    """What some layers, all of one kind, keep of a request, on one GPU.

    Attributes:
        kind: in words.
        layers: how many there are.
        token_bytes: bytes of a token in each of them; 0 where they keep a state.
        most_tokens: tokens of a request that each keeps at most; None for all.
        state_bytes: bytes that each takes for a request of any length.
        arithmetic: how token_bytes come about.
    """

    kind: str
    layers: int
    token_bytes: int = 0
    most_tokens: int | None = None
    state_bytes: int = 0
    arithmetic: str = ""

    def request_bytes(self, tokens: int) -> int:
        """Bytes that they all take for a request of so many tokens."""
        kept = tokens if self.most_tokens is None else min(tokens, self.most_tokens)
        return self.layers * (kept * self.token_bytes + self.state_bytes)


def used_share(engine: Mapping[str, Any]) -> float:
    """The share of a GPU's memory that vLLM uses, by its arguments."""
    return float(engine.get("gpu_memory_utilization", default_memory_share()))


def number_bytes(engine: Mapping[str, Any]) -> int:
    """Bytes of a number of the model, by its arguments; no more than the engine counts."""
    return 4 if engine.get("dtype") in ("float32", "float") else 2


def value_bytes(kv_cache_dtype: str, model_bytes: int) -> int:
    """Bytes of a cached number.

    Args:
        kv_cache_dtype: vLLM's argument.
        model_bytes: bytes of a number of the model.

    Raises:
        Unsupported: when the layout of this data type is not known here.
    """
    if kv_cache_dtype == "auto":
        return model_bytes
    if kv_cache_dtype not in _BYTES_OF_A_VALUE:
        raise Unsupported(
            f"engine.kv_cache_dtype: posenc knows the cache's size for auto, {', '.join(_BYTES_OF_A_VALUE)}, got "
            f"{kv_cache_dtype!r}"
        )
    return _BYTES_OF_A_VALUE[kv_cache_dtype]


def layer_caches(
    text_config: Any, architecture: str, *, model_bytes: int, kv_cache_dtype: str, tensor_parallel_size: int
) -> list[LayerCache]:
    """What the layers of a model keep of a request on one GPU.

    Args:
        architecture: vLLM's name of the model.
        model_bytes: bytes of a number of the model.

    Raises:
        Unsupported: when a kind of layer or a data type is not known here.
    """
    values = value_bytes(kv_cache_dtype, model_bytes)
    found: dict[LayerCache, int] = {}
    for layer, kept in enumerate(kept_by_layer(text_config)):
        of_keys: Iterator[LayerCache] = iter(())
        if kept in (Kept.ALL, Kept.WINDOW, Kept.CHUNK, Kept.ALL_AND_STATE):
            of_keys = _keys(text_config, architecture, layer, kept, values, tensor_parallel_size)
        of_state: Iterator[LayerCache] = iter(())
        if kept in (Kept.STATE, Kept.ALL_AND_STATE):
            size = state_bytes(text_config, architecture, model_bytes, tensor_parallel_size)
            of_state = iter([LayerCache("recurrent state", 1, state_bytes=size)])
        for each in itertools.chain(of_keys, of_state):
            found[each] = found.get(each, 0) + 1
    return [dataclasses.replace(each, layers=number) for each, number in found.items()]


def _keys(
    text_config: Any, architecture: str, layer: int, kept: Kept, values: int, tensor_parallel_size: int
) -> Iterator[LayerCache]:
    if caches_latents(text_config, architecture):
        latent, rotated = int(text_config.kv_lora_rank), int(text_config.qk_rope_head_dim)
        size = (latent + rotated) * values
        yield LayerCache("latents of MLA", 1, size, arithmetic=f"({latent} + {rotated}) * {values}")
        return
    heads, keys, widths_of_values = _heads(text_config, layer, has_window=kept is Kept.WINDOW)
    on_a_gpu = max(1, heads // tensor_parallel_size)  # fewer heads than GPUs: each GPU holds a copy of one
    arithmetic = f"{on_a_gpu} * ({keys} + {widths_of_values}) * {values}"
    size = on_a_gpu * (keys + widths_of_values) * values
    if kept is Kept.WINDOW:
        yield LayerCache("sliding window", 1, size, window_of(text_config), arithmetic=arithmetic)
    elif kept is Kept.CHUNK:
        yield LayerCache("chunked attention", 1, size, int(text_config.attention_chunk_size), arithmetic=arithmetic)
    else:
        yield LayerCache("full attention", 1, size, arithmetic=arithmetic)


def _heads(text_config: Any, layer: int, *, has_window: bool) -> tuple[int, int, int]:
    """KV heads of a layer, and the widths of a key and of a value."""
    if getattr(text_config, "is_heterogeneous", False):  # a configuration for each layer
        text_config = text_config.per_layer_config[layer]

    def first(*names: str) -> int | None:
        return next((int(found) for name in names if (found := getattr(text_config, name, None))), None)

    of_window, of_all = (("swa_",), ()) if has_window else ((), ("global_",))
    prefixes = (*of_window, *of_all, "")
    attention_heads = first("num_attention_heads", "n_head")
    assert attention_heads is not None, "a model without attention heads keeps no keys"
    heads = first(
        *(f"{prefix}num_key_value_heads" for prefix in of_window),
        *(f"num_{prefix}key_value_heads" for prefix in of_all),
        *("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups", "multi_query_group_num"),
    )
    if heads is None:
        heads = 1 if getattr(text_config, "multi_query", False) else attention_heads
    hidden = first("hidden_size", "n_embd")
    keys = first(*(f"{prefix}head_dim" for prefix in prefixes)) or (hidden or 0) // attention_heads
    values = first(*(f"{prefix}v_head_dim" for prefix in prefixes)) or keys
    return heads, keys, values
