"""The stacked table, and the row that a token takes in it."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from posenc_runtime.encodings.spec import Frequencies, RotarySpec
from posenc_runtime.kv.deployment import UNROTATED, Deployment
from posenc_runtime.vllm_adapter.checkpoint.checkpoint import Checkpoint
from posenc_runtime.vllm_adapter.contract.attention_choice import KEY, AttentionChoice
from posenc_runtime.vllm_adapter.in_worker.rotary import building, embedding, registration
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE, Rotary
from tests.encodings.held_memory import HeldMemory
from tests.tolerance import COS_SIN_OF_TURNS, INV_FREQ_RELATIVE, SOME_FLOAT32_OPERATIONS, TABLE_ANGLE_RELATIVE

LINEAR = Deployment(rope_type="linear", scales=(1.0, 2.0, 4.0), original_max_position_embeddings=10, max_model_len=35)
SPEC = RotarySpec(rotary_dim=4, rope_theta=100.0, original_max_position_embeddings=10)
ROTARY = Rotary(deployment=LINEAR, head_dim=4, own=SPEC, is_neox_style=True)


def test_the_first_part_is_the_checkpoints_own_table_to_the_bit() -> None:
    unscaled = torch.randn(35, 4)
    assert torch.equal(embedding.stacked_table(ROTARY, unscaled)[:10], unscaled[:10])


def test_a_table_of_scale_1_alone_goes_on_where_the_checkpoints_own_table_ends() -> None:
    alone = dataclasses.replace(LINEAR, scales=(1.0,), allow_beyond_trained=True)
    unscaled = torch.randn(12, 4)
    table = embedding.stacked_table(dataclasses.replace(ROTARY, deployment=alone), unscaled)
    assert table.shape == (35, 4) and torch.equal(table[:12], unscaled)
    expected = torch.tensor([math.cos(34), math.cos(3.4), math.sin(34), math.sin(3.4)])
    torch.testing.assert_close(table[34], expected, rtol=0, atol=SOME_FLOAT32_OPERATIONS)


def test_each_further_part_is_the_table_of_its_scale() -> None:
    table = embedding.stacked_table(ROTARY, torch.zeros(35, 4))
    assert table.shape == (10 + 20 + 35, 4)
    for scale, offset, position in [(2, 10, 0), (2, 10, 19), (4, 30, 34)]:
        angles = [position / scale, position / scale * 0.1]
        expected = [math.cos(a) for a in angles] + [math.sin(a) for a in angles]
        torch.testing.assert_close(
            table[offset + position], torch.tensor(expected), rtol=0, atol=SOME_FLOAT32_OPERATIONS
        )


def test_the_table_has_the_data_type_of_the_model() -> None:
    assert embedding.stacked_table(ROTARY, torch.zeros(10, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_registering_twice_changes_nothing_and_stock_engines_keep_the_stock_table() -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    registration.register()
    registration.register()
    with set_current_vllm_config(VllmConfig()):
        module = RotaryEmbedding(8, 8, 16, 100.0, True, torch.float32)
    assert type(module).__name__ == "PosencRotaryEmbedding"
    assert module.name == "rotary_embedding"
    assert not module.posenc_scaled
    assert torch.equal(module.cos_sin_cache, RotaryEmbedding._compute_cos_sin_cache(module))


def test_a_stacked_table_is_built_with_64_mb_beside_it() -> None:
    trained = 2**18
    long = Deployment(
        rope_type="linear", scales=(1.0, 2.0), original_max_position_embeddings=trained, max_model_len=2 * trained
    )
    made = dataclasses.replace(ROTARY, deployment=long, head_dim=32, own=dataclasses.replace(ROTARY.own, rotary_dim=32))
    unscaled = torch.zeros(trained, 32, dtype=torch.bfloat16)
    with HeldMemory() as memory:
        table = embedding.stacked_table(made, unscaled)
    assert 0 < memory.most - table.nbytes <= 64e6


@pytest.mark.parametrize("is_fused", [False, True], ids=["table", "fused"])
def test_a_model_may_be_built_with_a_gpu_as_the_default_device(is_fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    def compared(ours: torch.Tensor, own: torch.Tensor, **_: Any) -> bool:
        """Tensors without numbers can be on a GPU that is not there, and are not to be compared."""
        assert ours.device == own.device
        return True

    def own_rotation(rotary_class: Any, module: Any) -> Frequencies:
        """Whose own attention factor is a number in the table."""
        return Frequencies(rotary_class._compute_inv_freq(module, module.base))

    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: LINEAR)
    monkeypatch.setattr(building, "is_fused", lambda _: is_fused)
    monkeypatch.setattr(STATE, "rotaries", [])
    monkeypatch.setattr(embedding, "own_rotation", own_rotation)
    monkeypatch.setattr(torch, "allclose", compared)
    monkeypatch.setattr(Deployment, "check_rotations", lambda *_: None)  # as well
    # These methods look for the GPU before they ask whether there are numbers to copy.
    monkeypatch.setattr(torch.Tensor, "copy_", lambda target, source: torch.ops.aten.copy_.default(target, source))
    monkeypatch.setattr(torch.Tensor, "__setitem__", lambda *_: None)
    with set_current_vllm_config(VllmConfig()), FakeTensorMode(), torch.device("cuda"):
        module = RotaryEmbedding(4, 4, 10, 100.0, True, torch.float32)
    assert module.posenc_scaled
    assert is_fused or (module.cos_sin_cache.device.type, len(module.cos_sin_cache)) == ("cuda", 10 + 20 + 35)


def test_a_graph_compiled_with_a_table_is_not_reused_where_attention_rotates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    def compiled_under(is_fused: bool) -> str:
        monkeypatch.setattr(building, "is_fused", lambda _: is_fused)
        vllm_config = VllmConfig()
        with set_current_vllm_config(vllm_config):
            RotaryEmbedding(4, 4, 10, 100.0, True, torch.float32)
        name: str = vllm_config.compute_hash()
        return name

    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: LINEAR)
    monkeypatch.setattr(STATE, "rotaries", [])
    assert compiled_under(True) != compiled_under(False) == compiled_under(False)


def test_an_engine_with_scales_is_not_built_beside_another_with_the_same_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import kv_transfer
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    def build(engine: VllmConfig) -> None:
        with set_current_vllm_config(engine):
            RotaryEmbedding(4, 4, 10, 100.0, True, torch.float32)

    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: LINEAR)
    monkeypatch.setattr(STATE, "rotaries", [])
    one, other = VllmConfig(), VllmConfig()
    build(one)
    monkeypatch.setattr(kv_transfer, "has_kv_transfer_group", lambda: True)
    build(one)
    with pytest.raises(ValueError, match="one engine with scales at a time, and an earlier one is still there"):
        build(other)
    assert [made.engine for made in STATE.rotaries] == [one.instance_id] * 2
    monkeypatch.setattr(kv_transfer, "has_kv_transfer_group", lambda: False)
    build(other)
    assert [made.engine for made in STATE.rotaries] == [other.instance_id]


@pytest.mark.parametrize("rope_type", ["yarn", "ntk", "linear"])
def test_what_turns_keys_away_from_scale_1_is_what_vllms_table_turned_them_by(
    rope_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    longest = 131_072
    deployment = Deployment(
        rope_type=rope_type, scales=(1.0, 2.0), original_max_position_embeddings=longest, max_model_len=2 * longest
    )
    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: deployment)
    monkeypatch.setattr(STATE, "rotaries", [])
    with set_current_vllm_config(VllmConfig()):
        module = RotaryEmbedding(64, 64, longest, 5e5, True, torch.float32)
    (made,) = STATE.rotaries
    position = longest - 1
    cos, sin = module.cos_sin_cache[position].double().chunk(2)
    angle = position * made.frequencies(0).inv_freq
    away = torch.atan2(sin, cos) - angle
    away = torch.atan2(away.sin(), away.cos()).abs()  # rad, at most half a turn
    # The table's own angle is a float32 product; a frequency that is wrong in its last place doubles what that loses.
    assert (away <= angle * TABLE_ANGLE_RELATIVE + 2 * COS_SIN_OF_TURNS).all()
    slow = made.frequencies(1).inv_freq
    unscaled = deployment.frequencies(made.own, 0).inv_freq
    left_alone = deployment.frequencies(made.own, 1).inv_freq == unscaled
    assert left_alone.any() == (rope_type != "linear")
    assert torch.equal(slow[left_alone], made.frequencies(0).inv_freq[left_alone])


@pytest.mark.parametrize("rope_type", ["rerope", "dual_chunk"])
def test_where_queries_turn_rows_past_the_trained_length_are_exact_and_others_vllms(
    rope_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    trained, longest, base = 4096, 2**20, 5e5
    deployment = Deployment(rope_type=rope_type, original_max_position_embeddings=trained, max_model_len=longest)
    registration.register()
    with set_current_vllm_config(VllmConfig()):
        stock = RotaryEmbedding(16, 16, longest, base, True, torch.float32).cos_sin_cache
        monkeypatch.setattr(building, "checked_deployment", lambda: deployment)
        table = RotaryEmbedding(16, 16, longest, base, True, torch.float32).cos_sin_cache
    assert table.shape == stock.shape and torch.equal(table[:trained], stock[:trained])
    inv_freq = (1 / base ** (torch.arange(0, 16, 2, dtype=torch.float32) / 16)).double()
    for position in (trained, 100_003, longest - 1):
        angle = position * inv_freq
        expected = torch.cat((angle.cos(), angle.sin()))
        assert (table[position].double() - expected).abs().amax() < COS_SIN_OF_TURNS
    assert (stock[-1].double() - expected).abs().amax() > 100 * COS_SIN_OF_TURNS  # what float32 products lose


OWN = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def llama3(factor: float, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Llama 3.1's rotary embedding, in a deployment that gives it this factor."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding

    deployment = Deployment(
        rope_type="llama3",
        parameters=OWN | {"factor": factor, "old_context_len": 32},
        scales=(1.0, 2.0),
        original_max_position_embeddings=128,
        max_model_len=256,
    )
    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: deployment)
    monkeypatch.setattr(STATE, "rotaries", [])
    with set_current_vllm_config(VllmConfig()):
        return Llama3RotaryEmbedding(16, 16, 256, 100.0, True, torch.float32, 8.0, 1.0, 4.0, 32)


def test_scale_1_of_a_llama_3_1_is_vllms_own_table_and_scale_2_has_twice_its_factor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding

    module = llama3(8.0, monkeypatch)
    assert type(module).__name__ == "PosencLlama3RotaryEmbedding" and module.posenc_scaled
    own, scaled = module.cos_sin_cache[:128], module.cos_sin_cache[128:]
    assert torch.equal(own, Llama3RotaryEmbedding._compute_cos_sin_cache(module)[:128])
    module.scaling_factor = 16.0
    torch.testing.assert_close(
        scaled, Llama3RotaryEmbedding._compute_cos_sin_cache(module), rtol=0, atol=256 * INV_FREQ_RELATIVE
    )


def test_where_nothing_is_scaled_a_rotary_embedding_keeps_its_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    unscaled = Deployment(
        rope_type=UNROTATED, original_max_position_embeddings=10, max_model_len=35, allow_beyond_trained=True
    )
    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: unscaled)
    monkeypatch.setattr(STATE, "rotaries", [])
    with set_current_vllm_config(VllmConfig()):
        module = RotaryEmbedding(8, 8, 35, 100.0, True, torch.float32)
    assert not module.posenc_scaled
    assert torch.equal(module.cos_sin_cache, RotaryEmbedding._compute_cos_sin_cache(module))


def test_parameters_that_say_another_rotation_than_the_checkpoint_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match="scale 1 must rotate exactly as the checkpoint does, got another rotation by llama3"
    ):
        llama3(4.0, monkeypatch)


def test_where_attention_rotates_queries_and_keys_pass_and_no_table_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: LINEAR)
    monkeypatch.setattr(building, "is_fused", lambda _: True)
    monkeypatch.setattr(STATE, "rotaries", [])
    with set_current_vllm_config(VllmConfig()):
        module = RotaryEmbedding(8, 8, 35, 100.0, False, torch.float32)
    query, key = torch.randn(3, 16), torch.randn(3, 8)
    given = query.clone(), key.clone()
    passed = module(torch.arange(3), query, key)
    assert passed[0] is query and passed[1] is key
    assert torch.equal(query, given[0]) and torch.equal(key, given[1])
    assert module.cos_sin_cache.shape == (0, 8)
    assert [made.is_fused for made in STATE.rotaries] == [True]


@pytest.mark.parametrize(
    ("fused", "fused_keys", "factor_on_keys"),
    [(True, "pure", False), (True, "stock", True), (False, "pure", True)],
    ids=["pure", "stock-bytes", "tables"],
)
def test_keys_carry_the_attention_factor_unless_attention_rotates(
    fused: bool, fused_keys: Any, factor_on_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config

    monkeypatch.setattr(building, "is_fused", lambda _: fused)
    monkeypatch.setattr(STATE, "rotaries", [])
    choice = AttentionChoice(fused_keys=fused_keys).to_mapping()
    with set_current_vllm_config(VllmConfig(additional_config={KEY: choice})):
        module = types.SimpleNamespace(rotary_dim=4, base=100.0, head_size=4)
        building.enter(LINEAR, module, Frequencies(torch.tensor([1.0, 0.1])), is_neox_style=True)
    assert [made.factor_on_keys for made in STATE.rotaries] == [factor_on_keys]


def checkpoint(*, has_other_rotations: bool) -> Checkpoint:
    return Checkpoint(max_position_embeddings=10, spec=SPEC, has_other_rotations=has_other_rotations)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Builds an embedding of a base and a width in a model with a checkpoint."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: LINEAR)
    monkeypatch.setattr(STATE, "rotaries", [])
    engine: Any = VllmConfig()
    engine.model_config = types.SimpleNamespace(uses_mrope=False)

    def built(
        found: Checkpoint, *, base: float, rotary_dim: int = 4, uses_mrope: bool = False, max_position: int = 35
    ) -> Any:
        monkeypatch.setattr(building, "_checkpoint_of", lambda *_: found)
        engine.model_config.uses_mrope = uses_mrope
        with set_current_vllm_config(engine):
            return RotaryEmbedding(8, rotary_dim, max_position, base, True, torch.float32)

    return built


def test_the_embedding_of_the_configuration_is_scaled_and_others_stay_vllms(
    build: Any,
) -> None:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    found = checkpoint(has_other_rotations=True)
    local, scaled = build(found, base=10.0), build(found, base=100.0)
    assert (local.posenc_scaled, scaled.posenc_scaled) == (False, True)
    assert torch.equal(local.cos_sin_cache, RotaryEmbedding._compute_cos_sin_cache(local))
    positions, key = torch.tensor([3, 0, 34]), torch.randn(3, 8)
    assert torch.equal(local(positions, key)[0], RotaryEmbedding.forward_native(local, positions, key)[0])
    [rotary] = STATE.rotaries
    assert rotary.module is scaled and rotary.has_other_rotations


@pytest.mark.parametrize(("uses_mrope", "num_rows"), [(False, 35), (True, 20)], ids=["a local rope", "a tower"])
def test_layers_that_are_not_scaled_have_a_row_for_each_position_that_is_served(
    uses_mrope: bool, num_rows: int, build: Any
) -> None:
    """The text of a multimodal model is told its trained length, whatever is served."""
    other = build(checkpoint(has_other_rotations=True), base=10.0, uses_mrope=uses_mrope, max_position=20)
    assert not other.posenc_scaled and other.cos_sin_cache.shape == (num_rows, 4)
    stock = build(checkpoint(has_other_rotations=True), base=10.0, max_position=35)
    assert torch.equal(other.cos_sin_cache, stock.cos_sin_cache[:num_rows])


def test_a_model_knows_better_than_its_configuration_how_much_it_rotates(build: Any) -> None:
    assert build(checkpoint(has_other_rotations=False), base=100.0, rotary_dim=8).posenc_scaled
    [rotary] = STATE.rotaries
    assert (rotary.own.rotary_dim, rotary.own.rope_theta) == (8, 100.0)


def test_beside_others_an_embedding_of_another_width_is_that_of_a_tower(build: Any) -> None:
    assert not build(checkpoint(has_other_rotations=True), base=100.0, rotary_dim=8).posenc_scaled
    assert STATE.rotaries == []


def test_an_embedding_with_one_axis_is_not_that_of_a_decoder_with_several(build: Any) -> None:
    assert not build(checkpoint(has_other_rotations=True), base=100.0, uses_mrope=True).posenc_scaled
    assert STATE.rotaries == []


def test_an_only_embedding_may_have_a_base_that_no_configuration_says(build: Any) -> None:
    assert build(checkpoint(has_other_rotations=False), base=10.0).posenc_scaled
    [rotary] = STATE.rotaries
    assert rotary.own.rope_theta == 10.0 and not rotary.has_other_rotations


def test_code_that_fuses_by_data_type_leaves_the_rotation_to_a_scaled_embedding(build: Any) -> None:
    from vllm.model_executor.models import qwen3_next

    found = checkpoint(has_other_rotations=True)
    local, scaled = build(found, base=10.0), build(found, base=100.0)
    assert (local.dtype, scaled.dtype) == (torch.float32, None)
    # What Qwen3-Next of vLLM asks before it rotates in a kernel of its own, which reads the table by position.
    asks = re.compile(r"supports_dtype = getattr\(self\.rotary_emb, \"dtype\", None\) in \(\s*torch\.float16,\s*torch")
    source = inspect.getsource(qwen3_next)
    assert asks.search(source) and "and supports_dtype" in source


@pytest.mark.parametrize("name", ["forward_native", "forward_cpu"])
def test_rows_are_looked_up_once_whether_or_not_a_method_of_vllm_calls_another(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

    registration.register()
    monkeypatch.setattr(building, "checked_deployment", lambda: LINEAR)
    monkeypatch.setattr(STATE, "rotaries", [])
    with set_current_vllm_config(VllmConfig()):
        module = MRotaryEmbedding(4, 4, 10, 100.0, True, torch.float32, mrope_section=[1, 1, 0])
    looked_up: list[torch.Tensor] = []
    monkeypatch.setattr(torch.ops.vllm, "posenc_rope_rows", lambda positions, _: looked_up.append(positions))
    monkeypatch.setattr(module, "_forward_method", getattr(module, name))
    module(torch.zeros(2, dtype=torch.int64), torch.ones(2, 4), torch.ones(2, 4))
    assert len(looked_up) == 1
