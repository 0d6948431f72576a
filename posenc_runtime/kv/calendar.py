"""When a request may outgrow its scale: until that step the scheduler does not have to look at it."""

from __future__ import annotations


class Calendar:
    """Requests by the step at which the scheduler must look at them."""

    def __init__(self) -> None:
        self._now = 0
        self._by_step: dict[int, dict[str, None]] = {}  # the names of a step in the order in which they were noted
        self._step_of: dict[str, int] = {}

    def note(self, request_id: str, num_steps: int) -> None:
        """Look at a request ``num_steps`` steps from now, at least 1, and no longer at the step noted before."""
        self.forget(request_id)
        step = self._now + num_steps
        self._by_step.setdefault(step, {})[request_id] = None
        self._step_of[request_id] = step

    def forget(self, request_id: str) -> None:
        """Do not look at a request any more."""
        step = self._step_of.pop(request_id, None)
        if step is None:
            return
        names = self._by_step[step]
        del names[request_id]
        if not names:
            del self._by_step[step]

    def next_step(self) -> list[str]:
        """A step begins. Returns the requests to look at; each of them is forgotten unless it is noted again."""
        self._now += 1
        names = list(self._by_step.pop(self._now, ()))
        for request_id in names:
            del self._step_of[request_id]
        return names


def steps_until_due(length: int, num_known_tokens: int, *, num_drafted: int = 0) -> int:
    """Steps before a request can have computed ``length`` tokens, at least 1.

    The engine may compute all known tokens of a request in a single step, and drafted tokens behind them. After that
    the request grows by at most one token and the drafted tokens a step.

    Args:
        length: tokens, the length of the request's scale.
        num_known_tokens: tokens that the request has now, with those that the current step computes.
        num_drafted: the most tokens that are drafted for a request in a step.
    """
    return max(1, -(-(length - num_known_tokens + 1) // (1 + num_drafted)))
