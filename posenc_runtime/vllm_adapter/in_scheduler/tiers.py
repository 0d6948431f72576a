"""What connectors to other tiers of the KV cache see of requests that change their scale.

A tier stores blocks and loads them again, under the names that the blocks have in vLLM's prefix cache. The scale is a
part of these names (Decision 21). A tier sees each request as it was before its first crossing, and hears no more of it
afterwards: the blocks are turned then, and have other names. Stores that are under way are finished before a block is
turned. Decision 76.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class SeenRequest:
    """A request as a tier sees it. It stands still when the request crosses."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._still: dict[str, Any] | None = None

    @property
    def status(self) -> RequestStatus:
        """The request's own; aborted, once it has ended after it stood still: a tier then stores no more of it."""
        own: RequestStatus = self._request.status
        is_over = self.stands_still and RequestStatus.is_finished(own)
        return RequestStatus.FINISHED_ABORTED if is_over else own

    def __getattr__(self, name: str) -> Any:
        still = self.__dict__["_still"]
        if still is not None and name in still:
            return still[name]
        return getattr(self.__dict__["_request"], name)

    @property
    def stands_still(self) -> bool:
        return self._still is not None

    def stand_still(self) -> None:
        """Keep tokens, hashes and salt of this moment."""
        request = self._request
        num_tokens = request.num_computed_tokens
        self._still = {
            "all_token_ids": list(request.all_token_ids[:num_tokens]),
            "block_hashes": list(request.block_hashes),
            "cache_salt": request.cache_salt,
            "num_computed_tokens": num_tokens,
            "num_output_tokens": max(num_tokens - request.num_prompt_tokens, 0),
            "num_tokens": num_tokens,
        }


class Tiers:
    """The requests as tiers see them, and which stores a step has to wait for."""

    def __init__(self) -> None:
        self._seen: dict[str, SeenRequest] = {}
        self._to_be_stored: set[str] = set()  # requests whose stores must end before this step

    def on_new_request(self, request: Request) -> SeenRequest:
        self._seen[request.request_id] = SeenRequest(request)
        return self._seen[request.request_id]

    def seen(self, request: Request) -> SeenRequest:
        """A request as tiers see it."""
        return self._seen[request.request_id]

    def leave(self, request: Request) -> None:
        """A request is about to get other names, and maybe to have its blocks turned."""
        seen = self._seen[request.request_id]
        if not seen.stands_still:
            seen.stand_still()
            self._to_be_stored.add(request.request_id)

    def ended(self, request: Request) -> None:
        del self._seen[request.request_id]

    def step(self, output: SchedulerOutput, written: Iterable[int]) -> SchedulerOutput:
        """A step as tiers see it: without the requests that stand still.

        A request that has just crossed counts as preempted: vLLM's workers finish the stores of such a request before
        they do anything else in the step. Blocks that moves write count as blocks that are copied into.

        Args:
            written: ids of the blocks whose keys are turned in this step, or copied into.
        """
        still = {name for name, seen in self._seen.items() if seen.stands_still}
        copies = [KVCacheBlockCopy(block_id, block_id) for block_id in written]
        if not (still or copies):
            return output
        cached = output.scheduled_cached_reqs
        kept = [index for index, name in enumerate(cached.req_ids) if name not in still]
        preempted = {name for name in output.preempted_req_ids or () if name not in still}
        finished, self._to_be_stored = self._to_be_stored, set()
        return dataclasses.replace(
            output,
            scheduled_new_reqs=[new for new in output.scheduled_new_reqs if new.req_id not in still],
            scheduled_cached_reqs=dataclasses.replace(
                cached,
                req_ids=_at(kept, cached.req_ids),
                resumed_req_ids=cached.resumed_req_ids - still,
                new_token_ids=_at(kept, cached.new_token_ids),
                new_block_ids=_at(kept, cached.new_block_ids),
                num_computed_tokens=_at(kept, cached.num_computed_tokens),
                num_output_tokens=_at(kept, cached.num_output_tokens),
            ),
            num_scheduled_tokens={
                name: count for name, count in output.num_scheduled_tokens.items() if name not in still
            },
            preempted_req_ids=preempted | finished,
            kv_cache_block_copies=[*(output.kv_cache_block_copies or ()), *copies],
        )


def _at(indices: Sequence[int], column: Sequence[Any]) -> list[Any]:
    """The entries at some indices; a column that vLLM leaves empty stays empty."""
    return [column[index] for index in indices] if column else []
