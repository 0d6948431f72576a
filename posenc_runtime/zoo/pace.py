"""Chooses the number of CPU threads by trial: where other programs use the cores, fewer threads can be faster."""

from __future__ import annotations

import torch

CYCLE = 40
TRIALS = 3


class Pace:
    """Tries one thread and all threads at the start of every cycle of steps, then keeps the faster number.

    Threads wait for each other after every operation, so a thread that shares its core slows down all of them.
    """

    def __init__(self, threads: int) -> None:
        self.choices = sorted({1, threads})
        self.speeds: dict[int, list[float]] = {}
        self.position = 0
        self.threads = threads

    def prepare(self) -> None:
        """Set the number of threads for the next step. Call this before each step."""
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
        """Note the speed of the step that has ended. Call this after each step."""
        self.speeds[self.threads].append(tokens_per_second)
