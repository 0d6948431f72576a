"""Counts, for people who wait for a first token, how many tokens of their prompts are computed."""

from __future__ import annotations

from collections.abc import Iterable

COMPUTED, WAITING = "computed", "waiting"


class Prefills:
    """Prompts from their arrival until their last token is scheduled, each with its tokens in the KV cache."""

    def __init__(self) -> None:
        self._prompts: dict[str, int] = {}
        self._computed: dict[str, int] = {}
        self._reported = (0, 0)

    def arrived(self, request_id: str, num_prompt_tokens: int) -> None:
        """A prompt waits to be read."""
        self._prompts[request_id], self._computed[request_id] = num_prompt_tokens, 0

    def __bool__(self) -> bool:
        return bool(self._prompts)

    def scheduled(self, progress: Iterable[tuple[str, int]]) -> None:
        """A step was planned. Requests that read no prompt are left alone.

        Args:
            progress: requests, and how many of their tokens are in the cache after that step.
        """
        for request_id, num_tokens in progress:
            length = self._prompts.get(request_id)
            if length is None:
                continue
            if num_tokens < length:
                self._computed[request_id] = num_tokens
            else:
                self.ended(request_id)

    def preempted(self, request_id: str) -> None:
        """A request lost its blocks: its prompt is read from its beginning, or from a prefix that is still cached."""
        if request_id in self._prompts:
            self._computed[request_id] = 0

    def ended(self, request_id: str) -> None:
        """A prompt is read, or nobody wants it any more."""
        if self._prompts.pop(request_id, None) is not None:
            del self._computed[request_id]

    def take_report(self) -> dict[str, int]:
        """Prompt tokens that are computed, and that wait; empty where neither changed since the last call."""
        computed = sum(self._computed.values())
        report = (computed, sum(self._prompts.values()) - computed)
        if report == self._reported:
            return {}
        self._reported = report
        return {COMPUTED: report[0], WAITING: report[1]}
