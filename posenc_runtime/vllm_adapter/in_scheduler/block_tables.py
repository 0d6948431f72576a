"""After a crossing has exchanged blocks of a request: makes the workers replace its block table, not append to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from vllm.v1.core.sched.output import NewRequestData

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

# From a request's id to the ids of its blocks, for each KV cache group.
GetBlockIds = Callable[[str], tuple[list[int], ...]]


def replace_as_resumed(
    scheduler_output: SchedulerOutput, requests: Iterable[Request], get_block_ids: GetBlockIds
) -> None:
    """For model runner V1: report the requests as resumed after a preemption, so that it replaces their block tables.

    Decision 10.
    """
    cached = scheduler_output.scheduled_cached_reqs
    exchanged = {request.request_id: request for request in requests}
    for index, request_id in enumerate(cached.req_ids):
        if request_id in exchanged:
            cached.resumed_req_ids.add(request_id)
            cached.new_block_ids[index] = get_block_ids(request_id)
            cached.all_token_ids[request_id] = exchanged[request_id].all_token_ids.copy()


def replace_as_new(scheduler_output: SchedulerOutput, requests: Iterable[Request], get_block_ids: GetBlockIds) -> None:
    """For model runner V2, which knows no resumed requests: report the requests as preempted, and send them as new."""
    cached = scheduler_output.scheduled_cached_reqs
    for request in requests:
        if request.request_id not in cached.req_ids:
            continue
        index = cached.req_ids.index(request.request_id)
        for column in (cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens):
            del column[index]
        if cached.new_token_ids:
            del cached.new_token_ids[index]
        scheduler_output.scheduled_new_reqs.append(
            NewRequestData.from_request(request, get_block_ids(request.request_id), request._all_token_ids)
        )
        scheduler_output.preempted_req_ids = {*(scheduler_output.preempted_req_ids or ()), request.request_id}
