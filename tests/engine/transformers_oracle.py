"""What transformers says to the same tokens, with static rope parameters that match one scale."""

from __future__ import annotations

import pathlib

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.engine.greedy import Said, greedy


def rope_parameters(
    rope_type: str, scale: int, *, rope_theta: float, rotary_dim: int, original_max_position_embeddings: int
) -> dict[str, object]:
    """Transformers' own static parameters for one scale of a method."""
    if scale == 1 or rope_type == "proportional":  # whose pairs that stand still are the caller's
        return {"rope_type": "default", "rope_theta": rope_theta}
    if rope_type == "linear":
        return {"rope_type": "linear", "rope_theta": rope_theta, "factor": float(scale)}
    if rope_type == "yarn":
        return {
            "rope_type": "yarn",
            "rope_theta": rope_theta,
            "factor": float(scale),
            "original_max_position_embeddings": original_max_position_embeddings,
        }
    if rope_type in ("ntk", "dynamic"):
        # transformers' "dynamic" follows the length of the batch; at one length it is plain RoPE with this base
        return {"rope_type": "default", "rope_theta": rope_theta * scale ** (rotary_dim / (rotary_dim - 2))}
    raise AssertionError(rope_type)


class Oracle:
    """Teacher-forced logprobs of a checkpoint at one scale."""

    def __init__(self, model: pathlib.Path, rope_type: str, scale: int) -> None:
        config = AutoConfig.from_pretrained(model)
        head_dim = config.hidden_size // config.num_attention_heads if config.head_dim is None else config.head_dim
        partial = config.rope_parameters.get("partial_rotary_factor", 1.0)
        parameters = rope_parameters(
            rope_type,
            scale,
            rope_theta=config.rope_parameters["rope_theta"],
            rotary_dim=int(head_dim * partial),
            original_max_position_embeddings=config.max_position_embeddings,
        )
        config.rope_parameters = parameters | ({"partial_rotary_factor": partial} if partial != 1.0 else {})
        config.max_position_embeddings *= scale
        self._model = AutoModelForCausalLM.from_pretrained(
            model, config=config, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.no_grad()
    def beams(self, prompt: list[int], width: int, num_tokens: int) -> list[list[int]]:
        """The likeliest answers that a search of so many beams finds, the best first; no token ends one."""
        found, sums = torch.tensor([prompt]), torch.zeros(1)
        for _ in range(num_tokens):
            logprobs = self._model(found).logits[:, -1].float().log_softmax(-1)
            sums, best = (sums[:, None] + logprobs).flatten().topk(width)
            parents, tokens = best // logprobs.shape[-1], best % logprobs.shape[-1]
            found = torch.cat([found[parents], tokens[:, None]], dim=1)
        return [beam[len(prompt) :].tolist() for beam in found]

    @torch.no_grad()
    def score(self, prompt: list[int], token_ids: list[int]) -> Said:
        """The greedy choice at every step of an answer, and the logprob of the token that was chosen."""
        logits = self._model(torch.tensor([prompt + token_ids])).logits[0].float()
        return greedy(logits.log_softmax(-1)[len(prompt) - 1 : -1], token_ids)
