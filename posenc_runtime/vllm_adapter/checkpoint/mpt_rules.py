"""Which MPT checkpoints are served: rules for their configuration, which is read without loading a model."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from posenc_runtime.vllm_adapter.contract.errors import Unsupported

# Keys of ``attn_config``, with allowed values. Keys that only matter in training (attn_uses_sequence_id) or choose a
# kernel (attn_impl) are not checked.
_ATTENTION: dict[str, tuple[Collection[Any], str]] = {
    "attn_type": (("multihead_attention",), "only multi-head attention is implemented"),
    "alibi": ((True,), "learned positions and rotary embeddings of MPT are not implemented"),
    "rope": ((None, False), "rotary embeddings of MPT are not implemented"),
    "prefix_lm": ((None, False), "only causal attention is implemented"),
    "qk_ln": ((None, False), "norms of queries and keys are not implemented"),
    "qk_gn": ((None, False), "norms of queries and keys are not implemented"),
    "sliding_window_size": ((None, -1), "windows of MPT are not implemented"),
    "attn_logit_softcapping": ((None,), "capped scores are not implemented"),
}
_MODEL: dict[str, tuple[Collection[Any], str]] = {
    "norm_type": (("layernorm", "low_precision_layernorm"), "other norms are not implemented"),
    "ffn_config": ((None, {"ffn_type": "mptmlp"}), "other feed-forward layers are not implemented"),
    "block_overrides": ((None,), "all layers must be alike"),
    "final_logit_softcapping": ((None,), "capped logits are not implemented"),
}


def refuse(config: Any) -> None:
    """Check a checkpoint's configuration, as transformers' ``MptConfig`` reads it.

    Keys that transformers does not know are llm-foundry's (llmfoundry/models/mpt/configuration_mpt.py).

    Raises:
        Unsupported: naming the key, its value, what it must be, and why.
    """
    if isinstance(config.attn_config, dict):
        raise Unsupported(
            "engine.trust_remote_code must be left out for MPT, got true: it loads the checkpoint's own configuration "
            "class, but vLLM needs that of transformers"
        )
    for where, settings, rules in (("attn_config.", config.attn_config, _ATTENTION), ("", config, _MODEL)):
        for key, (accepted, reason) in rules.items():
            value = getattr(settings, key, None)
            if value not in accepted:
                raise Unsupported(
                    f"posenc serves MPT with {where}{key} {' or '.join(map(str, accepted))}, got {value!r}: {reason}"
                )
    if config.d_model % config.n_heads:
        raise Unsupported(f"d_model must be a multiple of n_heads {config.n_heads}, got {config.d_model}")
    logit_scale(config)


def logit_scale(config: Any) -> float:
    """The factor of the logits.

    Raises:
        Unsupported: when ``logit_scale`` is a word that llm-foundry does not know.
    """
    scale = config.logit_scale
    if scale is None:
        return 1.0
    if scale == "inv_sqrt_d_model":
        return float(config.d_model**-0.5)
    if isinstance(scale, str):
        raise Unsupported(f"logit_scale must be a number, null or 'inv_sqrt_d_model', got {scale!r}")
    return float(scale)
