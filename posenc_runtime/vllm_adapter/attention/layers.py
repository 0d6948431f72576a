"""What a model says of a layer's attention: a distance bias or contextual positions, read once weights are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from posenc_runtime.encodings.distance import BiasForm, Linear, Power
from posenc_runtime.kernels.cope import Cope
from posenc_runtime.zoo.model.encoding import PositionEncoding

# Models pass one of these to vLLM's Attention, as ``distance_bias``, ``cope`` or ``attend``. It is called once weights
# are loaded.
FormOf = Callable[[], BiasForm]
CopeOf = Callable[[], Cope]
EncodingOf = Callable[[], PositionEncoding]


def alibi_form(alibi_slopes: list[float], use_alibi_sqrt: bool) -> BiasForm:
    """What vLLM's own models mean by their slopes."""
    slopes = torch.tensor(alibi_slopes, dtype=torch.float32)
    return Power(slopes, torch.full_like(slopes, 0.5)) if use_alibi_sqrt else Linear(slopes)


def refuse(kind: str, **settings: Any) -> None:
    """Refuse what vLLM may ask of a layer and our kernels do not do.

    Args:
        kind: whose layer it is, for the message.
        settings: what vLLM asks for; anything that is set is refused.

    Raises:
        Unsupported: naming the first setting, and its value.
    """
    from posenc_runtime.vllm_adapter.support import Unsupported

    for name, value in settings.items():
        if value:
            raise Unsupported(
                f"attention with {kind} does not do {name}, got {value!r}: set attention.backend to stock, or leave "
                f"{name} out"
            )
