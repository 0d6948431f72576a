"""How long requests may be that a drafter drafts for, where queries turn.

vLLM ends a drafter at the length of its own checkpoint, which was trained on as few tokens as the model that it drafts
for. Past it, vLLM drafts zeros for every request of the batch. Our rotary embeddings reach the served length in the
drafter, too, and its queries turn as the model's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.active import turning_deployment_of
from posenc_runtime.vllm_adapter.refusals.checkpoint import rotates

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def draft_as_long_as_served(vllm_config: VllmConfig) -> None:
    """Let a drafter that rotates draft for requests of every length; the length that a user set for it stays."""
    drafting = vllm_config.speculative_config
    drafter = getattr(drafting, "draft_model_config", None)
    if drafter is None or drafter is vllm_config.model_config or turning_deployment_of(vllm_config) is None:
        return
    if drafting.max_model_len is None and rotates(drafter.hf_text_config, drafter.architectures):
        drafter.max_model_len = vllm_config.model_config.max_model_len
