"""In which step may a request outgrow its scale? Until then nobody has to look at it."""

from __future__ import annotations


class Calendar:
    """Requests by the step at which they are to be looked at."""

    def __init__(self) -> None:
        self._now = 0
        self._by_step: dict[int, dict[str, None]] = {}  # the names of a step in the order in which they were noted
        self._step_of: dict[str, int] = {}

    def note(self, request_id: str, num_steps: int) -> None:
        """Look at a request in so many steps, at least one, and at no other time."""
        self.forget(request_id)
        step = self._now + num_steps
        self._by_step.setdefault(step, {})[request_id] = None
        self._step_of[request_id] = step

    def forget(self, request_id: str) -> None:
        """A request is of no interest any more."""
        step = self._step_of.pop(request_id, None)
        if step is None:
            return
        names = self._by_step[step]
        del names[request_id]
        if not names:
            del self._by_step[step]

    def next_step(self) -> list[str]:
        """A step begins. Returns who is to be looked at; whoever is not noted again is forgotten."""
        self._now += 1
        names = list(self._by_step.pop(self._now, ()))
        for request_id in names:
            del self._step_of[request_id]
        return names


def steps_until_due(length: int, num_known_tokens: int) -> int:
    """Steps before a request can have computed so many tokens, at least 1.

    What is known of a request may be computed in a single step; after that it becomes longer by one token a step.

    Args:
        length: tokens, the length of its scale.
        num_known_tokens: its tokens that are there, or are being computed now.
    """
    return max(1, length - num_known_tokens + 1)
