"""vLLM's scheduler as its engine drives it, and no model: every request says the same token for ever."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pathlib
import tempfile
import time
import types
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal
from unittest import mock

import torch
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

from posenc_runtime import vllm_adapter
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.contract.active import KEY
from posenc_runtime.vllm_adapter.scheduler import PosencScheduler
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import engine_arguments
from tests.checkpoints import save_tiny

BLOCK_SIZE = 16
Side = Literal["stock", "connector", "pin", "rerotate", "recompute"]


@functools.cache
def engine_config() -> VllmConfig:
    """vLLM's configuration for a model that nobody builds."""
    vllm_adapter.register()
    init_none_hash(sha256)
    KVConnectorFactory.register_connector("IdleConnector", "tests.benchmarks.scheduler.idle", "IdleConnector")
    deployment = Deployment(
        rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=256, max_model_len=512
    )
    arguments = engine_arguments(deployment, {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True})
    with tempfile.TemporaryDirectory(prefix="posenc-scheduler-") as folder:
        model = save_tiny(pathlib.Path(folder) / "tiny")
        return AsyncEngineArgs(model=str(model), **arguments).create_engine_config()


@dataclasses.dataclass(frozen=True)
class Times:
    """CPU seconds of the thread that an engine's loop runs in."""

    schedule: float
    update: float

    @property
    def step(self) -> float:
        return self.schedule + self.update


class SchedulerCore:
    """What vLLM's engine core does in its loop.

    Args:
        side: whose scheduler and connector: vLLM's without any, vLLM's with one that does nothing, or ours.
        max_running: requests that run at once, at most.
        ahead: a step is scheduled before the one before it is heard of.
        caching: whether there is a prefix cache.
    """

    def __init__(
        self,
        side: Side,
        deployment: Deployment,
        *,
        num_blocks: int,
        max_running: int,
        ahead: bool = True,
        max_tokens_a_step: int = 1 << 31,
        caching: bool = True,
    ) -> None:
        self.deployment = deployment
        self.times: list[Times] = []
        self.last: SchedulerOutput | None = None
        self._depth = 2 if ahead else 1
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        config = _config(side, deployment, num_blocks, max_running, ahead, max_tokens_a_step)
        config.cache_config.enable_prefix_caching = caching
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
        groups = [KVCacheGroupSpec(["layer"], spec)]
        # Whether names are there is no matter of speed, and takes seconds for every scheduler.
        with mock.patch.object(releases, "verify"):
            self.scheduler: Any = _scheduler(side, deployment, ahead)(
                vllm_config=config,
                kv_cache_config=KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups),
                structured_output_manager=StructuredOutputManager(config),
                block_size=BLOCK_SIZE,
                hash_block_size=BLOCK_SIZE,
                log_stats=True,
            )
        self._engine: Any = types.SimpleNamespace(
            scheduler=self.scheduler,
            mm_receiver_cache=None,
            request_block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
        )

    def add(self, name: str, prompt: Sequence[int], max_tokens: int, on_crossing: str | None = None) -> Times:
        """A request comes. Returns the seconds on the thread that takes requests in, and those in the loop."""
        extra = {"posenc_on_crossing": on_crossing} if on_crossing else None
        request = EngineCoreRequest(
            request_id=name,
            prompt_token_ids=list(prompt),
            mm_features=None,
            sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        began = time.thread_time()
        arrived, _ = EngineCore.preprocess_add_request(self._engine, request)
        told = time.thread_time()
        self.scheduler.add_request(arrived)
        return Times(told - began, time.thread_time() - told)

    def step(self) -> list[Any]:
        """Schedule, and hear of the oldest step. Returns what it said."""
        began = time.thread_time()
        output = self.scheduler.schedule()
        scheduled = time.thread_time() - began
        self.last = output
        self._in_flight.append((output, self._said(output)))
        if len(self._in_flight) < self._depth and output.num_scheduled_tokens:
            return []
        oldest = self._in_flight.popleft()
        began = time.thread_time()
        heard = self.scheduler.update_from_output(*oldest)
        self.times.append(Times(scheduled, time.thread_time() - began))
        return [output for of_client in heard.values() for output in of_client.outputs]

    def _said(self, output: SchedulerOutput) -> ModelRunnerOutput:
        names = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[name] for name in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[7] if one.num_computed_tokens >= one.num_prompt_tokens else [] for one in requests],
        )


def _scheduler(side: Side, deployment: Deployment, ahead: bool) -> type:
    if side in ("rerotate", "recompute"):
        return PosencScheduler
    return AsyncScheduler if ahead else Scheduler


def _config(
    side: Side, deployment: Deployment, num_blocks: int, max_running: int, ahead: bool, max_tokens_a_step: int
) -> VllmConfig:
    config = copy.copy(engine_config())
    for part in ("scheduler_config", "cache_config", "model_config", "parallel_config"):
        setattr(config, part, copy.copy(getattr(config, part)))
    config.additional_config = {**config.additional_config, KEY: deployment.to_mapping()}
    config.model_config.max_model_len = config.scheduler_config.max_model_len = deployment.max_model_len
    config.cache_config.num_gpu_blocks = num_blocks
    config.cache_config.block_size = BLOCK_SIZE
    config.scheduler_config.async_scheduling = ahead
    config.scheduler_config.max_num_seqs = max_running
    config.scheduler_config.max_num_batched_tokens = max_tokens_a_step
    if side == "stock":
        config.kv_transfer_config = None
    elif side == "connector":
        config.kv_transfer_config = KVTransferConfig(kv_connector="IdleConnector", kv_role="kv_both")
    return config
