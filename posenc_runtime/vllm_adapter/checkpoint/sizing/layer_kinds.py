"""What each layer of a model keeps of a request: all keys, those of a window, a state, or nothing."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from posenc_runtime.vllm_adapter.contract.errors import Unsupported


class Kept(enum.Enum):
    """What a layer keeps of a request."""

    ALL = "all tokens"
    WINDOW = "a window"
    CHUNK = "a chunk"
    STATE = "a state"
    ALL_AND_STATE = "all tokens and a state"
    NOTHING = "nothing"


# By the names that configurations have for types of layers.
_TYPES = {
    "full_attention": Kept.ALL,
    "attention": Kept.ALL,
    "sliding_attention": Kept.WINDOW,
    "chunked_attention": Kept.CHUNK,
    "linear_attention": Kept.STATE,
    "mamba": Kept.STATE,
    "conv": Kept.STATE,
    "hybrid": Kept.ALL_AND_STATE,
    "mlp": Kept.NOTHING,
    "moe": Kept.NOTHING,
}


def kept_by_layer(text_config: Any) -> list[Kept]:
    """What each layer keeps, in the order of the layers.

    Raises:
        Unsupported: when the configuration has a type of layers that is not known here.
    """
    number = int(text_config.num_hidden_layers)
    kept = _listed(text_config) or _by_pattern(text_config, number)
    kept = list(kept[:number])  # some list a layer more, which predicts further tokens
    shared = int(getattr(text_config, "num_kv_shared_layers", 0) or 0)
    if shared:  # the last layers read what earlier ones keep
        kept[-shared:] = [Kept.NOTHING] * shared
    return kept


def window_of(text_config: Any) -> int | None:
    """Tokens that a layer with a window sees; None where there is no window."""
    window = getattr(text_config, "sliding_window", None)
    # Lists, where a configuration has a window for each layer, say the same as its types of layers.
    return window if isinstance(window, int) and window > 0 else None


def _listed(text_config: Any) -> Sequence[Kept] | None:
    types = getattr(text_config, "layers_block_type", None) or getattr(text_config, "layer_types", None)
    if not types:
        return None
    if unknown := sorted({str(each) for each in types} - _TYPES.keys()):
        raise Unsupported(
            f"model: posenc can compute the cache of layers of the kinds {', '.join(sorted(_TYPES))}, got "
            f"{', '.join(unknown)}: start the server, whose log says how many tokens its cache holds"
        )
    return [_TYPES[each] for each in types]


def _by_pattern(text_config: Any, number: int) -> Sequence[Kept]:
    if hasattr(text_config, "mamba_d_ssm"):  # Falcon H1
        return [Kept.ALL_AND_STATE] * number
    if pattern := getattr(text_config, "hybrid_layer_pattern", None):  # MiMo V2
        return [Kept.WINDOW if each else Kept.ALL for each in pattern]
    if window_of(text_config) is None or getattr(text_config, "use_sliding_window", True) is False:
        return [Kept.ALL] * number
    period = getattr(text_config, "sliding_window_pattern", None)
    if isinstance(period, int) and period > 1:
        return [Kept.WINDOW if layer % period else Kept.ALL for layer in range(1, number + 1)]
    return [Kept.WINDOW] * number
