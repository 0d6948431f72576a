"""How many tokens each rotated pair of a head takes for a full turn, at every scale of a running engine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from posenc_runtime.encodings.scaling import from_parameters
from posenc_runtime.kv.deployment import Deployment

if TYPE_CHECKING:
    from vllm.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Rotation:
    """What one scale does to queries and keys.

    Attributes:
        attention_factor: multiplies cos and sin.
        wavelengths: tokens for a full turn, of each pair that turns, the fastest first.
    """

    attention_factor: float
    wavelengths: tuple[float, ...]


def rotations(model_config: ModelConfig, deployment: Deployment) -> list[Rotation]:
    """The rotation of each scale, by the checkpoint's configuration; empty where nothing rotates.

    Raises:
        Unsupported: when the configuration does not describe a rotary embedding.
    """
    from posenc_runtime.vllm_adapter.checkpoint.checkpoint import read_again

    if not deployment.rotates:
        return []
    checkpoint = read_again(model_config)
    spec = checkpoint.spec
    if spec is None:
        return []
    if deployment.turns_queries:
        own = from_parameters(checkpoint.rope_type, checkpoint.parameters).frequencies(spec, 1.0)
        return [Rotation(own.attention_factor, own.wavelengths)]
    found = [deployment.frequencies(spec, index) for index in range(len(deployment.scales))]
    return [Rotation(each.attention_factor, each.wavelengths) for each in found]
