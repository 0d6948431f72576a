"""What a greedy answer must say, by an oracle's logprobs of it."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.tolerance import LOGPROB_FLOAT32

Said = tuple[list[int], list[float]]


def alike(one: Said, other: Said, tolerance: float = LOGPROB_FLOAT32) -> bool:
    """Whether two greedy answers are the same up to where two tokens are as likely as each other, if they ever are.

    Behind such a place they continue different texts.

    Args:
        tolerance: of logprobs.
    """
    for token, logprob, other_token, other_logprob in zip(*one, *other, strict=True):
        if abs(logprob - other_logprob) > tolerance:
            return False
        if token != other_token:
            return True
    return True


def greedy(logprobs: Tensor, token_ids: list[int]) -> Said:
    """The greedy choice at every step of an answer, and the logprob of the token that was chosen.

    Between tokens that are as likely as each other the order of sums decides: any of them is the greedy choice.

    Args:
        logprobs: ``[len(token_ids), vocab_size]``, of what comes at each step, given all that was chosen before.
    """
    chosen = torch.tensor(token_ids)
    said = logprobs.gather(1, chosen[:, None])[:, 0]
    likeliest = logprobs.max(-1)
    choices = chosen.where(said > likeliest.values - LOGPROB_FLOAT32, likeliest.indices)
    return choices.tolist(), said.tolist()
