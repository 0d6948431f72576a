"""Where float8 keys are re-rotated, queries carry the square of the attention factor, and keys are only rotated."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.rotary import building, long_embedding, registration
from posenc_runtime.vllm_adapter.in_worker.rotary.transformers_embedding import PosencTransformersRotaryEmbedding
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE
from tests.tolerance import BFLOAT16_LAST_BIT, SOME_FLOAT32_OPERATIONS

HEADS, HEAD_DIM, TRAINED = 3, 16, 64
POSITIONS = torch.tensor([5, 63, 5, 127, 200])
AT_SCALES = torch.tensor([0, 0, 1, 1, 2])
FIRST_ROWS = torch.tensor([0, 64, 64 + 128])
YARN = Deployment(
    rope_type="yarn", scales=(1.0, 2.0, 4.0), original_max_position_embeddings=TRAINED, max_model_len=4 * TRAINED
)
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [1.5] * 8, "short_mscale": 1.1, "long_mscale": 1.3}
LONGROPE = dataclasses.replace(YARN, rope_type="longrope", parameters=FACTORS | {"factor": 4.0})


def plain(rotary_dim: int = HEAD_DIM) -> Any:
    return RotaryEmbedding(HEAD_DIM, rotary_dim, TRAINED, 100.0, True, torch.float32)


def with_axes() -> Any:
    return MRotaryEmbedding(HEAD_DIM, HEAD_DIM, TRAINED, 100.0, True, torch.float32, mrope_section=[4, 2, 2])


def long() -> Any:
    return long_embedding.PosencLongRotaryEmbedding(
        *(HEAD_DIM, HEAD_DIM, 4 * TRAINED, TRAINED, 100.0, True, torch.float32),
        *([1.0] * 8, [1.5] * 8, 1.1, 1.3),
    )


def own_yarn() -> Any:
    return YaRNScalingRotaryEmbedding(HEAD_DIM, HEAD_DIM, TRAINED // 4, 100.0, True, 4.0, torch.float32)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Builds an embedding in an engine with a data type of its cache."""
    registration.register()
    monkeypatch.setattr(STATE, "rotaries", [])
    monkeypatch.setattr(STATE, "model", None)

    def build(cache_dtype: str, make: Any = plain, deployment: Deployment = YARN) -> Any:
        monkeypatch.setattr(building, "checked_deployment", lambda: deployment)
        engine: Any = VllmConfig()
        engine.model_config = types.SimpleNamespace(uses_mrope=False, max_model_len=4 * TRAINED)
        monkeypatch.setattr(
            building, "_checkpoint_of", lambda *_: Checkpoint(max_position_embeddings=TRAINED, spec=None)
        )
        engine.cache_config.cache_dtype = cache_dtype
        with set_current_vllm_config(engine):
            return make()

    return build


