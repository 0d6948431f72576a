"""What rotates each layer's keys is found by a forward of the model that vLLM built."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.errors import Unsupported
from posenc_runtime.vllm_adapter.in_worker.layer_rotations import Turned, layer_rotations
from posenc_runtime.vllm_adapter.in_worker.rotary import building, long_embedding, registration
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE, Rotary
from tests.vllm_adapter.in_worker.rotating_model import (
    HEAD_DIM,
    LATENT,
    NUM_KV_HEADS,
    TRAINED,
    Attention,
    LatentLayer,
    Layer,
    Missing,
    Model,
    RecurrentLayer,
    Rotate,
)

# Tables of YaRN also differ in length from scale to scale, by their attention factors.
YARN = Deployment(rope_type="yarn", scales=(1.0, 2.0, 4.0), original_max_position_embeddings=TRAINED, max_model_len=128)


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    registration.register()
    for name, value in (("block_row_offset", None), ("block_size", {}), ("rotaries", []), ("model", None)):
        monkeypatch.setattr(STATE, name, value)
    monkeypatch.setattr(building, "checked_deployment", lambda: YARN)
    monkeypatch.setattr("vllm.distributed.get_pp_group", lambda: types.SimpleNamespace(is_first_rank=True))


@functools.cache
def engine() -> VllmConfig:
    return VllmConfig()


def built(make: Callable[[], Any]) -> Any:
    with set_current_vllm_config(engine()):
        return make()


def scaled(
    rotary_dim: int = HEAD_DIM,
    *,
    head_dim: int = HEAD_DIM,
    is_neox_style: bool = True,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """A rotary embedding that the deployment scales."""
    return built(lambda: RotaryEmbedding(head_dim, rotary_dim, TRAINED, 100.0, is_neox_style, dtype))


def unscaled(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One that it leaves to vLLM, as that of layers with a window is."""
    with monkeypatch.context() as context:
        context.setattr(building, "checked_deployment", lambda: None)
        return built(lambda: RotaryEmbedding(HEAD_DIM, HEAD_DIM, TRAINED, 10.0, True, torch.float32))


def asked(
    model: Model, *, has_other_rotations: bool = False, num_axes: int = 1, dtype: torch.dtype = torch.float32
) -> list[Turned | None]:
    """What is found for each layer of a model, whose modules are as they were afterwards."""
    vllm_config = VllmConfig()
    described: Any = types.SimpleNamespace(
        uses_mrope=num_axes > 1, mrope_num_dims=num_axes, dtype=dtype, get_vocab_size=lambda: 10
    )
    vllm_config.model_config = described
    every_layer = {f"layers.{number}": layer.attention for number, layer in enumerate(model.to(dtype).layers)}
    vllm_config.compilation_config.static_forward_context = every_layer
    layers = {name: layer for name, layer in every_layer.items() if isinstance(layer, Attention)}
    rotaries = [rotary.as_built() for rotary in STATE.rotaries]
    tables = [table(rotary).clone() for rotary in rotaries]
    try:
        found = layer_rotations(model, vllm_config, layers, rotaries, has_other_rotations=has_other_rotations)
    finally:
        assert STATE.asked_rows is None
        assert all(torch.equal(table(rotary), before) for rotary, before in zip(rotaries, tables, strict=True))
        assert not any("forward" in vars(layer) for layer in every_layer.values())
    assert list(found) == list(layers)
    return list(found.values())


def table(rotary: Rotary) -> Tensor:
    found: Tensor = getattr(rotary.module, "long_short_cos_sin_cache", None)
    return rotary.module.cos_sin_cache if found is None else found


