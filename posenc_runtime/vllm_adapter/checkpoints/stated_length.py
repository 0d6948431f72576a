"""For how many tokens a checkpoint was trained, by its configuration, under whichever name it has the length."""

from __future__ import annotations

import inspect
from typing import Any

# As vLLM looks for them (model_arch_config_convertor.derive_max_model_len_and_key), but for those of encoders.
_NAMES = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_sequence_length", "max_seq_length", "seq_len"),
)


def stated_length(text_config: Any) -> int | None:
    """The trained length, tokens; None where the configuration does not state it.

    Command-R has the length of its training as ``model_max_length``, and a shorter one as ``max_position_embeddings``.
    Where others state several lengths, the shortest one counts: Qwen's first models have the length of their training
    as ``seq_length``, and a longer one as ``max_position_embeddings``.
    """
    if length := getattr(text_config, "model_max_length", None):
        return int(length)
    lengths = {name: length for name in _NAMES if (length := getattr(text_config, name, None))}
    said = [length for name, length in lengths.items() if name == _NAMES[0] or not _is_default(text_config, name)]
    # A length that a class has for every checkpoint (Step 3.5: max_seq_len) is none that this checkpoint states.
    return min(said or lengths.values(), default=None)


def _is_default(text_config: Any, name: str) -> bool:
    parameter = inspect.signature(type(text_config)).parameters.get(name)
    return parameter is not None and parameter.default == getattr(text_config, name)
