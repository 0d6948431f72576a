"""A worker turns the keys of all layers, also of layers whose caches differ in shape, or that rotate otherwise."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    UniformTypeKVCacheSpecs,
)

from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.kv.crossing import Rotation
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.moves import BlockMove, Moves
from posenc_runtime.vllm_adapter.in_worker import cpu_key_order
from posenc_runtime.vllm_adapter.in_worker.layer_rotations import Turned
from posenc_runtime.vllm_adapter.in_worker.rerotation import Rerotation
from posenc_runtime.vllm_adapter.in_worker.worker_state import Rotary
from tests.kernels.test_rerotate import rotated
from tests.tolerance import KEY_ROUNDING, ROUNDED_TO_NEAREST

HEAD_DIM, BLOCK_SIZE, NUM_BLOCKS, FIRST = 8, 4, 6, 40  # of the caches; the first block's first position
YARN = Deployment(rope_type="yarn", scales=(1.0, 2.0), original_max_position_embeddings=256, max_model_len=512)
SPEC = RotarySpec(rotary_dim=HEAD_DIM, rope_theta=100.0, original_max_position_embeddings=256)
ROTARY = Rotary(deployment=YARN, head_dim=HEAD_DIM, own=SPEC, is_neox_style=True)
HALF = dataclasses.replace(ROTARY, own=dataclasses.replace(SPEC, rotary_dim=4))
OTHER = dataclasses.replace(ROTARY, own=dataclasses.replace(SPEC, rope_theta=5000.0))
WHOLE = Turned(ROTARY, 0, is_neox_style=True)
POSITIONS = torch.arange(NUM_BLOCKS * BLOCK_SIZE).view(NUM_BLOCKS, 1, BLOCK_SIZE) + FIRST


@pytest.fixture(autouse=True)
def keys_lie_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: how vLLM's CPU backend packs keys has tests of its own."""
    monkeypatch.setattr(cpu_key_order, "cpu_key_order", lambda *_: None)


def full(num_kv_heads: int = 1, block_size: int = BLOCK_SIZE, dtype: torch.dtype = torch.float32) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=num_kv_heads, head_size=HEAD_DIM, dtype=dtype)


def group(**specs: KVCacheSpec) -> KVCacheGroupSpec:
    made = UniformTypeKVCacheSpecs.from_specs(specs)
    assert made is not None
    return KVCacheGroupSpec(list(specs), made)


def at_scale(keys: Tensor, turned: Turned, scale_index: int) -> Tensor:
    """What keys ``[num_blocks, num_kv_heads, block_size, head_dim]`` are at a scale, float64."""
    shape: Any = types.SimpleNamespace(
        rotary_offset=turned.offset, rotary_dim=turned.rotary.own.rotary_dim, is_neox_style=turned.is_neox_style
    )
    return rotated(keys, POSITIONS, turned.rotary.frequencies(scale_index), shape)


def unrotated(num_kv_heads: int = 1, width: int = HEAD_DIM) -> Tensor:
    return torch.randn(NUM_BLOCKS, num_kv_heads, BLOCK_SIZE, width, dtype=torch.float64)


def rerotation(
    caches: Mapping[str, Tensor],
    rotations: Mapping[str, Turned | None],
    *groups: KVCacheGroupSpec,
    kept_as: Mapping[str, str] | None = None,
) -> Rerotation:
    layers = {name: types.SimpleNamespace(isa="", kv_cache_dtype=(kept_as or {}).get(name, "auto")) for name in caches}
    vllm_config: Any = types.SimpleNamespace(compilation_config=types.SimpleNamespace(static_forward_context=layers))
    num_blocks = NUM_BLOCKS * BLOCK_SIZE // groups[0].kv_cache_spec.block_size
    kv_cache_config: Any = types.SimpleNamespace(kv_cache_groups=list(groups), num_blocks=num_blocks)
    return Rerotation(vllm_config, kv_cache_config, caches, rotations)


def crossing(*moves: BlockMove) -> Rotation:
    return Rotation(from_index=0, to_index=1, moves=Moves.of(moves))


