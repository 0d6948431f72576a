"""A worker turns the keys of all layers, also of layers whose caches differ in shape or share one."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, UniformTypeKVCacheSpecs

from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.kv.crossing import Rotation
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.kv.moves import BlockMove, Moves
from posenc_runtime.vllm_adapter.worker import cpu_key_order
from posenc_runtime.vllm_adapter.worker.rerotation import Rerotation
from posenc_runtime.vllm_adapter.worker.worker_state import Rotary
from tests.kernels.test_rerotate import rotated
from tests.tolerance import KEY_ROUNDING

HEAD_DIM, BLOCK_SIZE, NUM_BLOCKS = 8, 4, 6  # of the caches
LINEAR = Deployment(rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=256, max_model_len=512)
SPEC = RotarySpec(rotary_dim=HEAD_DIM, rope_theta=100.0, original_max_position_embeddings=256)
ROTARY = Rotary(deployment=LINEAR, head_dim=HEAD_DIM, own=SPEC, is_neox_style=True)


@pytest.mark.parametrize("split", [1, 2], ids=["blocks-as-scheduled", "blocks-of-half-the-size"])
def test_keys_of_every_layer_are_turned_once(split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows of keys and values, as on a GPU: how vLLM's CPU backend packs keys has tests of its own.
    monkeypatch.setattr(cpu_key_order, "cpu_key_order", lambda *_: None)
    heads = {"wide": 4, "narrow": 1, "another-wide": 4}
    specs = UniformTypeKVCacheSpecs.from_specs(
        {
            name: FullAttentionSpec(
                block_size=BLOCK_SIZE * split, num_kv_heads=num_heads, head_size=HEAD_DIM, dtype=torch.float32
            )
            for name, num_heads in heads.items()
        }
    )
    assert specs is not None
    generator = torch.Generator().manual_seed(3)
    at_scale_1 = {
        name: torch.randn(NUM_BLOCKS, num_heads, BLOCK_SIZE, HEAD_DIM, generator=generator, dtype=torch.float64)
        for name, num_heads in heads.items()
    }
    positions = torch.arange(NUM_BLOCKS * BLOCK_SIZE).view(NUM_BLOCKS, 1, BLOCK_SIZE) + 40
    caches = {
        name: torch.cat([rotated(keys, positions, ROTARY.frequencies(0), HEAD_DIM, True), keys], -1).float()
        for name, keys in at_scale_1.items()
    }
    caches["reads-the-narrow-one"] = caches["narrow"]
    group = KVCacheGroupSpec([*heads, "reads-the-narrow-one"], specs)
    vllm_config: Any = types.SimpleNamespace(
        compilation_config=types.SimpleNamespace(
            static_forward_context={name: types.SimpleNamespace(isa="") for name in caches}
        )
    )
    kv_cache_config: Any = types.SimpleNamespace(kv_cache_groups=[group])
    scheduled = BLOCK_SIZE * split
    moves = Moves.of(
        BlockMove(group=0, source=block, target=block, first_position=40 + block * scheduled, num_tokens=scheduled)
        for block in range(NUM_BLOCKS // split)
    )
    Rerotation(vllm_config, kv_cache_config, caches, [ROTARY]).apply(Rotation(from_index=0, to_index=1, moves=moves))
    for name, keys in at_scale_1.items():
        turned, values = caches[name].double().split(HEAD_DIM, -1)
        expected = rotated(keys, positions, ROTARY.frequencies(1), HEAD_DIM, True)
        torch.testing.assert_close(turned, expected, rtol=0, atol=KEY_ROUNDING * expected.abs().max().item())
        assert torch.equal(values, keys.float().double())


@pytest.mark.parametrize(
    ("shape", "rotary", "rule"),
    [
        pytest.param(
            (NUM_BLOCKS, BLOCK_SIZE, 2, 2 * HEAD_DIM),
            ROTARY,
            r"of the shape \[num_blocks, 2, 4 or a divisor of it, 16\], got \[6, 4, 2, 16\] for layer",
            id="tokens-before-heads",
        ),
        pytest.param(
            (NUM_BLOCKS, 2, BLOCK_SIZE, 2 * HEAD_DIM),
            dataclasses.replace(ROTARY, head_dim=4),
            "layer caches heads of 8 elements, and the rotary embedding gets 4: set",
            id="heads-put-together",
        ),
    ],
)
def test_caches_of_which_it_is_not_known_where_rotated_keys_lie_are_refused(
    shape: tuple[int, ...], rotary: Rotary, rule: str
) -> None:
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=2, head_size=HEAD_DIM, dtype=torch.float32)
    kv_cache_config: Any = types.SimpleNamespace(kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    vllm_config: Any = types.SimpleNamespace(
        compilation_config=types.SimpleNamespace(static_forward_context={"layer": types.SimpleNamespace(isa="")})
    )
    with pytest.raises(ValueError, match=rule):
        Rerotation(vllm_config, kv_cache_config, {"layer": torch.zeros(shape)}, [rotary])
