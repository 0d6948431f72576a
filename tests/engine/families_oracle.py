"""A family's model in transformers, which goes on at another scale after the keys in its cache are turned in float64.

It shares nothing with the product. Frequencies and models are transformers' own, one model for each scale; how a scale
is written down as rope parameters, which layers it changes, and how keys turn, is said here once more.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests import families
from tests.engine.greedy import Said, greedy
from tests.families import saving
from tests.families.family import FULL, SLIDING

SCALES = (1, 2, 4)
# Families of which the scaled rotation turns keys in one type of layer only.
_IN_FULL = ("gemma3", "gemma3_sees", "gemma3n", "gemma4", "laguna", "olmo3", "plamo3", "mimo_v2", "step3_5")
_IN_SLIDING = ("cohere2", "exaone4")
# Pairs are neighbours in these, and one element of each half in the others.
_NEIGHBOURS = ("cohere2", "deepseek_v2", "glm4v", "llama4", "llama4_sees")
_HALVES_IN_VLLM = ("llama4", "llama4_sees")  # which reorders the rows of their projections when it loads them
# The cache of transformers holds latents as keys, and what is rotated of a key as values.
_LATENT = ("deepseek_v2", "deepseek_v3", "deepseek_v3_plain", "deepseek_v3_bfloat16", "minicpm3")


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
    yarn = {"factor": float(scale), "original_max_position_embeddings": trained}
    if rope_parameters["rope_type"] == "default":
        added = yarn | {"rope_type": "yarn"}
    elif rope_parameters["rope_type"] == "proportional":  # which nobody scales but static_in_float64
        added = yarn
    elif alpha := rope_parameters.get("alpha"):
        added = {"alpha": alpha * scale}
    elif rope_parameters["rope_type"] == "dynamic":
        added = {"max_trained_positions": trained}  # as vLLM calls it: the stretch follows the length that is served
    else:
        added = {"factor": rope_parameters["factor"] * scale}
    return dict(rope_parameters) | added


class Rotations:
    """How the scaled rotation of a family turns keys.

    Args:
        in_vllm: keys have the order of elements that vLLM caches, not that of transformers.

    Attributes:
        layers: numbers of the layers whose keys it turns.
        by_neighbours: whether a pair is two neighbours, or one element of each half of what is rotated.
    """

    def __init__(self, name: str, *, in_vllm: bool = False) -> None:
        self._name = name
        self.by_neighbours = name in _NEIGHBOURS and not (in_vllm and name in _HALVES_IN_VLLM)
        self._family = families.FAMILIES[name]
        self._config = self._family.config().get_text_config()
        if without := getattr(self._config, "no_rope_layers", None):
            self.layers = [number for number, is_rotated in enumerate(without) if is_rotated]
        else:
            types = getattr(self._config, "layer_types", None) or [FULL] * self._config.num_hidden_layers
            rotated = (FULL,) if name in _IN_FULL else (SLIDING,) if name in _IN_SLIDING else (FULL, SLIDING, "hybrid")
            self.layers = [number for number, kind in enumerate(types) if kind in rotated]

    def rope_parameters(self, scale: int) -> dict[str, Any]:
        """Those of a static deployment, as transformers reads them."""
        own = self._config.rope_parameters
        if own.get("rope_type") == "dynamic":  # whose stretch follows the length of each batch
            stretch, width = own["factor"] * scale - (own["factor"] - 1), self._width(own)
            stretch *= own.get("alpha", 1.0)
            return {"rope_type": "default", "rope_theta": own["rope_theta"] * stretch ** (width / (width - 2))}
        return at_scale(own, self._family.trained, scale)

    def turned(self, keys: Tensor, positions: Tensor, from_scale: int, to_scale: int) -> Tensor:
        """Keys turned back by the angles of one scale, and forth by those of another.

        Args:
            keys: ``[..., num_tokens, head_dim]``, of any floating data type; turned in float64.
            positions: ``[num_tokens]``
        """
        (old, old_factor), (new, new_factor) = self.frequencies(from_scale), self.frequencies(to_scale)
        part, rest = keys.double().tensor_split((2 * len(old),), dim=-1)
        part = self._rotated(part, torch.outer(positions.double(), -old)) / old_factor
        part = self._rotated(part, torch.outer(positions.double(), new)) * new_factor
        return torch.cat((part, rest), -1).to(keys.dtype)

    def frequencies(self, scale: int) -> tuple[Tensor, float]:
        """The scaled rotation's: rad / token of each pair, and its attention factor."""
        every = self.rope_parameters(scale)
        parameters = every.get(FULL, every)
        if parameters["rope_type"] == "proportional":
            return self._proportional(parameters, scale)
        if parameters["rope_type"] == "default":
            return _plain(self._width(parameters), parameters["rope_theta"])
        config = self._family.config().get_text_config()
        config.rope_parameters = every
        named = {"layer_type": FULL} if FULL in every else {}
        inv_freq, attention_factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", **named)
        return inv_freq.double(), float(attention_factor)

    def _width(self, parameters: Mapping[str, Any]) -> int:
        """Of the rotated part of a head."""
        head_dim = getattr(self._config, "qk_rope_head_dim", None) or getattr(self._config, "head_dim", None)
        head_dim = head_dim or self._config.hidden_size // self._config.num_attention_heads
        return int(head_dim * parameters.get("partial_rotary_factor", 1.0))

    def _proportional(self, parameters: Mapping[str, Any], scale: int) -> tuple[Tensor, float]:
        """Plain RoPE whose last pairs stand still: the others are scaled as those of plain RoPE are."""
        width, factor = self._config.per_layer_config[self.layers[0]].head_dim, 1.0
        inv_freq, _ = _plain(width, parameters["rope_theta"])
        if scale > 1:
            plain = {"rope_type": "default", "rope_theta": parameters["rope_theta"]}
            config = LlamaConfig(head_dim=width, rope_parameters=at_scale(plain, self._family.trained, scale))
            found, factor = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
            inv_freq = found.double()
        inv_freq[int(width * parameters["partial_rotary_factor"]) // 2 :] = 0
        return inv_freq, float(factor)

    def _rotated(self, keys: Tensor, angles: Tensor) -> Tensor:
        """Keys ``[..., num_tokens, width]`` rotated by ``[num_tokens, width / 2]``."""
        x, y = (keys[..., ::2], keys[..., 1::2]) if self.by_neighbours else keys.chunk(2, -1)
        pairs = x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin()
        return torch.stack(pairs, -1).flatten(-2) if self.by_neighbours else torch.cat(pairs, -1)


def _plain(width: int, rope_theta: float) -> tuple[Tensor, float]:
    return (1.0 / rope_theta ** (torch.arange(0, width, 2).float() / width)).double(), 1.0


class FamilyOracle:
    """Teacher-forced logprobs of requests that cross."""

    def __init__(self, name: str) -> None:
        self._family = families.FAMILIES[name]
        self._rotations = Rotations(name)
        self._part = "values" if name in _LATENT else "keys"
        self._models = {scale: self._model(scale) for scale in SCALES}

    def first_scale(self, admission_tokens: int) -> int:
        """The smallest scale whose length covers so many tokens."""
        return SCALES[bisect.bisect_left([scale * self._family.trained for scale in SCALES], admission_tokens)]

    def path(self, first_scale: int, num_tokens: int) -> list[int]:
        """The scale at which each token is computed."""
        return [max(first_scale, self.first_scale(position + 1)) for position in range(num_tokens)]

    @torch.no_grad()
    def score(self, prompt: list[int], token_ids: list[int], first_scale: int, how: str = "rerotate") -> Said:
        """The greedy choice at every step of an answer, and the logprob of the token that was chosen.

        Args:
            how: whether a crossing turns keys, or computes all before it again.
        """
        ids = prompt + token_ids[:-1]
        cache = DynamicCache(config=self._models[1].config)
        path = self.path(first_scale, len(ids))
        said: list[Tensor] = []
        for scale, positions in itertools.groupby(range(len(ids)), key=path.__getitem__):
            of_scale = list(positions)
            if said and how == "recompute":
                cache = DynamicCache(config=self._models[1].config)
                before = torch.arange(of_scale[0])[None]
                ids_before = torch.tensor([ids[: of_scale[0]]])
                self._models[scale](ids_before, position_ids=before, past_key_values=cache, use_cache=True)
            elif said:
                self._turn(cache, of_scale[0], path[of_scale[0] - 1], scale)
            inputs, where = torch.tensor([[ids[position] for position in of_scale]]), torch.tensor([of_scale])
            found = self._models[scale](inputs, position_ids=where, past_key_values=cache, use_cache=True)
            said.append(found.logits[0].float().log_softmax(-1))
        return greedy(torch.cat(said)[len(prompt) - 1 :], token_ids)

    def _turn(self, cache: DynamicCache, num_tokens: int, from_scale: int, to_scale: int) -> None:
        for number in self._rotations.layers:
            if number >= len(cache.layers):  # this one and those after it read the keys of others
                break
            layer = cache.layers[number]
            keys = getattr(layer, self._part)
            # A layer with a window keeps the last tokens.
            positions = torch.arange(num_tokens - keys.shape[-2], num_tokens)
            setattr(layer, self._part, self._rotations.turned(keys, positions, from_scale, to_scale))

    def _model(self, scale: int) -> Any:
        rope_parameters = self._rotations.rope_parameters(scale)
        model = saving.build(self._family, **self._family.in_transformers, rope_parameters=rope_parameters)
        if rope_parameters.get(FULL, {}).get("rope_type") == "proportional":
            inv_freq, attention_factor = self._rotations.frequencies(scale)
            model.model.rotary_emb.full_attention_inv_freq = inv_freq.float()
            model.model.rotary_emb.full_attention_attention_scaling = attention_factor
        return model