def in_place(group: int, block_size: int = BLOCK_SIZE) -> list[BlockMove]:
    """Every block of a group is turned where it is."""
    return [
        BlockMove(
            group=group, source=block, target=block, first_position=FIRST + block * block_size, num_tokens=block_size
        )
        for block in range(NUM_BLOCKS * BLOCK_SIZE // block_size)
    ]


def assert_turned(keys: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(keys.double(), expected, rtol=0, atol=KEY_ROUNDING * expected.abs().max().item())


@pytest.mark.parametrize("split", [1, 2], ids=["blocks-as-scheduled", "blocks-of-half-the-size"])
def test_keys_of_every_layer_are_turned_once(split: int) -> None:
    heads = {"wide": 4, "narrow": 1, "another-wide": 4}
    keys = {name: unrotated(num_heads) for name, num_heads in heads.items()}
    caches = {name: torch.cat([at_scale(each, WHOLE, 0), each], -1).float() for name, each in keys.items()}
    caches["reads-the-narrow-one"] = caches["narrow"]
    specs = group(**{name: full(num_heads, BLOCK_SIZE * split) for name, num_heads in heads.items()})
    together = KVCacheGroupSpec([*heads, "reads-the-narrow-one"], specs.kv_cache_spec)
    rerotation(caches, dict.fromkeys(caches, WHOLE), together).apply(crossing(*in_place(0, BLOCK_SIZE * split)))
    for name, each in keys.items():
        turned, values = caches[name].split(HEAD_DIM, -1)
        assert_turned(turned, at_scale(each, WHOLE, 1))
        assert torch.equal(values, each.float())


def test_layers_of_a_group_are_turned_each_as_it_rotates() -> None:
    """By another base, in another part of the head, by neighbours, or not at all."""
    rotations: dict[str, Turned | None] = {
        "whole": WHOLE,
        "beginning": Turned(HALF, 0, is_neox_style=True),
        "end": Turned(HALF, 4, is_neox_style=False),
        "other-base": Turned(OTHER, 0, is_neox_style=True),
        "without-rope": None,
    }
    keys = {name: unrotated() for name in rotations}
    caches = {
        name: torch.cat([each if turned is None else at_scale(each, turned, 0), each], -1).float()
        for (name, turned), each in zip(rotations.items(), keys.values(), strict=True)
    }
    before = caches["without-rope"].clone()
    made = rerotation(caches, rotations, KVCacheGroupSpec(list(rotations), full()))
    made.apply(crossing(*in_place(0)))
    for name, turned in rotations.items():
        if turned is not None:
            assert_turned(caches[name][..., :HEAD_DIM], at_scale(keys[name], turned, 1))
            assert torch.equal(caches[name][..., HEAD_DIM:], keys[name].float())
    assert torch.equal(caches["without-rope"], before)


def test_a_block_that_is_copied_is_copied_in_layers_that_nothing_turns() -> None:
    keys = {name: unrotated() for name in ("turned", "copied")}
    caches = {
        "turned": torch.cat([at_scale(keys["turned"], WHOLE, 0), keys["turned"]], -1).float(),
        "copied": torch.cat([keys["copied"], keys["copied"]], -1).float(),
    }
    before = caches["copied"].clone()
    made = rerotation(caches, {"turned": WHOLE, "copied": None}, KVCacheGroupSpec(["turned", "copied"], full()))
    copied = BlockMove(group=0, source=1, target=4, first_position=FIRST + BLOCK_SIZE, num_tokens=BLOCK_SIZE)
    kept = BlockMove(group=0, source=2, target=2, first_position=FIRST + 2 * BLOCK_SIZE, num_tokens=BLOCK_SIZE)
    made.apply(crossing(copied, kept))
    expected = at_scale(keys["turned"], WHOLE, 1)
    assert_turned(caches["turned"][4, ..., :HEAD_DIM], expected[1])
    assert_turned(caches["turned"][2, ..., :HEAD_DIM], expected[2])
    assert torch.equal(caches["copied"][4], before[1])
    others = [0, 1, 2, 3, 5]
    assert torch.equal(caches["copied"][others], before[others])


def test_the_rotated_part_of_latents_is_turned_and_the_rest_of_them_is_not() -> None:
    latent = 12
    turned = Turned(ROTARY, latent, is_neox_style=False)
    spec = MLAAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=latent + HEAD_DIM, dtype=torch.float32)
    keys = unrotated(width=latent + HEAD_DIM)
    cache = at_scale(keys, turned, 0).float().squeeze(1)  # vLLM leaves out the dimension of the one head
    rerotation({"layer": cache}, {"layer": turned}, KVCacheGroupSpec(["layer"], spec)).apply(crossing(*in_place(0)))
    assert_turned(cache[..., latent:], at_scale(keys, turned, 1)[:, 0, :, latent:])
    assert torch.equal(cache[..., :latent], keys[:, 0, :, :latent].float())


def test_float8_keys_are_turned_in_units_of_their_scale_beside_others() -> None:
    """In two types of float8, with a scale of a layer and of each head, and in float32; and what is only copied."""
    pure = Turned(dataclasses.replace(ROTARY, factor_on_keys=False), 0, is_neox_style=True)
    rotations: dict[str, Turned | None] = {"e4m3": pure, "e5m2": pure, "float32": pure, "copied": None}
    kept_as = {"e4m3": "fp8", "e5m2": "fp8_e5m2", "copied": "fp8"}
    dtypes = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "float32": torch.float32}
    scales = {
        "e4m3": torch.tensor([0.02, 0.03]).view(1, 2, 1, 1),
        "e5m2": torch.tensor(5e-4),
        "float32": torch.ones(()),
    }
    keys = {name: unrotated(2) for name in scales}
    caches = {"copied": torch.randint(256, (NUM_BLOCKS, 2, BLOCK_SIZE, 2 * HEAD_DIM), dtype=torch.uint8)}
    for name, scale in scales.items():
        in_units = torch.cat([at_scale(keys[name], WHOLE, 0), keys[name]], -1).float() / scale
        caches[name] = in_units if name == "float32" else in_units.to(dtypes[name]).view(torch.uint8)
    before = {name: cache.clone() for name, cache in caches.items()}
    specs = {name: full(2) if name == "float32" else full(2, dtype=torch.uint8) for name in caches}
    made = rerotation(caches, rotations, group(**specs), kept_as=kept_as)
    copied = BlockMove(group=0, source=1, target=4, first_position=FIRST + BLOCK_SIZE, num_tokens=BLOCK_SIZE)
    kept = BlockMove(group=0, source=2, target=2, first_position=FIRST + 2 * BLOCK_SIZE, num_tokens=BLOCK_SIZE)
    made.apply(crossing(copied, kept))
    assert torch.equal(caches["copied"][4], before["copied"][1])
    factor = ROTARY.frequencies(1).attention_factor
    assert factor > 1.05
    for name, scale in scales.items():
        found = (caches[name].view(dtypes[name]).float() * scale).double()
        expected = at_scale(keys[name], WHOLE, 1) / factor
        length = expected.unflatten(-1, (2, -1)).norm(dim=-2).repeat(1, 1, 1, 2)  # of an element's pair
        for source, target in ((1, 4), (2, 2)):
            # Rounded when it was cached, and when it was turned.
            rounded = 2.1 * ROUNDED_TO_NEAREST[str(dtypes[name]).removeprefix("torch.")] + KEY_ROUNDING
            assert ((found[target, ..., :HEAD_DIM] - expected[source]).abs() <= rounded * length[source]).all(), name
            assert torch.equal(caches[name][target, ..., -HEAD_DIM:], before[name][source, ..., -HEAD_DIM:]), name
        others = [0, 1, 3, 5]
        assert torch.equal(caches[name][others], before[name][others])


