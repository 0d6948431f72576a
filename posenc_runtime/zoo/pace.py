"""The number of CPU threads, chosen by trial: on cores that other programs use, fewer threads can be faster."""

from __future__ import annotations

import torch

CYCLE = 40
TRIALS = 3


class Pace:
    """Tries one thread and all threads at the start of every cycle of steps, then keeps the faster.

    Threads wait for each other after every operation, so one that shares its core slows all of them down.
    """

    def __init__(self, threads: int) -> None:
        self.choices = sorted({1, threads})
        self.speeds: dict[int, list[float]] = {}
        self.position = 0
        self.threads = threads

    def prepare(self) -> None:
        """Called before a step: sets the threads it runs with."""
        trial, place = divmod(self.position, TRIALS)
        if self.position == 0:
            self.speeds = {choice: [] for choice in self.choices}
        if trial < len(self.choices):
            self.threads = self.choices[trial]
        elif trial == len(self.choices) and place == 0:
            self.threads = max(self.choices, key=lambda choice: sum(self.speeds[choice]))
        torch.set_num_threads(self.threads)
        self.position = (self.position + 1) % CYCLE

    def measured(self, tokens_per_second: float) -> None:
        """Called after a step with its speed."""
        self.speeds[self.threads].append(tokens_per_second)