@pytest.fixture
def rotated(monkeypatch: pytest.MonkeyPatch) -> Any:
    def rotate(module: nn.Module, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries and keys before and after, each ``[num_tokens, num_heads, head_dim]``."""
        first_rows = FIRST_ROWS * getattr(module, "posenc_positions_factor", 1)
        monkeypatch.setattr(STATE, "asked_rows", POSITIONS + first_rows[AT_SCALES])
        generator = torch.Generator().manual_seed(2)
        packed = torch.randn(len(POSITIONS), 2 * HEADS * HEAD_DIM, generator=generator).to(dtype)
        query, key = packed.clone().chunk(2, dim=-1)  # views of a packed projection, as models pass them
        positions = POSITIONS.expand(3, -1).contiguous() if isinstance(module, MRotaryEmbedding) else POSITIONS
        after = module(positions, query, key)
        whole = [part.reshape(len(POSITIONS), HEADS, HEAD_DIM) for part in (*packed.chunk(2, dim=-1), *after)]
        return whole[0], whole[1], whole[2], whole[3]

    return rotate


EMBEDDINGS = {
    "whole-heads": (plain, YARN, HEAD_DIM),
    "half-of-heads": (lambda: plain(8), YARN, 8),
    "three-axes": (with_axes, YARN, HEAD_DIM),
    "longrope": (long, LONGROPE, HEAD_DIM),
}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_scores_are_the_same_and_keys_only_rotated(name: str, built: Any, rotated: Any) -> None:
    make, deployment, rotary_dim = EMBEDDINGS[name]
    _, key, queries, keys = rotated(built("fp8", make, deployment))
    _, _, their_queries, their_keys = rotated(built("auto", make, deployment))
    scores, theirs = (queries * keys)[..., :rotary_dim].sum(-1), (their_queries * their_keys)[..., :rotary_dim].sum(-1)
    assert (scores - theirs).abs().max() < SOME_FLOAT32_OPERATIONS * theirs.abs().max() * 4
    assert torch.equal(queries[..., rotary_dim:], their_queries[..., rotary_dim:])
    longer = their_keys[..., :rotary_dim].norm(dim=-1) / keys[..., :rotary_dim].norm(dim=-1)
    factors = torch.tensor([of_scale.attention_factor for of_scale in map(STATE.rotaries[-1].frequencies, range(3))])
    assert factors[2] > 1.1 * factors[0]
    expected = (factors[AT_SCALES] / factors[0])[:, None].expand_as(longer)
    torch.testing.assert_close(longer, expected, rtol=SOME_FLOAT32_OPERATIONS, atol=0)
    lengths, before = (part[..., :rotary_dim].norm(dim=-1) for part in (keys, key))
    torch.testing.assert_close(lengths, before * factors[0], rtol=SOME_FLOAT32_OPERATIONS, atol=0)


@pytest.mark.parametrize("make", [plain, own_yarn], ids=["plain", "a-checkpoint-with-yarn"])
def test_unscaled_tokens_are_those_of_stock_vllm_to_the_bit(make: Any, built: Any, rotated: Any) -> None:
    yarn = dataclasses.replace(
        YARN, parameters={"factor": 4.0, "old_context_len": TRAINED // 4} if make is own_yarn else {}
    )
    module = built("fp8", make, yarn)
    assert module.posenc_multiplies
    query, key, queries, keys = rotated(module)
    stock = (
        type(module)
        .__mro__[1]
        .forward_native(
            types.SimpleNamespace(
                **{
                    name: getattr(module, name)
                    for name in ("head_size", "rotary_dim", "is_neox_style", "forward_static")
                },
                _match_cos_sin_cache_dtype=lambda _: type(module).__mro__[1]._compute_cos_sin_cache(module),
            ),
            POSITIONS[:2],
            query[:2].flatten(1),
            key[:2].flatten(1),
        )
    )
    for ours, theirs in zip((queries, keys), stock, strict=True):
        assert torch.equal(ours[:2].flatten(1), theirs)


def test_a_bfloat16_query_is_multiplied_in_float32(built: Any, rotated: Any) -> None:
    module = built("fp8")
    _, _, queries, _ = rotated(module, torch.bfloat16)
    module.posenc_multiplies = False
    _, _, unmultiplied, _ = rotated(module, torch.bfloat16)
    factor = STATE.rotaries[-1].frequencies(2).attention_factor ** 2
    expected = unmultiplied[4].double() * factor
    assert ((queries[4].double() - expected).abs() <= BFLOAT16_LAST_BIT / 2 * expected.abs()).all()


@pytest.mark.parametrize(
    ("cache_dtype", "settings"),
    [
        pytest.param("auto", {}, id="16-bits"),
        pytest.param("bfloat16", {}, id="bfloat16"),
        pytest.param("fp8", {"on_crossing": "recompute"}, id="recomputed"),
        pytest.param("fp8", {"on_crossing": "pin"}, id="pinned"),
        pytest.param("fp8", {"rope_type": "ntk"}, id="without-factor"),
    ],
)
def test_elsewhere_queries_are_not_touched(cache_dtype: str, settings: dict[str, Any], built: Any) -> None:
    module = built(cache_dtype, deployment=dataclasses.replace(YARN, **settings))
    assert not module.posenc_multiplies and not hasattr(module, "posenc_query_factors")
    if settings.get("rope_type") != "ntk":
        last = module.cos_sin_cache[-1]
        factor = STATE.rotaries[-1].frequencies(2).attention_factor
        assert abs((last[:8] ** 2 + last[8:] ** 2).sqrt() - factor).max() < SOME_FLOAT32_OPERATIONS


def test_prefixes_that_are_reused_re_rotated_are_float8_keys_too(built: Any) -> None:
    assert built(
        "fp8", deployment=dataclasses.replace(YARN, on_crossing="pin", prefix_reuse="rerotate")
    ).posenc_multiplies


def test_the_transformers_backend_is_refused_where_the_factor_differs(built: Any) -> None:
    config = LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        max_position_embeddings=TRAINED,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )

    def make() -> bool:
        return PosencTransformersRotaryEmbedding(LlamaRotaryEmbedding(config), None).scale()

    with pytest.raises(Unsupported, match=r"for a model on the Transformers backend .* by yarn, got float8"):
        built("fp8", make)
    assert built("fp8", make, dataclasses.replace(YARN, rope_type="ntk"))
    assert built("auto", make)
