"""What a worker process knows about its KV blocks; read by the rotary op, written by the connector's worker half."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from posenc_runtime.kv.deployment import Deployment


@dataclasses.dataclass
class WorkerState:
    """One per process, because vLLM's custom ops can reach nothing but process state and the forward context.

    Attributes:
        block_row_offset: int64 ``[num_blocks]``, first table row of the scale that each physical block carries.
            Allocated once and written in place only: captured CUDA graphs hold its address.
        block_size: attention layer to tokens per block of its KV cache group.
        rotary_deployments: the deployment that each rotary embedding of this process was built for.
    """

    block_row_offset: Tensor | None = None
    block_size: dict[str, int] = dataclasses.field(default_factory=dict)
    rotary_deployments: list[Deployment] = dataclasses.field(default_factory=list)


STATE = WorkerState()
