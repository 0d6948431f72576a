"""A family's model in transformers, which goes on at another scale after the keys in its cache are turned in float64.

It shares nothing with the product. Frequencies and models are transformers' own, one model for each scale; how a scale
is written down as rope parameters, which layers it changes, and how keys turn, is said here once more.
"""

from __future__ import annotations

import bisect
import itertools
import pathlib
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests import families
from tests.engine.greedy import Said, greedy
from tests.families.family import FULL, SLIDING

SCALES = (1, 2, 4)
# Layers whose keys the scaled rotation turns, where these are not all layers with keys.
_OF_FULL, _OF_SLIDING = ("gemma3", "gemma3n", "gemma4", "laguna", "olmo3"), ("cohere2", "exaone4")
# Pairs are neighbours in these, and one element of each half in the others.
_NEIGHBOURS = ("cohere2", "deepseek_v2", "llama4")
# Their cache holds latents as keys, and what is rotated of a key as values.
_LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v3_plain", "minicpm3")


def at_scale(rope_parameters: Mapping[str, Any], trained: int, scale: int) -> dict[str, Any]:
    """The rope parameters of a static deployment: YaRN, or the checkpoint's own method with a larger factor.

    Args:
        rope_parameters: the checkpoint's; where each type of layer has its own, those of full attention are scaled.
        trained: its trained length, tokens.
    """
    if FULL in rope_parameters:
        return dict(rope_parameters) | {FULL: at_scale(rope_parameters[FULL], trained, scale)}
    if scale == 1:
        return dict(rope_parameters)
    if rope_parameters["rope_type"] == "default":
        added = {"rope_type": "yarn", "factor": float(scale), "original_max_position_embeddings": trained}
    else:
        added = {"factor": rope_parameters["factor"] * scale}
    return dict(rope_parameters) | added


class FamilyOracle:
    """Teacher-forced logprobs of requests that cross."""

    def __init__(self, name: str, folder: pathlib.Path) -> None:
        self._name = name
        self._family = families.FAMILIES[name]
        self._configs = {scale: self._config(folder, scale) for scale in SCALES}
        self._models = {scale: self._model(folder, config) for scale, config in self._configs.items()}

    def first_scale(self, admission_tokens: int) -> int:
        """The smallest scale whose length covers so many tokens."""
        return SCALES[bisect.bisect_left([scale * self._family.trained for scale in SCALES], admission_tokens)]

    def path(self, first_scale: int, num_tokens: int) -> list[int]:
        """The scale at which each token is computed."""
        return [max(first_scale, self.first_scale(position + 1)) for position in range(num_tokens)]

    @torch.no_grad()
    def score(self, prompt: list[int], token_ids: list[int], first_scale: int) -> Said:
        """The greedy choice at every step of an answer, and the logprob of the token that was chosen."""
        ids = prompt + token_ids[:-1]
        cache = DynamicCache(config=self._configs[1])
        path = self.path(first_scale, len(ids))
        said: list[Tensor] = []
        for scale, positions in itertools.groupby(range(len(ids)), key=path.__getitem__):
            of_scale = list(positions)
            if said:
                self._turn(cache, of_scale[0], path[of_scale[0] - 1], scale)
            inputs, where = torch.tensor([[ids[position] for position in of_scale]]), torch.tensor([of_scale])
            found = self._models[scale](inputs, position_ids=where, past_key_values=cache, use_cache=True)
            said.append(found.logits[0].float().log_softmax(-1))
        return greedy(torch.cat(said)[len(prompt) - 1 :], token_ids)

    def _turn(self, cache: DynamicCache, num_tokens: int, from_scale: int, to_scale: int) -> None:
        """Turn the keys of a cache back by the angles of one scale, and forth by those of another."""
        (old, old_factor), (new, new_factor) = self._frequencies(from_scale), self._frequencies(to_scale)
        part = "values" if self._name in _LATENT else "keys"
        for layer in self._rotated(cache):
            stored = getattr(layer, part)
            # A layer with a window keeps the last tokens.
            positions = torch.arange(num_tokens - stored.shape[-2], num_tokens, dtype=torch.float64)
            keys, others = stored.double().tensor_split((2 * len(old),), dim=-1)
            keys = self._rotate(keys, torch.outer(positions, -old)) / old_factor
            keys = self._rotate(keys, torch.outer(positions, new)) * new_factor
            setattr(layer, part, torch.cat((keys, others), -1).to(stored.dtype))

    def _rotated(self, cache: DynamicCache) -> list[Any]:
        """The layers whose keys the scaled rotation turns."""
        config = self._configs[1]
        if without := getattr(config, "no_rope_layers", None):
            return [layer for layer, is_rotated in zip(cache.layers, without, strict=True) if is_rotated]
        types = getattr(config, "layer_types", None) or [FULL] * config.num_hidden_layers
        others = (SLIDING,) if self._name in _OF_FULL else (FULL,) if self._name in _OF_SLIDING else ()
        return [
            layer
            for layer, kind in zip(cache.layers, types, strict=False)  # the last ones may read the keys of others
            if hasattr(layer, "keys") and kind not in others
        ]

    def _rotate(self, keys: Tensor, angles: Tensor) -> Tensor:
        """Rotate keys ``[1, num_heads, num_tokens, width]`` by ``[num_tokens, width / 2]``."""
        by_neighbours = self._name in _NEIGHBOURS
        x, y = (keys[..., ::2], keys[..., 1::2]) if by_neighbours else keys.chunk(2, -1)
        pairs = x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin()
        return torch.stack(pairs, -1).flatten(-2) if by_neighbours else torch.cat(pairs, -1)

    def _frequencies(self, scale: int) -> tuple[Tensor, float]:
        """Of the scaled rotation: rad / token for each pair, and its attention factor."""
        config = self._configs[scale]
        is_nested = FULL in config.rope_parameters
        parameters = config.rope_parameters[FULL] if is_nested else config.rope_parameters
        if parameters["rope_type"] == "default":
            head_dim = getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None)
            head_dim = head_dim or config.hidden_size // config.num_attention_heads
            width = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
            exponent = torch.arange(0, width, 2).float() / width
            return (1.0 / parameters["rope_theta"] ** exponent).double(), 1.0
        named = {"layer_type": FULL} if is_nested else {}
        inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", **named)
        return inv_freq.double(), float(attention_factor)

    def _config(self, folder: pathlib.Path, scale: int) -> Any:
        config = transformers.AutoConfig.from_pretrained(folder).get_text_config()
        for name, value in self._family.in_transformers.items():
            setattr(config, name, value)
        config.rope_parameters = at_scale(config.rope_parameters, self._family.trained, scale)
        return config

    def _model(self, folder: pathlib.Path, config: Any) -> Any:
        model = getattr(transformers, self._family.architecture).from_pretrained(
            folder, config=config, dtype=getattr(torch, self._family.dtype), attn_implementation="eager"
        )
        return model.eval()
