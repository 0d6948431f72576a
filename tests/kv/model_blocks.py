"""The physical blocks of a model engine: who uses them, what the prefix cache calls them, and what lies in them."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from posenc_runtime.kv.crossing import Rotation
from posenc_runtime.kv.moves import BlockMove
from posenc_runtime.kv.step_plan import StepPlan
from tests.kv.model_groups import Groups
from tests.kv.model_request import Broken, Request, Turning

# Of a block in the prefix cache: its KV cache group, its salt, and all tokens up to its end.
Name = tuple[int, str | None, tuple[int, ...]]
NULL_BLOCK = 0
UNSCALED = 0  # the angle of every key that is rotated alike at every scale

# Angle per position at each scale. Whoever turns a key twice, too late or from the wrong scale gets none of them.
SPEEDS = (1, 10**4, 10**8)


class Pool:
    """Who uses which block. Free ones are reused in vLLM's order: those without a name, then the longest unused."""

    def __init__(self, num_blocks: int) -> None:
        self.free = deque(range(1, num_blocks + 1))  # 0 is vLLM's null block
        self.num_users: Counter[int] = Counter()
        self.names: dict[int, Name] = {}
        self._named: dict[Name, list[int]] = {}

    def take(self, count: int) -> list[int]:
        taken = [self.free.popleft() for _ in range(count)]
        self.evict(taken)
        self.num_users.update(taken)
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            if not self.num_users[block_id]:
                self.free.remove(block_id)
            self.num_users[block_id] += 1

    def give_back(self, block_ids: Iterable[int]) -> None:
        nameless = []
        for block_id in block_ids:
            self.num_users[block_id] -= 1
            if not self.num_users[block_id]:
                (self.free if block_id in self.names else nameless).append(block_id)
        self.free.extendleft(reversed(nameless))

    def call(self, block_id: int, name: Name) -> None:
        self.names[block_id] = name
        self._named.setdefault(name, []).append(block_id)

    def find(self, name: Name) -> int | None:
        return next(iter(self._named.get(name, ())), None)

    def evict(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            if name := self.names.pop(block_id, None):
                self._named[name].remove(block_id)


@dataclasses.dataclass(frozen=True)
class Key:
    """What lies in a slot: a key, turned by an angle, and what was computed to get it."""

    content: int
    position: int
    angle: int

    @property
    def scale(self) -> int | None:
        """The scale at which it can be read now, None if at none."""
        angles = [(self.position + 1) * speed for speed in SPEEDS]
        return angles.index(self.angle) if self.angle in angles else None


def content_after(previous: int, token: int, scale: int) -> int:
    """What is behind a key: the tokens up to its own, and the scale at which each of them was computed."""
    return hash((previous, token, scale))


def contents(tokens: Sequence[int], scales: Iterable[int], copied: Mapping[int, int] | None = None) -> Iterator[int]:
    """What must be behind each key of a prefix whose tokens were computed at these scales.

    Args:
        copied: positions whose keys somebody else has computed, and the scale that he was at from the first token on.
    """
    content = 0
    for position, scale in enumerate(scales):
        if copied and position in copied:
            *_, content = contents(tokens, [copied[position]] * (position + 1))
        else:
            content = content_after(content, tokens[position], scale)
        yield content


def refuse_clashes(plan: StepPlan) -> None:
    """Workers launch a step's moves together: none may read or write what another one writes."""
    moves = [move for rotation in plan.rotations for move in rotation.moves]
    touched = Counter(block_id for move in moves for block_id in {move.source, move.target})
    if clashes := {move.target for move in moves if touched[move.target] > 1}:
        raise Broken(f"what blocks {clashes} hold depends on the order in which a step's moves are made: {moves}")


class Slots:
    """What lies in each slot, and the table of block scales by which the next keys are turned.

    Args:
        num_blocks: vLLM's null block not counted.
    """

    def __init__(self, num_blocks: int, block_size: int, groups: Groups) -> None:
        self.scales = [0] * (num_blocks + 1)
        self._groups = groups
        self._block_size = block_size
        self._slots = [[Key(0, -1, 0)] * block_size for _ in range(num_blocks + 1)]

    def key(self, blocks: Sequence[int], position: int) -> Key:
        return self._slots[blocks[position // self._block_size]][position % self._block_size]

    def turn(self, rotation: Rotation, move: BlockMove) -> None:
        if not self._groups[move.group].scaled:
            raise Broken(f"a block of a group that is not scaled is turned: {move}")
        speed = SPEEDS[rotation.to_index] - SPEEDS[rotation.from_index]
        self._slots[move.target] = [
            # A kernel knows the position by the move only.
            dataclasses.replace(key, angle=key.angle + (move.first_position + offset + 1) * speed)
            for offset, key in enumerate(self._slots[move.source])
        ]

    def give_scales(self, plan: StepPlan) -> None:
        for scale_index, block_ids in plan.block_scales.items():
            for block_id in block_ids:
                self.scales[block_id] = scale_index

    def compute(self, tables: Sequence[Sequence[int]], position: int, token: int) -> Key:
        """The keys of a request's token, at the scale of their blocks, over those before it. Returns a scaled one."""
        of_groups = [(group, table) for group, table in zip(self._groups, tables, strict=True) if not group.keeps_state]
        block_ids = [table[position // self._block_size] for _, table in of_groups]
        if NULL_BLOCK in block_ids:
            raise Broken(f"a key is written into the null block, at position {position} of {block_ids}")
        scales = {
            self.scales[block_id] for (group, _), block_id in zip(of_groups, block_ids, strict=True) if group.scaled
        }
        before = {
            self.key(table, position - 1).content for group, table in of_groups if group.first_read(position) < position
        }
        if len(scales) != 1 or (position and len(before) != 1):
            raise Broken(f"at position {position} layers compute at scales number {scales} over {before}")
        (scale,) = scales
        content = content_after(before.pop() if position else 0, token, scale)
        scaled = Key(content, position, (position + 1) * SPEEDS[scale])
        for (group, _), block_id in zip(of_groups, block_ids, strict=True):
            key = scaled if group.scaled else Key(content, position, UNSCALED)
            self._slots[block_id][position % self._block_size] = key
        return scaled

    def check_read(self, name: str, tables: Sequence[Sequence[int]], begin: int, last: Key) -> None:
        """Check what a request has read that computed the tokens from ``begin`` to that of ``last``."""
        for group, table in zip(self._groups, tables, strict=True):
            if group.keeps_state:
                continue
            positions = range(group.first_read(begin), last.position + 1)
            keys = [self.key(table, position) for position in positions]
            expected = {last.scale} if group.scaled else {UNSCALED}
            found = {key.scale if group.scaled else key.angle for key in keys}
            if [key.position for key in keys] != list(positions) or found != expected:
                raise Broken(f"{name} computes at scale number {last.scale} and reads {keys} of {group}")


class Workers(Slots):
    """Workers who may overwrite nothing that is still to be read."""

    def __init__(self, num_blocks: int, block_size: int, groups: Groups) -> None:
        super().__init__(num_blocks, block_size, groups)
        self._turnings: dict[tuple[int, int], Turning] = {}

    def expect(self, turning: Turning) -> None:
        self._turnings |= {(move.source, move.target): turning for move in turning.left.values()}

    def carry_out(self, plan: StepPlan, running: Sequence[Request]) -> list[tuple[Turning, BlockMove]]:
        """What workers do before a forward. Returns the moves that were made, and for whom."""
        refuse_clashes(plan)
        made = []
        for rotation in plan.rotations:
            for move in rotation.moves:
                turning = self._turnings.pop((move.source, move.target))
                del turning.left[move.target]
                self._overwrite(turning.request, move.target, running)
                self.turn(rotation, move)
                made.append((turning, move))
        self.give_scales(plan)
        return made

    def forward(self, request: Request, num_tokens: int, running: Sequence[Request]) -> int:
        """Compute a request's next tokens, each at the scale of its block. Returns the token that follows."""
        begin = request.num_computed
        for position in range(begin, begin + num_tokens):
            for table in request.tables:
                self._overwrite(request, table[position // self._block_size], running)
            key = self.compute(request.tables, position, request.tokens[position])
        request.num_computed += num_tokens
        self.check_read(request.request_id, request.tables, begin, key)
        return key.content % 2

    def _overwrite(self, writer: Request, block_id: int, running: Sequence[Request]) -> None:
        """Whoever had keys in a block when the step began must still find them there."""
        for request in running:
            num_blocks = -(-request.num_settled // self._block_size)
            if request is not writer and any(block_id in table[:num_blocks] for table in request.tables):
                raise Broken(f"{writer.request_id} writes into block {block_id}, which {request.request_id} reads")
            if request.turning and block_id in request.turning.unread:
                raise Broken(f"{writer.request_id} writes into block {block_id}, which is still to be copied")