def test_groups_whose_keys_nothing_turns_are_left_alone() -> None:
    keys = {name: unrotated() for name in ("local", "global")}
    caches = {name: torch.cat([at_scale(each, WHOLE, 0), each], -1).float() for name, each in keys.items()}
    before = caches["local"].clone()
    groups = [KVCacheGroupSpec([name], full()) for name in caches]
    made = rerotation(caches, {"local": None, "global": WHOLE}, *groups)
    assert made.groups == [1]
    made.apply(crossing(*in_place(1)))
    assert torch.equal(caches["local"], before)
    assert_turned(caches["global"][..., :HEAD_DIM], at_scale(keys["global"], WHOLE, 1))
    made.warm_up(2)
    assert torch.equal(caches["local"], before)


def test_caches_of_which_it_is_not_known_where_rotated_keys_lie_are_refused() -> None:
    tokens_before_heads = torch.zeros(NUM_BLOCKS, BLOCK_SIZE, 2, 2 * HEAD_DIM)
    layers = KVCacheGroupSpec(["layer"], full(2))
    rule = r"must be \[num_blocks, 2, 4 or a part of it, width of keys and values\], got \[6, 4, 2, 16\] for layer"
    with pytest.raises(ValueError, match=rule):
        rerotation({"layer": tokens_before_heads}, {"layer": WHOLE}, layers)
    # What is only copied may lie in any order.
    rerotation({"layer": tokens_before_heads}, {"layer": None}, layers)
