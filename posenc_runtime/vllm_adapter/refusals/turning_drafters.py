"""Which drafters are served where queries turn. The model checks each drafted token with its own attention."""

from __future__ import annotations

from typing import Any

from posenc_runtime.vllm_adapter.contract.errors import Unsupported

# Others read the model's cache, or tables of rotations, in ways that no test has shown to be right here.
_SHOWN = ("ngram", "draft_model", "eagle", "eagle3", "mtp")


def refuse_drafter(speculative_config: Any, rope_type: str) -> None:
    """Check an engine's ``speculative_config``, once vLLM has found out its method.

    Raises:
        Unsupported: when no test shows answers with such a drafter; the message names it and those that are served.
    """
    if speculative_config is not None and speculative_config.method not in _SHOWN:
        raise Unsupported(
            f"speculative_config.method must be one of {', '.join(_SHOWN)} where rope_type is {rope_type}, got "
            f"{speculative_config.method}: no test shows that answers with another drafter are right. Choose one of "
            "them, or leave speculative_config out"
        )


def is_drafter(model_config: Any) -> bool:
    """Whether this is vLLM's configuration of a drafter's model, and not of the model that uses the drafter."""
    return getattr(model_config, "runner_type", None) == "draft"
