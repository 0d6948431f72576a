"""An engine whose KV blocks are offloaded to memory, on a CPU: vLLM's own connector, keys and sizes, and our copies.

vLLM copies on GPUs only. A copy here reads its source when it ends, some polls after it was asked for, as late as a
copy beside the steps of a GPU may. So a block that changes while it is stored is seen in an answer. The environment
variable ``LAG`` says how many polls; the connector polls once a step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from tests.engine.run_engine import main

_LAG = int(os.environ.get("LAG", "2"))


class MemoryWorker(OffloadingWorker):
    """Copies blocks of a cache with one group of layers."""

    def __init__(self, kv_caches: Any, num_chunks: int) -> None:
        assert len(kv_caches.group_data_refs) == 1
        self._caches = [each.tensor for each in kv_caches.tensors]
        self._memory = [torch.zeros((num_chunks, each.shape[1]), dtype=each.dtype) for each in self._caches]
        self._pending: dict[int, tuple[int, Callable[[], int]]] = {}  # polls that are left, and the copy

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._pending[job_id] = _LAG, lambda: self._copy(self._memory, dst_spec, self._caches, src_spec)
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._pending[job_id] = _LAG, lambda: self._copy(self._caches, dst_spec, self._memory, src_spec)
        return True

    @staticmethod
    def _copy(to: list[torch.Tensor], at: Any, source: list[torch.Tensor], of: Any) -> int:
        written, read = (torch.as_tensor(spec.block_ids.copy(), dtype=torch.int64) for spec in (at, of))
        for target, tensor in zip(to, source, strict=True):
            target[written] = tensor[read]
        return sum(tensor[read].nbytes for tensor in source)

    def get_finished(self) -> list[TransferResult]:
        finished = [job_id for job_id, (left, _) in self._pending.items() if left <= 0]
        self._pending = {job_id: (left - 1, copy) for job_id, (left, copy) in self._pending.items() if left > 0} | {
            job_id: self._pending[job_id] for job_id in finished
        }
        return [TransferResult(job_id, True, self._pending.pop(job_id)[1](), 1e-6) for job_id in finished]

    def wait(self, job_ids: set[int]) -> None:
        for job_id in job_ids & self._pending.keys():
            num_bytes = self._pending[job_id][1]()
            self._pending[job_id] = 0, lambda num_bytes=num_bytes: num_bytes


def _worker_of(self: Any, kv_caches: Any) -> OffloadingWorker:
    if not self._worker:
        self._worker = MemoryWorker(kv_caches, self.num_chunks)
    worker: OffloadingWorker = self._worker
    return worker


if __name__ == "__main__":
    CPUOffloadingSpec.get_worker = _worker_of
    main()
