"""The class that vLLM mixes into its workers (``worker_extension_cls``); they import it before they build a model."""

from __future__ import annotations

import dataclasses
from typing import Any

from posenc_runtime.vllm_adapter.in_worker.activation import activate
from posenc_runtime.vllm_adapter.in_worker.after_loading import prepare_after_loading
from posenc_runtime.vllm_adapter.in_worker.complete_weights import require_complete_weights

activate()
require_complete_weights()
prepare_after_loading()


class PosencWorkerExtension:
    """Lets the front end ask a worker, by ``collective_rpc``, for its attention backends, its speed, and a warm-up."""

    def posenc_warm_up(self) -> None:
        """On a CPU, compile what the first requests would compile."""
        from vllm.platforms import current_platform

        from posenc_runtime.vllm_adapter.in_worker.eager_functions import compile_functions_of_models

        if current_platform.is_cpu():
            compile_functions_of_models(self.model_runner)  # type: ignore[attr-defined]

    def posenc_attention(self) -> list[list[str]]:
        """Name, backend and position encoding of each attention layer of this worker, in order."""
        layers: dict[str, Any] = self.vllm_config.compilation_config.static_forward_context  # type: ignore[attr-defined]
        described = []
        for name, layer in layers.items():
            if not hasattr(layer, "impl"):
                continue
            asked = getattr(layer.impl, "asked", None)
            kind = getattr(layer.impl, "kind", None) or layer.attn_backend.get_name().lower()
            described.append([name, kind, asked.name if asked else "the model's own"])
        return described

    def posenc_speed(self) -> dict[str, Any] | None:
        """The fields of the ``Speed`` that this worker measured; None if it had nothing to measure."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        speed = get_kv_transfer_group().speed
        return dataclasses.asdict(speed) if speed else None
