"""An engine core without an engine: vLLM's scheduler with ours in it, and a model of the workers."""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any
from unittest import mock

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.connector import PosencHandshake
from posenc_runtime.vllm_adapter.contract.active import KEY
from posenc_runtime.vllm_adapter.contract.names import ON_CROSSING
from posenc_runtime.vllm_adapter.scheduler import PosencScheduler
from tests.kv import model_request
from tests.kv.model_blocks import contents
from tests.kv.model_groups import ONE, Group, Groups
from tests.kv.model_request import Broken
from tests.vllm_adapter.in_scheduler.model_workers import ModelWorkers, token_after

MAX_STEPS = 600


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a client asks for, after so many steps."""

    after: int
    prompt: list[int]
    max_tokens: int
    on_crossing: str | None = None
    stops_at: int | None = None
    cancelled_after: int | None = None
    priority: int = 0
    cache_salt: str | None = None


class EngineCore:
    """What vLLM's does between scheduler and workers.

    Args:
        depth: steps that are begun before the first of them is heard of.
        ahead: whether requests may be in all of these.
        groups: KV cache groups of the model. The workers say which of them are scaled.
    """

    def __init__(
        self,
        vllm_config: Any,
        deployment: Deployment,
        *,
        block_size: int,
        num_blocks: int,
        model_runner: int,
        depth: int,
        ahead: bool,
        groups: Groups = ONE,
    ) -> None:
        vllm_config.additional_config[KEY] = deployment.to_mapping()
        vllm_config.model_config.max_model_len = deployment.max_model_len
        vllm_config.cache_config.num_gpu_blocks = num_blocks
        vllm_config.cache_config.block_size = block_size
        vllm_config.scheduler_config.async_scheduling = ahead
        vllm_config.parallel_config.pipeline_parallel_size = 1 if ahead else depth
        vllm_config.cache_config.mamba_cache_mode = "align"
        kv_cache_config = KVCacheConfig(
            num_blocks=num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec([f"layer{number}"], spec_of(group, block_size)) for number, group in enumerate(groups)
            ],
        )
        with mock.patch.dict(os.environ, {"VLLM_USE_V2_MODEL_RUNNER": str(model_runner - 1)}):
            self.scheduler = PosencScheduler(
                vllm_config,
                kv_cache_config,
                StructuredOutputManager(vllm_config),
                block_size=block_size,
                hash_block_size=block_size,
            )
            assert depth == vllm_config.max_concurrent_batches
        told = PosencHandshake(None, frozenset(number for number, group in enumerate(groups) if group.scaled))
        connector = self.scheduler.connector
        connector.set_xfer_handshake_metadata_pp_aware(dict.fromkeys(connector._ranks, told))
        self.said: dict[str, list[int]] = {}
        self.responses: dict[str, dict[str, Any]] = {}
        self.num_ahead = 0  # tokens that were to be computed in a step before anybody had heard of them
        self._workers = ModelWorkers(num_blocks, block_size, model_runner=model_runner, groups=groups)
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._depth = depth
        self._block_size = block_size

    def serve(
        self, arrivals: list[Asked], *, resets: Collection[int] = (), pauses: Mapping[int, PauseState] | None = None
    ) -> None:
        """Until all have their answers, or are cancelled.

        Args:
            resets: numbers of steps before which everybody is preempted and the prefix cache forgotten.
            pauses: by the number of a step, who is served from then on.
        """
        pauses = pauses or {}
        for number in range(MAX_STEPS):
            if number in resets:
                assert self.scheduler.reset_prefix_cache(reset_running_requests=True)
            if number in pauses:
                self.scheduler.set_pause_state(pauses[number])
            for index, asked in enumerate(arrivals):
                if asked.after == number:
                    self.admit(f"r{index}", asked)
                if asked.cancelled_after is not None and asked.after + asked.cancelled_after == number:
                    self._cancel(f"r{index}")
            if self.scheduler.has_requests() or self._in_flight:
                self.step()
            elif not self.scheduler.requests and number > max(asked.after for asked in arrivals):
                return
        raise Broken(f"{list(self.scheduler.requests)} do not come to an end")

    def drain(self) -> None:
        """Step until the scheduler says that there is nothing to do."""
        for _ in range(MAX_STEPS):
            if not self.scheduler.has_requests() and not self._in_flight:
                return
            self.step()
        raise Broken(f"{list(self.scheduler.requests)} do not come to an end")

    def step(self) -> None:
        """As ``EngineCore.step_with_batch_queue``: the queue is filled first, and then the oldest step is heard of."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            for _, told in self._in_flight:
                sampled = dict(zip(told.req_ids, told.sampled_token_ids, strict=True))
                self.num_ahead += sum(bool(sampled.get(name)) for name in output.num_scheduled_tokens)
            self._in_flight.append((output, self._workers.execute(output)))
            if len(self._in_flight) < self._depth and output.num_scheduled_tokens:
                return
        for of_client in self.scheduler.update_from_output(*self._in_flight.popleft()).values():
            for said in of_client.outputs:
                self.said[said.request_id] += said.new_token_ids
                if said.finished:
                    self.responses[said.request_id] = said.kv_transfer_params["posenc"]

    def admit(self, name: str, asked: Asked) -> None:
        self.said[name] = []
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=asked.prompt,
                sampling_params=SamplingParams(
                    max_tokens=asked.max_tokens,
                    stop_token_ids=None if asked.stops_at is None else [asked.stops_at],
                    extra_args={ON_CROSSING: asked.on_crossing} if asked.on_crossing else None,
                ),
                pooling_params=None,
                priority=asked.priority,
                cache_salt=asked.cache_salt,
                block_hasher=get_request_block_hasher(self._block_size, sha256),
            )
        )

    def _cancel(self, name: str) -> None:
        if request := self.scheduler.requests.get(name):
            self.responses[name] = self.scheduler._half.said_so_far(request)["posenc"]
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)


