"""Workers that do what vLLM's scheduler tells them, and know what lies in every slot.

They keep requests as vLLM's two model runners do, and compute them in the order of the steps, as a device does.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from vllm.v1.outputs import ModelRunnerOutput

from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import PosencMetadata
from tests.kv.model_blocks import NULL_BLOCK, Key, Slots, refuse_clashes
from tests.kv.model_groups import Groups
from tests.kv.model_request import Broken

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

    from posenc_runtime.kv.step_plan import StepPlan

NUM_TOKENS = 6  # of the vocabulary


def token_after(content: int) -> int:
    """What a model says that has computed this."""
    return content % NUM_TOKENS


@dataclasses.dataclass
class _Kept:
    """What a worker keeps of a request."""

    tokens: list[int]
    tables: list[list[int]]


class ModelWorkers:
    """
    Args:
        model_runner: 1 or 2.
    """

    def __init__(self, num_blocks: int, block_size: int, *, model_runner: int, groups: Groups) -> None:
        self._slots = Slots(num_blocks - 1, block_size, groups)
        self._groups = groups
        self._block_size = block_size
        self._states: dict[int, Key] = {}  # by block
        self._model_runner = model_runner
        self._kept: dict[str, _Kept] = {}
        self._batch: set[str] = set()  # who was in the step before

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Carry out a step."""
        self._update(output)
        metadata = output.kv_connector_metadata
        assert isinstance(metadata, PosencMetadata)
        self._carry_out(metadata.plan)
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        computed |= zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        if computed.keys() != output.num_scheduled_tokens.keys():
            raise Broken(f"{computed} are in the step, but {output.num_scheduled_tokens} have tokens in it")
        sampled = [self._forward(name, computed[name], count) for name, count in output.num_scheduled_tokens.items()]
        names = list(output.num_scheduled_tokens)
        self._batch = set(names)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
        )

    def _update(self, output: SchedulerOutput) -> None:
        gone = output.finished_req_ids | ((output.preempted_req_ids or set()) if self._model_runner == 2 else set())
        for name in gone:
            self._kept.pop(name, None)
        for new in output.scheduled_new_reqs:
            if new.req_id in self._kept:
                raise Broken(f"{new.req_id} is new to workers who have it")
            tokens = new.prefill_token_ids if self._model_runner == 2 else new.prompt_token_ids
            assert tokens is not None
            self._kept[new.req_id] = _Kept(list(tokens), [list(ids) for ids in new.block_ids])
        cached = output.scheduled_cached_reqs
        for name, block_ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            kept = self._kept[name]
            if self._model_runner == 1 and name in cached.resumed_req_ids:
                assert block_ids is not None
                kept.tables = [list(ids) for ids in block_ids]
                self._batch.discard(name)
            elif block_ids is not None:
                for table, ids in zip(kept.tables, block_ids, strict=True):
                    table += ids
            if self._model_runner == 1 and name not in self._batch:
                told = cached.all_token_ids[name]
                if any(one != other for one, other in zip(told, kept.tokens, strict=False)):
                    raise Broken(f"{name} has said {kept.tokens}, but workers are told {told}")
                kept.tokens = list(told)

    def _carry_out(self, plan: StepPlan) -> None:
        refuse_clashes(plan)
        for rotation in plan.rotations:
            for move in rotation.moves:
                self._slots.turn(rotation, move)
        self._slots.give_scales(plan)

    def _forward(self, name: str, num_computed: int, num_new: int) -> list[int]:
        kept = self._kept[name]
        end = num_computed + num_new
        if end > len(kept.tokens):
            raise Broken(f"{name} is to compute {end} tokens, but has said {len(kept.tokens)}")
        before = self._slots.key(kept.tables[0], num_computed - 1) if num_computed else None
        for position in range(num_computed, end):
            last = self._slots.compute(kept.tables, position, kept.tokens[position])
        self._slots.check_read(name, kept.tables, num_computed, last)
        for group, table in zip(self._groups, kept.tables, strict=True):
            if group.keeps_state:
                self._carry_state_on(name, table, before, last)
        if end < len(kept.tokens):
            return []
        kept.tokens.append(token_after(last.content))
        return [kept.tokens[-1]]

    def _carry_state_on(self, name: str, table: list[int], before: Key | None, last: Key) -> None:
        """A state that was left behind a token is read, and another one is left behind the last token."""
        if before is not None:
            found = self._states.get(table[before.position // self._block_size])
            if found is None or (found.content, found.position) != (before.content, before.position):
                raise Broken(f"{name} reads the state {found} in the place of that behind {before}")
        block_id = table[last.position // self._block_size]
        if block_id == NULL_BLOCK:
            raise Broken(f"{name} leaves its state in the null block")
        self._states[block_id] = last
