"""Recognises YaRN that somebody added to a checkpoint's configuration by hand, as the model cards of Qwen advise.

Such a configuration slows the rotation of every request, also of those that the model was trained for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class AddedYarn:
    """YaRN in a configuration whose ``max_position_embeddings`` is still that of the model without it.

    Attributes:
        factor: of that YaRN.
        unscaled_length: tokens that the model was trained on without it.
    """

    factor: float
    unscaled_length: int

    @property
    def advice(self) -> str:
        """What to change, and what it gives."""
        return (
            f"the checkpoint's configuration has YaRN of factor {self.factor:g}, which changes the rotation of every "
            f"request, but its max_position_embeddings does not count with it: if it was added for long requests, take "
            f"it out (rope_parameters or rope_scaling in config.json, or hf_overrides), and set scaling.scales to "
            f"[1, {self.factor:g}]. Requests of up to {self.unscaled_length} tokens are then answered as by the model "
            "without YaRN"
        )


def added_yarn(rope_parameters: Mapping[str, Any], max_position_embeddings: int) -> AddedYarn | None:
    """The YaRN that was added by hand; None where the checkpoint was tuned with it, or has none.

    Args:
        rope_parameters: as Hugging Face writes them, of the layers that are scaled.
        max_position_embeddings: as the checkpoint states it, tokens.
    """
    if rope_parameters["rope_type"] != "yarn":
        return None
    factor, before = rope_parameters["factor"], rope_parameters["original_max_position_embeddings"]
    return AddedYarn(factor, before) if max_position_embeddings < int(factor * before) else None