def spec_of(group: Group, block_size: int) -> KVCacheSpec:
    """How vLLM describes the cache of a group's layers."""
    sizes: dict[str, Any] = {"block_size": block_size, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if group.keeps_state:
        return MambaSpec(block_size=block_size, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")
    if group.window is not None:
        return SlidingWindowSpec(**sizes, sliding_window=group.window)
    if group.chunk is not None:
        return ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=group.chunk)
    return FullAttentionSpec(**sizes)


def num_needed(group: Group, longest: int, block_size: int, max_in_flight_tokens: int) -> int:
    """Blocks of a group that vLLM wants for its longest request before it starts an engine."""
    if group.keeps_state:
        return 2
    if group.window is None and group.chunk is None:
        return -(-longest // block_size)
    return int(spec_of(group, block_size).max_admission_blocks_per_request(max_in_flight_tokens, longest))


def said_alone(deployment: Deployment, asked: Asked, first: int | None = None) -> list[int]:
    """What a request says when nobody else is there.

    Args:
        first: index of the scale at which it begins, None for the one that it is admitted at.
    """
    request = model_request.Request(deployment, "alone", asked.prompt, asked.max_tokens, asked.on_crossing, 1)
    request.first = request.first if first is None else first
    tokens = list(asked.prompt)
    while len(tokens) < request.longest:
        if request.on_crossing == "recompute":  # all that it has said so far is computed at its last token's scale
            request.first = max(request.first, model_request.smallest_scale(deployment, len(tokens)))
        *_, content = contents(tokens, [request.scale_at(position) for position in range(len(tokens))])
        tokens.append(token_after(content))
        if tokens[-1] == asked.stops_at:
            break
    return tokens[len(asked.prompt) :]


def first_of(deployment: Deployment, response: dict[str, Any]) -> int | None:
    """Index of the scale at which an answer says that its first token was computed; None for the one of admission."""
    continued = response.get("continued")
    return None if continued is None else deployment.scales.index(continued["first_scale"])
