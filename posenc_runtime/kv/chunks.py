"""How many tokens of a long prompt a step takes, so that short requests beside it do not wait.

A token late in a prompt costs more than one at its beginning: it attends to all tokens before it. vLLM's
``long_prefill_token_threshold`` counts tokens, so a step takes longer and longer while a prompt is read. Here a chunk
costs the same wherever it is, and what all long prompts together cost leaves half of a step to others.
"""

from __future__ import annotations

_SHARE_OF_LONG_PROMPTS = 0.5  # of a step


def even_position(hidden_size: int) -> int:
    """The position at which attention takes as long as all the rest of a token's forward pass.

    A layer of width d has about 12 d^2 weights, so 24 d^2 operations a token; attention over n tokens takes 4 n d:
    scores and their sum, each a multiplication and an addition. They are equal at n = 6 d (Kaplan et al. 2020, arXiv
    2001.08361, section 2.1, which counts the scores alone).

    Args:
        hidden_size: d.
    """
    return 6 * hidden_size


class Chunks:
    """Limits the chunks of prompts in each step.

    A chunk's cost is told in tokens at the beginning of a prompt.

    Args:
        step_tokens: cost of a step at most, but for one token of each request (``max_num_batched_tokens``).
        chunk_tokens: cost of one chunk at most, beside other requests (``long_prefill_token_threshold``).
        even_position: where a token costs twice as much as at the beginning.
    """

    def __init__(self, *, step_tokens: int, chunk_tokens: int, even_position: int) -> None:
        self._step_tokens, self._chunk_tokens, self._even_position = step_tokens, chunk_tokens, even_position
        self._is_alone = True
        self._left = self._left_to_long = 0.0

    def begin_step(self, num_requests: int) -> None:
        """A step is about to be scheduled.

        Args:
            num_requests: that run or wait.
        """
        self._is_alone = num_requests == 1
        self._left = float(self._step_tokens)
        self._left_to_long = self._left if self._is_alone else _SHARE_OF_LONG_PROMPTS * self._left

    def allow(self, *, position: int, num_unread: int, num_tokens: int) -> int:
        """How many of the tokens that vLLM would schedule a request may get in this step; at least 1.

        Args:
            position: of the first of them.
            num_unread: tokens that the request has from there on.
            num_tokens: tokens that vLLM would schedule, above 1.
        """
        cost_of_token = 1 + position / self._even_position
        most = self._left if self._is_alone else min(self._left, self._chunk_tokens)
        is_long = num_unread * cost_of_token > most
        if is_long:
            most = min(most, self._left_to_long)
        allowed = max(1, min(num_tokens, int(most / cost_of_token)))
        self._left -= allowed * cost_of_token
        if is_long:
            self._left_to_long -= allowed * cost_of_token
        return allowed
