"""What a deployment can be combined with: everything else is refused at start-up, by name and with the reason."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import re
from typing import TYPE_CHECKING, Any

from posenc_runtime.vllm_adapter.channel import CONNECTOR

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# A model file that reads the table itself, or uses a fused layer that does, would take the unscaled rows for
# every request, silently.
_READS_TABLE = re.compile(
    r"\.(cos_sin_cache|get_cos_sin)\b|layers\.(fused_qk_norm_rope|hpc\.rope_norm|sparse_attn_indexer)\b"
)
_IMPORTS_MODEL = re.compile(
    r"^from \.(\w+) import|^from (vllm\.model_executor\.models\.\w+|vllm\.models\.[\w.]+) import", re.M
)


class Unsupported(ValueError):
    """The engine's configuration cannot be combined with per-request scales."""


def refuse_unsupported(vllm_config: VllmConfig) -> None:
    """Check an engine's whole configuration.

    Raises:
        Unsupported: naming the setting or the architecture, and the reason.
    """
    _refuse_settings(vllm_config)
    refuse_checkpoint(vllm_config.model_config.hf_text_config, vllm_config.model_config.architectures)


def _refuse_settings(vllm_config: VllmConfig) -> None:
    model, parallel, transfer = vllm_config.model_config, vllm_config.parallel_config, vllm_config.kv_transfer_config
    if transfer is None or transfer.kv_connector != CONNECTOR:
        raise Unsupported(
            f"additional_config.posenc needs kv_transfer_config.kv_connector to be {CONNECTOR}, got "
            f"{transfer.kv_connector if transfer else None}: without it no block is ever given its scale"
        )
    if transfer.kv_role != "kv_both":
        raise Unsupported(
            f"kv_transfer_config.kv_role must be kv_both, got {transfer.kv_role}: with prefill and decode apart, the "
            "two sides would choose a request's scale from different lengths"
        )
    refusals = {
        "encoder-decoder models": model.is_encoder_decoder,
        "multimodal models": model.is_multimodal_model,
        "multi-head latent attention (MLA)": model.use_mla,
        "pooling models": model.runner_type == "pooling",
        "models that run on vLLM's Transformers backend, which rotates by itself": model.using_transformers_backend(),
        "prefill_context_parallel_size above 1": parallel.prefill_context_parallel_size > 1,
        "decode_context_parallel_size above 1": parallel.decode_context_parallel_size > 1,
        "enable_dbo": parallel.enable_dbo,
        "speculative_config": vllm_config.speculative_config is not None,
    }
    for what, asked in refusals.items():
        if asked:
            raise Unsupported(f"posenc does not serve {what}: no test shows that every key gets its request's scale")


def refuse_checkpoint(hf_text_config: Any, architectures: list[str]) -> None:
    """Check what a checkpoint's own configuration says.

    Raises:
        Unsupported: naming the architecture or the rope type, and the reason.
    """
    rope_parameters = getattr(hf_text_config, "rope_parameters", None) or {}
    if not rope_parameters:
        raise Unsupported(
            f"scaling needs a model with rotary embeddings, but the configuration of {', '.join(architectures)} has "
            "no rope_parameters"
        )
    if "rope_type" not in rope_parameters:
        raise Unsupported(
            f"posenc serves models with one rotary embedding, got one for each of {', '.join(sorted(rope_parameters))} "
            "in rope_parameters"
        )
    rope_type = rope_parameters["rope_type"]
    if rope_type != "default":
        raise Unsupported(
            f"posenc scales checkpoints whose own rope_type is default, got {rope_type}: its frequencies are scaled "
            "already"
        )
    for key in ("mrope_section", "use_fope"):
        if rope_parameters.get(key):
            raise Unsupported(
                f"posenc does not scale rope_parameters with {key}: its positions are not one number a token"
            )
    for architecture in architectures:
        if not _has_own_model(architecture):
            raise Unsupported(
                f"posenc does not serve {architecture}: vLLM has no model of its own for it, and its Transformers "
                "backend rotates past the rotary embedding, so every request would run unscaled"
            )
        if reader := _reader_of_the_table(architecture):
            raise Unsupported(
                f"posenc does not serve {architecture}: {reader} of vLLM reads the table of rotations past the rotary "
                "embedding, so every request would run unscaled"
            )


def _has_own_model(architecture: str) -> bool:
    return _module_of(architecture) not in (None, "vllm.model_executor.models.transformers")


def _module_of(architecture: str) -> str | None:
    """The module that defines an architecture; models that others registered may be there as classes."""
    from vllm.model_executor.models.registry import ModelRegistry

    registered = ModelRegistry.models.get(architecture)
    model_class = getattr(registered, "model_cls", None)
    module: str | None = getattr(registered, "module_name", getattr(model_class, "__module__", None))
    return module


@functools.cache
def _reader_of_the_table(architecture: str) -> str | None:
    """Name of the model file, among those that define an architecture, which reads the table itself."""
    module_name = _module_of(architecture)
    pending: list[str] = [module_name] if module_name else []
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        source = pathlib.Path(spec.origin).read_text(encoding="utf-8")
        if _READS_TABLE.search(source):
            return name
        package = name if spec.submodule_search_locations else name.rpartition(".")[0]
        for relative, absolute in _IMPORTS_MODEL.findall(source):
            pending.append(absolute or f"{package}.{relative}")
    return None
