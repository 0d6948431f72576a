"""A request of a model engine, and what has to become of it whatever else the engine is doing."""

from __future__ import annotations

import dataclasses
from typing import Any

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.moves import BlockMove
from tests.kv.model_groups import ONE, Groups


class Broken(AssertionError):
    """A law does not hold."""


def smallest_scale(deployment: Deployment, num_tokens: int) -> int:
    """Index of the smallest scale that covers so many tokens; the largest is as long as the engine serves."""
    lengths = [int(scale * deployment.original_max_position_embeddings) for scale in deployment.scales]
    return next((index for index, length in enumerate(lengths) if num_tokens <= length), len(lengths) - 1)


@dataclasses.dataclass(eq=False, kw_only=True)
class Turning:
    """A request's keys on their way from one scale to another.

    Attributes:
        at: number of its tokens whose keys are there, or will be.
        reuses_from: None for a crossing; otherwise position of the first token whose key is copied from a prefix that
            somebody left at another scale.
        left: by target, the moves that the workers have not made yet.
    """

    request: Request
    at: int
    from_index: int
    to_index: int
    left: dict[int, BlockMove]
    reuses_from: int | None = None

    def holds(self, block_id: int) -> int:
        """Where the keys lie that will be in a block in the end."""
        return self.left[block_id].source if block_id in self.left else block_id

    def carried_by(self, block_id: int) -> int:
        """The scale of what will be in a block in the end, as it is now."""
        return self.from_index if block_id in self.left else self.to_index

    @property
    def unread(self) -> list[int]:
        """Blocks that are still to be copied."""
        return [move.source for move in self.left.values() if move.source != move.target]


class Request:
    """A request.

    Attributes:
        first: scale at which it begins, and begins again after a preemption.
        num_settled: tokens whose keys it had when the step began.
        tables: its blocks in each KV cache group.
        num_named: for each group, full blocks that the prefix cache knows.
        lost: blocks that have left a window since it ran or crossed, which the ledger counts among its own.
        num_in_flight: steps whose tokens have not arrived yet.
        turning: the crossing that is not through yet.
        crossings: those that happened, in the form of the response.
        copied: positions whose keys are copies, and the scale that they were computed at.
        reused: prefixes that were copied, in the form of the response.
    """

    def __init__(
        self,
        deployment: Deployment,
        request_id: str,
        prompt: list[int],
        max_tokens: int,
        asked: str | None,
        block_size: int,
        groups: Groups = ONE,
    ) -> None:
        self.groups = groups
        self.block_size = block_size
        self.request_id = request_id
        self.tokens = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.longest = min(len(prompt) + max_tokens, deployment.max_model_len)
        self.on_crossing = (asked or deployment.on_crossing) if len(deployment.scales) > 1 else "pin"
        headroom = len(prompt) + deployment.headroom_tokens
        self.admission_tokens = self.longest if self.on_crossing == "pin" else min(self.longest, headroom)
        self.first = smallest_scale(deployment, self.admission_tokens)
        self.salt: str | None = None
        self.has_run = False
        self.said_at: list[int] = []  # the scale at which each token of its answer was computed
        self.num_in_flight = 0
        self.turning: Turning | None = None
        self.crossings: list[dict[str, Any]] = []
        self.reused: list[dict[str, Any]] = []
        self.refused = False
        self._deployment = deployment
        self.forget()

    def forget(self) -> None:
        """It lost its blocks."""
        self.tables: list[list[int]] = [[] for _ in self.groups]
        self.num_named = [0 for _ in self.groups]
        self.lost: set[int] = set()
        self.turning = None
        self.copied: dict[int, int] = {}
        self.num_computed = self.num_settled = 0

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def has_blocks(self) -> bool:
        return any(self.tables)

    @property
    def blocks(self) -> list[int]:
        """All blocks of its tables; a block that has left a window is none of them."""
        return [block_id for table in self.tables for block_id in table if block_id]

    @property
    def lies_in(self) -> list[list[int]]:
        """For each group, the blocks with its keys. While it crosses, some are not those of its table yet."""
        turning = self.turning
        return self.tables if turning is None else [list(map(turning.holds, table)) for table in self.tables]

    @property
    def scaled_blocks(self) -> set[int]:
        """The blocks with keys of its that are scaled."""
        tables = zip(self.groups, self.lies_in, strict=True)
        return {block_id for group, table in tables if group.scaled for block_id in table if block_id}

    @property
    def in_ledger(self) -> set[int]:
        """The blocks that the ledger knows of while a request waits for copies: those that are made."""
        indices = {position // self.block_size for position in self.copied}
        scaled = [table for group, table in zip(self.groups, self.tables, strict=True) if group.scaled]
        left = self.turning.left if self.turning else {}
        return {table[index] for table in scaled for index in indices if table[index] and table[index] not in left}

    def scale_at(self, position: int) -> int:
        """The scale at which a token has to be computed."""
        if self.on_crossing == "rerotate":
            return max(self.first, smallest_scale(self._deployment, position + 1))
        return self.first

    def crosses(self, at: int, from_index: int, to_index: int) -> bool:
        """It goes on at another scale. Returns whether it has never been there, and so does not replay."""
        self.turning = None
        if self.crossings and self.crossings[-1]["at"] >= at:
            return False
        scales = self._deployment.scales
        crossing = {"at": at, "from": scales[from_index], "to": scales[to_index], "how": self.on_crossing}
        self.crossings.append(crossing)
        return True

    def reuses(self, turning: Turning) -> None:
        """It has its copies."""
        assert turning.reuses_from is not None
        self.turning = None
        num_tokens = turning.at - turning.reuses_from
        scales = self._deployment.scales
        self.reused.append({"tokens": num_tokens, "from": scales[turning.from_index], "to": scales[turning.to_index]})

    @property
    def response(self) -> dict[str, Any]:
        said = {"prefixes_reused": self.reused} if self.reused and self.has_run else {}
        return said | {
            "rope_type": self._deployment.rope_type,
            "scale": self.crossings[-1]["to"] if self.crossings else self._deployment.scales[self.first],
            "admission_tokens": self.admission_tokens,
            "crossings": self.crossings,
        }
