"""Which kinds of KV caches can be served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)

from posenc_runtime.vllm_adapter.contract.cache_layers import layer_specs
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.refusals.moving_requests import refuse_reused_states

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from posenc_runtime.kv.deployment import Deployment

_TURNED = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec)
# Layers whose block tables are not simply the blocks of a request's positions.
_NOT_TURNED = (SinkFullAttentionSpec, RSWASpec)


def refuse_cache_groups(deployment: Deployment, kv_cache_config: KVCacheConfig) -> None:
    """Check how the layers' keys or states are cached.

    Raises:
        Unsupported: when a layer has another kind of cache than those that we know, or one that the deployment's
            ``on_crossing`` or ``prefix_reuse`` cannot be combined with; the message names the layer and the kind.
    """
    for group in kv_cache_config.kv_cache_groups:
        for layer, spec in layer_specs(group).items():
            kind = type(spec)
            if kind not in (*_TURNED, *_NOT_TURNED, MambaSpec):
                raise Unsupported(
                    "posenc serves layers with full attention, sliding windows, chunks, latents (MLA) or recurrent "
                    f"states, but {layer} has a {kind.__name__}"
                )
            if deployment.rerotates and kind in _NOT_TURNED:
                raise Unsupported(
                    f"re-rotation needs blocks that hold a request's tokens in their order, but {layer} has a "
                    f"{kind.__name__}: set on_crossing to recompute or pin, and prefix_reuse to exact"
                )
            if kind is MambaSpec:
                refuse_reused_states(deployment)
