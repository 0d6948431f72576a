"""How long requests may be that a drafter drafts for, where queries turn.

vLLM ends a drafter at the length of its own checkpoint, which was trained on as few tokens as the model that it drafts
for. Past it, vLLM drafts zeros for every request of the batch. Our rotary embeddings reach the served length in the
drafter, too, and its queries turn as the model's do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc_runtime.vllm_adapter.active import deployment_of
from posenc_runtime.vllm_adapter.refusals.checkpoint import rotates

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def draft_as_long_as_served(vllm_config: VllmConfig) -> None:
    """Let a drafter that rotates draft for requests of every length; the length that a user set for it stays."""
    deployment, drafting = deployment_of(vllm_config), vllm_config.speculative_config
    drafter = getattr(drafting, "draft_model_config", None)
    if deployment is None or not deployment.turns_queries or drafter is None or drafter is vllm_config.model_config:
        return
    if drafting.max_model_len is None and rotates(drafter.hf_text_config, drafter.architectures):
        drafter.max_model_len = vllm_config.model_config.max_model_len
