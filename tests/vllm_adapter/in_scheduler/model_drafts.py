"""Workers that draft, verify and reject tokens, and an engine core that hands their drafts to vLLM's scheduler."""

from __future__ import annotations

import random
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from posenc_runtime.vllm_adapter.in_scheduler.scheduler_half import PosencMetadata
from tests.kv.model_blocks import Slots
from tests.kv.model_groups import Groups
from tests.kv.model_request import Broken
from tests.vllm_adapter.in_scheduler.model_core import EngineCore
from tests.vllm_adapter.in_scheduler.model_workers import NUM_TOKENS, ModelWorkers, token_after

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

    from posenc_runtime.kv.step_plan import StepPlan

HAVE_CACHES = ("draft_model", "eagle", "mtp")
_SHARE_OF_RIGHT_GUESSES = 0.7
_NOT_HERE_YET = -1  # what vLLM's scheduler says of a drafted token that only the workers have


def speculative_config(method: str, num_drafted: int, *, drops_block: bool = False) -> Any:
    """What vLLM's scheduler reads of its own.

    Args:
        drops_block: whether a prefix is found without its last block, whose keys the drafter may not have.
    """
    reads_states = method in ("eagle", "mtp")
    return types.SimpleNamespace(
        method=method,
        num_speculative_tokens=num_drafted,
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=1 if method == "draft_model" else 0,
        draft_model_config=None,
        parallel_drafting=False,
        use_gemma4_mtp=lambda: False,
        use_eagle=lambda: reads_states,
        use_eagle_block_drop=lambda: reads_states and drops_block,
        uses_draft_model=lambda: method == "draft_model",
        use_dflash=lambda: False,
        use_dspark=lambda: False,
        use_multi_module_mtp=lambda: False,
        use_ngram_gpu=lambda: False,
        uses_dynamic_speculative_decoding=lambda: False,
    )


class DraftingWorkers(ModelWorkers):
    """Workers whose drafter writes keys of its own into the blocks of the model, or none.

    Args:
        num_drafted: tokens that are drafted for a request in a step.
        num_behind: slots behind a request's tokens that the drafter writes; 0 where it has no cache.
        ahead: whether the scheduler plans a step before it knows which drafted tokens were rejected.
        known: what each request will say, so that some guesses are right.
        longest: tokens of the longest request.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        model_runner: int,
        groups: Groups,
        num_drafted: int,
        num_behind: int,
        ahead: bool,
        known: Mapping[str, list[int]],
        longest: int,
        seed: int,
    ) -> None:
        super().__init__(num_blocks, block_size, model_runner=model_runner, groups=groups)
        self._of_drafter = Slots(num_blocks - 1, block_size, groups)
        self._num_drafted, self._num_behind, self._ahead = num_drafted, num_behind, ahead
        self._known, self._longest, self._random = known, longest, random.Random(seed)
        self._num_prompt_tokens: dict[str, int] = {}
        self._computed: dict[str, int] = {}  # as the scheduler says it in this step
        self._drafts_in_step: dict[str, list[int]] = {}
        self.drafts: dict[str, list[int]] = {}
        self.num_accepted = self.num_rejected = 0
        self.num_lacking = 0  # drafted tokens that no worker has, which vLLM reads as token 0

    @property
    def batch(self) -> list[str]:
        """Who was in the last step."""
        return sorted(self._batch)

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._drafts_in_step = output.scheduled_spec_decode_tokens
        for new in output.scheduled_new_reqs:
            self._num_prompt_tokens.setdefault(new.req_id, len(new.prompt_token_ids or ()))
        assert isinstance(output.kv_connector_metadata, PosencMetadata)
        return super().execute(output)

    def _carry_out(self, plan: StepPlan) -> None:
        super()._carry_out(plan)
        for rotation in plan.rotations:
            for move in rotation.moves:
                self._of_drafter.turn(rotation, move)
        self._of_drafter.give_scales(plan)

    def _forward(self, name: str, num_computed: int, num_new: int) -> list[int]:
        kept, drafts = self._kept[name], list(self._drafts_in_step.get(name, ()))
        begin = self._begin(name, num_computed)
        if _NOT_HERE_YET in drafts:
            known = self.drafts[name] if name in self._batch and name in self.drafts else []
            self.num_lacking += max(len(drafts) - len(known), 0)
            drafts = (known + [0] * len(drafts))[: len(drafts)]
        num_said = begin + num_new - len(drafts)
        if num_said > len(kept.tokens):
            raise Broken(f"{name} is to compute {num_said} tokens, but has said {len(kept.tokens)}")
        tokens = kept.tokens[:num_said] + drafts
        keys = [self._slots.compute(kept.tables, position, tokens[position]) for position in range(begin, len(tokens))]
        self._slots.check_read(name, kept.tables, begin, keys[-1])
        if num_said < len(kept.tokens):  # a part of the prompt
            self._let_drafter_write(name, begin, len(tokens), [])
            return []
        said: list[int] = []
        for key, draft in zip(keys[-len(drafts) - 1 :], [*drafts, None], strict=True):
            said.append(token_after(key.content))
            if said[-1] != draft:
                break
        self.num_accepted += len(said) - 1
        self.num_rejected += len(drafts) - len(said) + 1
        kept.tokens += said
        known = self._known[name][len(kept.tokens) - self._num_prompt_tokens[name] :]
        self.drafts[name] = [
            known[index]
            if index < len(known) and self._random.random() < _SHARE_OF_RIGHT_GUESSES
            else self._random.randrange(NUM_TOKENS)
            for index in range(self._num_drafted)
        ]
        self._let_drafter_write(name, begin, len(kept.tokens) - 1, self.drafts[name])
        return said

    def _begin(self, name: str, num_computed: int) -> int:
        """The first position that a request computes in a step: workers know which drafts they have rejected since."""
        last = len(self._kept[name].tokens) - 1
        if num_computed <= last:
            return num_computed
        if not self._ahead or name not in self._batch:
            raise Broken(f"{name} has said {last + 1} tokens, but {num_computed} of them count as computed")
        return last

    def _let_drafter_write(self, name: str, begin: int, end: int, drafts: list[int]) -> None:
        """A drafter with a cache computes the tokens of the step, and then its own behind them."""
        if not self._num_behind:
            return
        kept = self._kept[name]
        tokens = kept.tokens + drafts
        past = min(end + (self._num_behind if drafts else 0), self._longest, len(tokens))
        for position in range(begin, past):
            key = self._of_drafter.compute(kept.tables, position, tokens[position])
            self._of_drafter.check_read(f"the drafter of {name}", kept.tables, position, key)


class DraftingCore(EngineCore):
    """
    Args:
        drafting: arguments of ``DraftingWorkers``, of which it gives the others.
    """

    def __init__(self, *arguments: Any, drafting: dict[str, Any], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._ahead = named["ahead"]
        settings = {name: named[name] for name in ("num_blocks", "block_size", "model_runner", "ahead")}
        self.drafting = DraftingWorkers(**settings, groups=self._workers._groups, **drafting)
        self._workers = self.drafting

    @property
    def known(self) -> Mapping[str, list[int]]:
        """What each request says alone."""
        return self.drafting._known

    def step(self) -> None:
        has_run = self.scheduler.has_requests()
        super().step()
        if has_run and not self._ahead:
            drafts = [list(self.drafting.drafts.get(name, ())) for name in self.drafting.batch]
            self.scheduler.update_draft_token_ids(DraftTokenIds(self.drafting.batch, drafts))
