"""Which layers turn queries, and by which rotation, is found by a forward of the model that vLLM built."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.config import VllmConfig

from posenc_runtime.encodings.spec import Frequencies
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.query_rotations import refuse_blocks, turn_queries
from tests.vllm_adapter.in_worker.rotating_model import HEAD_DIM, TRAINED, Attention, Layer, Model

REROPE = Deployment(
    rope_type="rerope",
    original_max_position_embeddings=TRAINED,
    max_model_len=4 * TRAINED,
    parameters={"window": 16, "page": 8},
)
INV_FREQ = 10000.0 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)


class Rotation(torch.nn.Module):
    """Rotates by angles in float32, and rounds to the data type of the keys."""

    def __init__(self, inv_freq: Tensor = INV_FREQ, *, is_neox_style: bool = True, says_style: bool = True) -> None:
        super().__init__()
        self.posenc_own, self._halves = Frequencies(inv_freq, 1.0), is_neox_style
        if says_style:
            self.is_neox_style = is_neox_style

    def forward(self, positions: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        return self._rotated(positions, queries), self._rotated(positions, keys)

    def _rotated(self, positions: Tensor, states: Tensor) -> Tensor:
        heads = states.view(len(states), -1, HEAD_DIM).float()
        angles = (positions[:, None].float() * self.posenc_own.inv_freq)[:, None]
        x, y = heads.chunk(2, -1) if self._halves else (heads[..., ::2], heads[..., 1::2])
        turned = x * angles.cos() - y * angles.sin(), y * angles.cos() + x * angles.sin()
        joined = torch.cat(turned, -1) if self._halves else torch.stack(turned, -1).flatten(-2)
        return joined.flatten(1).to(states.dtype)


class Impl:
    """Notes how its layer turns queries."""

    kind = "read_time"
    turned: Any = None

    def turn_by(self, read_time: Any, layer: Any) -> None:
        self.turned = read_time


def told(*layers: Layer, dtype: torch.dtype = torch.float32) -> list[Any]:
    """How each layer of a model turns queries; None where it does not."""
    vllm_config = VllmConfig()
    vllm_config.additional_config = {"posenc": REROPE.to_mapping()}
    described: Any = types.SimpleNamespace(uses_mrope=False, dtype=dtype, get_vocab_size=lambda: 10)
    vllm_config.model_config = described
    vllm_config.cache_config.block_size = 8
    model = Model(*layers).to(dtype)
    for layer in layers:
        layer.attention.impl = Impl()  # type: ignore[assignment]
    vllm_config.compilation_config.static_forward_context = {
        f"layers.{number}": layer.attention for number, layer in enumerate(layers)
    }
    turn_queries(model, None, vllm_config)
    impls: list[Any] = [layer.attention.impl for layer in layers]
    return [impl.turned for impl in impls]


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("vllm.distributed.get_pp_group", lambda: types.SimpleNamespace(is_first_rank=True))


def layer(rotation: Rotation | None) -> Layer:
    return Layer(rotation, Attention())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_neox_style", [True, False], ids=["halves", "neighbours"])
@pytest.mark.parametrize("says_style", [True, False], ids=["says so", "does not say so"])
def test_a_layer_turns_by_the_rotation_and_the_pairs_of_its_keys(
    dtype: torch.dtype, is_neox_style: bool, says_style: bool
) -> None:
    rotation = Rotation(is_neox_style=is_neox_style, says_style=says_style)
    rotated, still = told(layer(rotation), layer(None), dtype=dtype)
    assert still is None and rotated.is_neox_style is is_neox_style


@pytest.mark.parametrize("element", [0, 5, 7, 15])
@pytest.mark.parametrize("is_neox_style", [True, False], ids=["halves", "neighbours"])
def test_one_very_large_key_hides_no_rotation(element: int, is_neox_style: bool) -> None:
    """Layers of Qwen2.5 have biases of keys that are hundreds of times as large as others."""
    rotated = layer(Rotation(is_neox_style=is_neox_style, says_style=False))
    with torch.no_grad():
        rotated.keys.bias[element] += 600.0
    (found,) = told(rotated, dtype=torch.bfloat16)
    assert found is not None and found.is_neox_style is is_neox_style


def test_of_two_rotations_that_differ_in_slow_pairs_the_one_of_the_layer_is_found() -> None:
    slower = INV_FREQ * torch.where(INV_FREQ < 0.01, 0.25, 1.0)
    first, second = layer(Rotation()), layer(Rotation(slower))
    phases = [read_time.phases for read_time in told(first, second)]
    assert not torch.equal(*phases)
    again = told(layer(Rotation(slower)), layer(Rotation()))
    assert torch.equal(again[0].phases, phases[1]) and torch.equal(again[1].phases, phases[0])


def test_a_layer_that_rotates_in_another_way_is_refused_by_its_name() -> None:
    class Doubling(Rotation):
        def _rotated(self, positions: Tensor, states: Tensor) -> Tensor:
            return super()._rotated(2 * positions, states)

    with pytest.raises(Unsupported, match=r"needs keys that are rotated .* but those of layers\.1 are not: choose"):
        told(layer(Rotation()), layer(Doubling()))


@pytest.mark.parametrize(("block_size", "is_refused"), [(8, False), (4, False), (16, True)])
def test_pages_that_are_not_whole_blocks_are_refused_by_the_name_of_a_layer(block_size: int, is_refused: bool) -> None:
    pages, spec = REROPE.pages(), types.SimpleNamespace(block_size=block_size)
    group = types.SimpleNamespace(kv_cache_spec=spec, layer_names=["layers.0", "layers.1"])
    layers = {"layers.0": types.SimpleNamespace(), "layers.1": types.SimpleNamespace(posenc_pages=pages)}
    caches = types.SimpleNamespace(kv_cache_groups=[group])
    if not is_refused:
        refuse_blocks(caches, layers)
        return
    with pytest.raises(
        Unsupported, match=r"^scaling\.page must be a multiple .* made 16 tokens long for layers\.1, got 8"
    ):
        refuse_blocks(caches, layers)
