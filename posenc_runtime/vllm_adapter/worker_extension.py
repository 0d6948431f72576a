"""What vLLM mixes into its workers (``worker_extension_cls``), and imports in each of them before it builds a model."""

from __future__ import annotations

import dataclasses
from typing import Any

from posenc_runtime.vllm_adapter.activation import activate

activate()


class PosencWorkerExtension:
    """Lets the front end ask a worker, by ``collective_rpc``, what attends in its layers, and how fast it is."""

    def posenc_attention(self) -> list[list[str]]:
        """Of each attention layer of this worker, in order: its name, its backend and its position encoding."""
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
        """What this worker measured, field by field; None where it had nothing to."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        told = get_kv_transfer_group().get_handshake_metadata()
        return dataclasses.asdict(told.speed) if told else None