def part_of_heads(embedding: Any, first: int) -> Rotate:
    """As MiniCPM 3 does: the embedding gets a part of each head."""

    def rotate(positions: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        part = slice(first, first + embedding.rotary_dim)
        queries, keys = queries.view(len(queries), -1, HEAD_DIM), keys.view(len(keys), -1, HEAD_DIM)
        queries, keys = queries.clone(), keys.clone()
        queries[..., part], keys[..., part] = embedding(
            positions, queries[..., part].contiguous(), keys[..., part].contiguous()
        )
        return queries.flatten(1), keys.flatten(1)

    return rotate


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layers_that_all_rotate_whole_heads_are_all_turned(dtype: torch.dtype) -> None:
    embedding = scaled(dtype=dtype)
    [rotary] = STATE.rotaries
    model = Model(*(Layer(embedding, Attention()) for _ in range(3)))
    assert asked(model, dtype=dtype) == [Turned(rotary, 0, is_neox_style=True)] * 3


def test_a_layer_that_rotates_only_under_a_condition_is_asked_for_itself() -> None:
    embedding = scaled()
    model = Model(*(Layer(embedding if number % 4 != 3 else None, Attention()) for number in range(5)))
    assert [turned is not None for turned in asked(model)] == [True, True, True, False, True]


def test_layers_with_recurrent_states_do_not_make_tokens_differ() -> None:
    """Or the keys of layers behind them would differ by more than their rotation."""
    embedding = scaled()
    model = Model(RecurrentLayer(), Layer(embedding, Attention()), RecurrentLayer(), Layer(None, Attention()))
    assert [turned is not None for turned in asked(model)] == [True, False]


def test_a_drafter_may_leave_embeddings_out_at_position_0() -> None:
    """As layers of MTP do. Neither pass is at that position."""

    class Drafter(Model):
        def forward(
            self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any, inputs_embeds: Tensor | None
        ) -> Tensor:
            assert input_ids is not None
            states = self.embedding(input_ids) * (positions > 0)[:, None]
            for layer in self.layers:
                states = layer(positions, states)
            return states

    embedding = scaled()
    [rotary] = STATE.rotaries
    assert asked(Drafter(Layer(embedding, Attention()))) == [Turned(rotary, 0, is_neox_style=True)]


def test_neighbours_or_halves_are_told_by_the_keys_and_not_by_the_name_of_a_style() -> None:
    embedding = scaled(is_neox_style=False)
    assert [turned and turned.is_neox_style for turned in asked(Model(Layer(embedding, Attention())))] == [False]
    [rotary] = STATE.rotaries

    def halves(positions: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Some models order the elements of a head otherwise than their embedding."""

        def paired(states: Tensor) -> Tensor:
            return states.view(-1, 2, HEAD_DIM // 2).transpose(1, 2).reshape(states.shape)

        def apart(states: Tensor) -> Tensor:
            return states.view(-1, HEAD_DIM // 2, 2).transpose(1, 2).reshape(states.shape)

        queries, keys = embedding(positions, paired(queries), paired(keys))
        return apart(queries), apart(keys)

    assert asked(Model(Layer(halves, Attention()))) == [Turned(rotary, 0, is_neox_style=True)]


@pytest.mark.parametrize("is_neox_style", [True, False])
def test_the_rotated_part_may_be_the_beginning_or_the_end_of_a_head(is_neox_style: bool) -> None:
    beginning = scaled(6, is_neox_style=is_neox_style)
    assert asked(Model(Layer(beginning, Attention()))) == [Turned(STATE.rotaries[0], 0, is_neox_style)]
    STATE.rotaries.clear()
    end = part_of_heads(scaled(6, head_dim=6, is_neox_style=is_neox_style), HEAD_DIM - 6)
    assert asked(Model(Layer(end, Attention()))) == [Turned(STATE.rotaries[0], HEAD_DIM - 6, is_neox_style)]


def test_of_latents_the_part_behind_them_is_turned() -> None:
    embedding = scaled(is_neox_style=False)
    [rotary] = STATE.rotaries
    attention = Attention()
    attention.kv_lora_rank = LATENT
    layer = LatentLayer(embedding, attention)
    assert asked(Model(layer)) == [Turned(rotary, LATENT, is_neox_style=False)]


def test_of_several_scaled_embeddings_each_layer_has_its_own() -> None:
    whole, part = scaled(), scaled(8)
    of_whole, of_part = STATE.rotaries
    model = Model(Layer(part, Attention()), Layer(whole, Attention()))
    found = asked(model)
    assert found == [Turned(of_part, 0, is_neox_style=True), Turned(of_whole, 0, is_neox_style=True)]


def test_a_checkpoint_whose_own_rotation_has_an_attention_factor_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding

    tuned = dataclasses.replace(
        YARN, parameters={"factor": 4.0, "old_context_len": 32}, original_max_position_embeddings=128, max_model_len=512
    )
    monkeypatch.setattr(building, "checked_deployment", lambda: tuned)
    embedding = built(lambda: YaRNScalingRotaryEmbedding(HEAD_DIM, HEAD_DIM, 32, 100.0, True, 4.0, torch.float32))
    [rotary] = STATE.rotaries
    assert rotary.frequencies(0).attention_factor > 1.1
    assert asked(Model(Layer(embedding, Attention()))) == [Turned(rotary, 0, is_neox_style=True)]


def test_longrope_is_asked_by_its_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = [1.0 + 0.01 * pair for pair in range(8)], [1.0 + 2.0 * pair for pair in range(8)]
    deployment = Deployment(
        rope_type="longrope",
        parameters={"short_factor": short, "long_factor": long, "attention_factor": 1.0},
        scales=(1.0, 4.0),
        original_max_position_embeddings=TRAINED,
        max_model_len=128,
    )
    monkeypatch.setattr(building, "checked_deployment", lambda: deployment)
    described: Any = types.SimpleNamespace(max_model_len=128, uses_mrope=False)
    monkeypatch.setattr(building, "_checkpoint_of", lambda *_: None)
    monkeypatch.setattr(engine(), "model_config", described)
    embedding = built(
        lambda: long_embedding.PosencLongRotaryEmbedding(
            HEAD_DIM, HEAD_DIM, 128, TRAINED, 100.0, True, torch.float32, short, long, 1.0, 1.0
        )
    )
    [rotary] = STATE.rotaries
    assert asked(Model(Layer(embedding, Attention()))) == [Turned(rotary, 0, is_neox_style=True)]


@pytest.mark.parametrize("interleaved", [False, True], ids=["sections", "interleaved"])
def test_a_model_whose_positions_have_three_axes_is_asked_by_all_of_them(interleaved: bool) -> None:
    embedding = built(
        lambda: MRotaryEmbedding(
            HEAD_DIM, HEAD_DIM, TRAINED, 100.0, True, torch.float32,
            mrope_section=[4, 2, 2], mrope_interleaved=interleaved,
        )
    )  # fmt: skip
    [rotary] = STATE.rotaries
    given = []

    class Seeing(Model):
        def forward(
            self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any, inputs_embeds: Tensor | None
        ) -> Tensor:
            given.append(positions.tolist())
            return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)

    found = asked(Seeing(Layer(embedding, Attention())), num_axes=3)
    assert found == [Turned(rotary, 0, is_neox_style=True)]
    assert given == [[[position] * 7] * 3 for position in (3, 7)]


def test_a_later_stage_of_a_pipeline_is_asked_by_states_and_not_by_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding = scaled()
    monkeypatch.setattr("vllm.distributed.get_pp_group", lambda: types.SimpleNamespace(is_first_rank=False))
    model = Model(Layer(embedding, Attention()), Layer(None, Attention()))
    model.embedding = Missing()  # type: ignore[assignment]
    assert [turned is not None for turned in asked(model)] == [True, False]


def test_layers_with_a_window_may_have_a_rotary_embedding_that_is_not_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding, local = scaled(), unscaled(monkeypatch)
    model = Model(Layer(local, Attention(sliding_window=8)), Layer(embedding, Attention()))
    assert [turned is not None for turned in asked(model, has_other_rotations=True)] == [False, True]
    with pytest.raises(Unsupported, match=r"rotary embedding that is scaled, but keys of layers\.0 also depend on pos"):
        asked(model)


def test_a_layer_that_sees_all_has_no_embedding_that_is_not_scaled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embedding, local = scaled(), unscaled(monkeypatch)
    model = Model(Layer(embedding, Attention()), Layer(local, Attention()))
    with pytest.raises(Unsupported, match=r"but keys of layers\.1 also depend on positions in another way"):
        asked(model, has_other_rotations=True)


def test_a_layer_that_reads_the_table_by_position_is_refused() -> None:
    embedding = scaled()

    def past_it(positions: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = embedding.cos_sin_cache[positions].chunk(2, -1)
        cos, sin = cos.repeat(1, 2 * NUM_KV_HEADS), sin.repeat(1, 2 * NUM_KV_HEADS)
        return queries, keys * cos + keys.roll(HEAD_DIM // 2, -1) * sin

    model = Model(Layer(embedding, Attention()), Layer(past_it, Attention()))
    with pytest.raises(
        Unsupported,
        match=r"but layers\.1 reads the embedding's table without calling the embedding: serve this model with",
    ):
        asked(model)


@pytest.mark.parametrize("sliding_window", [None, 8])
def test_a_layer_that_rotates_and_adds_positions_of_its_own_is_refused(sliding_window: int | None) -> None:
    embedding = scaled()

    def both(positions: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        queries, keys = embedding(positions, queries, keys)
        return queries, keys * (1 + 0.1 * positions[:, None])

    with pytest.raises(Unsupported, match=r"but keys of layers\.0 also depend on positions in another way"):
        asked(Model(Layer(both, Attention(sliding_window))), has_other_rotations=True)


def test_weights_that_are_no_numbers_are_refused() -> None:
    model = Model(Layer(scaled(), Attention()))
    for parameter in model.layers[0].keys.parameters():
        parameter.data[0] = torch.nan
    with pytest.raises(
        Unsupported, match=r"must compute finite numbers, but keys of layers\.0 are not: its weights are"
    ):
        asked(model)


def test_keys_of_zeros_say_nothing() -> None:
    model = Model(Layer(scaled(), Attention()))
    for parameter in model.layers[0].keys.parameters():
        nn.init.zeros_(parameter)
    with pytest.raises(Unsupported, match=r"but all keys of layers\.0 are zeros: load weights that give other keys"):
        asked(model)


def test_a_layer_that_no_token_reaches_is_named() -> None:
    class Skipping(Model):
        def forward(
            self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any, inputs_embeds: Tensor | None
        ) -> Tensor:
            return self.layers[0](positions, self.embedding(input_ids))

    embedding = scaled()
    with pytest.raises(Unsupported, match=r"but no token reached layers\.1$"):
        asked(Skipping(Layer(embedding, Attention()), Layer(embedding, Attention())))


def test_a_rotation_in_the_middle_of_heads_is_refused() -> None:
    model = Model(Layer(part_of_heads(scaled(6, head_dim=6), 4), Attention()))
    with pytest.raises(
        Unsupported, match=r"beginning or the end of each head, .* but layers\.0 changes them in another"
    ):
        asked(model)


def test_a_rotation_of_some_heads_alone_is_refused() -> None:
    embedding = scaled()

    def first_head(positions: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        queries, rotated = embedding(positions, queries, keys.clone())
        return queries, torch.cat([rotated[:, :HEAD_DIM], keys[:, HEAD_DIM:]], -1)

    with pytest.raises(Unsupported, match=r"layers\.0 changes them in another way"):
        asked(Model(Layer(first_head, Attention())))


def test_keys_that_are_never_turned_may_be_changed_after_their_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "checked_deployment", lambda: dataclasses.replace(YARN, on_crossing="recompute"))
    embedding = scaled()

    def normed(positions: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:  # as Hunyuan does
        queries, rotated = embedding(positions, queries, keys.clone())
        return queries, rotated * torch.linspace(0.5, 2.0, rotated.shape[-1])

    rotates, does_not = asked(Model(Layer(normed, Attention()), Layer(None, Attention())))
    assert rotates is not None and does_not is None


def test_a_model_that_fails_is_left_as_it_was() -> None:
    def failing(positions: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        raise RuntimeError("out of memory")

    scaled()
    with pytest.raises(RuntimeError, match="out of memory"):
        asked(Model(Layer(failing, Attention())))


def test_a_recurrent_layer_that_rotates_its_state_is_not_re_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent state is a sum over tokens, which nothing turns afterwards."""
    for deployment in (YARN, dataclasses.replace(YARN, on_crossing="recompute")):
        STATE.rotaries.clear()
        monkeypatch.setattr(building, "checked_deployment", lambda deployment=deployment: deployment)
        embedding, recurrent = scaled(), RecurrentLayer()
        recurrent.attention.rotary = embedding
        model = Model(recurrent, Layer(embedding, Attention()))
        if deployment.rerotates:
            with pytest.raises(Unsupported, match=r"but layers\.0 rotates what enters its recurrent state: set on_cr"):
                asked(model)
        else:
            assert [turned is not None for turned in asked(model)] == [True]
