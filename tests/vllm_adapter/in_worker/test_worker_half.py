"""A worker's table of block scales: what a step's plan writes there, and what nothing was said of."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, MambaSpec, UniformTypeKVCacheSpecs

from posenc_runtime.encodings.spec import RotarySpec
from posenc_runtime.kernels import ops
from posenc_runtime.kernels.rotary.rerotation import BlockMoves, ScaleChange
from posenc_runtime.kv.crossing import Rotation
from posenc_runtime.kv.deployment import Deployment, OnCrossing
from posenc_runtime.kv.moves import BlockMove, Moves
from posenc_runtime.kv.step_plan import StepPlan
from posenc_runtime.vllm_adapter.in_worker import cpu_key_order, worker_half
from posenc_runtime.vllm_adapter.in_worker.attention.record import RECORD
from posenc_runtime.vllm_adapter.in_worker.layer_rotations import Turned
from posenc_runtime.vllm_adapter.in_worker.worker_half import WorkerHalf
from posenc_runtime.vllm_adapter.in_worker.worker_state import STATE, Rotary

# Its parts of the stacked table have 10, 20 and 35 rows.
LINEAR = Deployment(
    rope_type="linear",
    scales=(1.0, 2.0, 4.0),
    original_max_position_embeddings=10,
    max_model_len=35,
    on_crossing="pin",
)
SPEC = RotarySpec(rotary_dim=4, rope_theta=100.0, original_max_position_embeddings=10)
ROTARY = Rotary(deployment=LINEAR, head_dim=4, own=SPEC, is_neox_style=True)


LAYER: Any = types.SimpleNamespace(isa="")
FINDING_THE_MODEL = WorkerHalf._model


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("block_row_offset", None), ("block_size", {}), ("rotaries", [ROTARY]), ("model", None)):
        monkeypatch.setattr(STATE, name, value)
    monkeypatch.setattr(WorkerHalf, "_model", lambda _: None)
    rotated(monkeypatch)


def rotated(monkeypatch: pytest.MonkeyPatch, *unrotated: str) -> list[list[str]]:
    """A model whose layers rotate as its first embedding does, but for some. Returns the layers that are asked."""
    asked = []

    def layer_rotations(_: Any, __: Any, layers: Any, rotaries: Any, **___: Any) -> dict[str, Turned | None]:
        asked.append(list(layers))
        turned = Turned(rotaries[0], 0, rotaries[0].is_neox_style)
        return {name: None if name in unrotated else turned for name in layers}

    monkeypatch.setattr(worker_half, "layer_rotations", layer_rotations)
    return asked


def keys(num_kv_heads: int) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=4, num_kv_heads=num_kv_heads, head_size=4, dtype=torch.float32)


ALIKE = KVCacheGroupSpec(["layer"], keys(1))


def worker(
    num_blocks: int = 6,
    deployment: Deployment = LINEAR,
    group: KVCacheGroupSpec = ALIKE,
    engine: str = ROTARY.engine,
    **layers: Any,
) -> WorkerHalf:
    kv_cache_config: Any = types.SimpleNamespace(num_blocks=num_blocks, kv_cache_groups=[group])
    layers = layers or dict.fromkeys(group.layer_names, LAYER)
    half = WorkerHalf(deployment, configured(engine, **layers), kv_cache_config)
    half.register_kv_caches({"layer": torch.zeros(num_blocks, 1, 4, 8)})
    return half


def configured(engine: str = ROTARY.engine, **layers: Any) -> Any:
    compilation = types.SimpleNamespace(static_forward_context=layers)
    said = {"compilation_config": compilation, "kv_transfer_config": None, "model_config": None}
    return types.SimpleNamespace(**said, additional_config={}, instance_id=engine)


def offsets() -> list[int]:
    assert STATE.block_row_offset is not None
    found: list[int] = STATE.block_row_offset.tolist()
    return found


def test_where_attention_rotates_a_plan_gives_each_block_the_number_of_its_scale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(STATE, "rotaries", [dataclasses.replace(ROTARY, is_fused=True, factor_on_keys=False)])
    given: list[Any] = []
    layer = types.SimpleNamespace(impl=types.SimpleNamespace(rotate_by=given.append), head_size=4)
    worker(layer=layer).apply(StepPlan(block_scales={2: [4, 1], 1: [3]}))
    (scales,) = given
    assert scales.block_scale.tolist() == [0, 2, 0, 1, 2, 0]
    assert scales.block_size == 4 and not scales.factor_on_keys
    assert STATE.block_row_offset is None


def test_keys_are_turned_in_the_style_that_the_model_left_its_rotary_embedding_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crossing = dataclasses.replace(LINEAR, on_crossing="rerotate", rerotate_budget_tokens=4)
    made = types.SimpleNamespace(is_neox_style=True)
    monkeypatch.setattr(STATE, "rotaries", [dataclasses.replace(ROTARY, deployment=crossing, module=made)])
    monkeypatch.setattr(cpu_key_order, "cpu_key_order", lambda *_: None)
    styles = []
    monkeypatch.setattr(ops, "rerotate", lambda *turned: styles.append(turned[-1].is_neox_style))
    made.is_neox_style = False  # as Ernie 4.5 does
    worker(deployment=crossing)
    assert set(styles) == {False}


def test_no_request_waits_for_what_turns_keys_to_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    crossing = dataclasses.replace(LINEAR, on_crossing="rerotate", rerotate_budget_tokens=4)
    turned: list[tuple[list[int], list[float]]] = []

    def rerotate(kv_caches: Any, moves: BlockMoves, change: ScaleChange, layout: Any) -> None:
        assert torch.equal(moves.sources, moves.targets)
        turned.append((moves.targets.tolist(), change.phases.tolist()))

    monkeypatch.setattr(STATE, "rotaries", [dataclasses.replace(ROTARY, deployment=crossing)])
    monkeypatch.setattr(cpu_key_order, "cpu_key_order", lambda *_: None)
    monkeypatch.setattr(ops, "rerotate", rerotate)
    worker(deployment=crossing)
    blocks, changes = zip(*turned, strict=True)
    assert blocks == ([0],) * 6
    assert len({tuple(change) for change in changes}) == 6


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """A deployment that does not say how much is turned before a step."""
    monkeypatch.setattr(STATE, "rotaries", [])
    monkeypatch.setattr(WorkerHalf, "_model", FINDING_THE_MODEL)
    monkeypatch.setattr(cpu_key_order, "cpu_key_order", lambda *_: None)
    return dataclasses.replace(LINEAR, on_crossing="rerotate")


def test_a_worker_measures_its_speed_with_the_model_around_its_rotary_embedding(measuring: Deployment) -> None:
    rotary = torch.nn.Module()
    for _ in range(2):  # layers that share it
        STATE.enter(dataclasses.replace(ROTARY, deployment=measuring, module=rotary))
    layer = torch.nn.Sequential(rotary, torch.nn.Linear(4, 4, bias=False))
    layer.isa = ""
    torch.nn.Sequential(layer, torch.nn.Linear(4, 6, bias=False))
    half = worker(deployment=measuring, layer=layer)
    assert half.speed is not None
    assert (half.speed.weight_bytes, half.speed.block_tokens) == (4 * (16 + 24), 4)
    assert STATE.model is None


def test_a_worker_that_did_not_see_its_model_built_cannot_ask_it(measuring: Deployment) -> None:
    STATE.rotaries.append(dataclasses.replace(ROTARY, deployment=measuring))
    with pytest.raises(
        ValueError, match="has to see the worker build the whole model, but this worker did not build it"
    ):
        worker(deployment=measuring)


def test_a_worker_that_is_told_how_much_to_turn_measures_nothing(measuring: Deployment) -> None:
    told = dataclasses.replace(measuring, rerotate_budget_tokens=8)
    rotary = torch.nn.Module()
    STATE.enter(dataclasses.replace(ROTARY, deployment=told, module=rotary))
    layer = torch.nn.Sequential(rotary)
    layer.isa = ""
    assert worker(deployment=told, layer=layer).speed is None
    assert STATE.model is None


UNALIKE = KVCacheGroupSpec(["layer", "other"], keys(1))
STATES = KVCacheGroupSpec(["recurrent"], MambaSpec(block_size=4, shapes=((2,),), dtypes=(torch.float32,)))


def grouped(
    *groups: KVCacheGroupSpec, deployment: Deployment = LINEAR, layers: dict[str, Any] | None = None
) -> WorkerHalf:
    """A worker of a model with several KV cache groups, whose recurrent layers have lists of states as caches."""
    names = [name for group in groups for name in group.layer_names]
    kv_cache_config: Any = types.SimpleNamespace(num_blocks=6, kv_cache_groups=list(groups))
    half = WorkerHalf(deployment, configured(**(layers or dict.fromkeys(names, LAYER))), kv_cache_config)
    caches: Any = {name: [torch.zeros(6, 2)] if name == "recurrent" else torch.zeros(6, 1, 4, 8) for name in names}
    half.register_kv_caches(caches)
    return half


def test_only_layers_with_rotated_keys_have_scales_and_their_groups_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = rotated(monkeypatch, "local", "without-rope")
    local, mixed = KVCacheGroupSpec(["local"], keys(1)), KVCacheGroupSpec(["without-rope", "layer"], keys(1))
    half = grouped(STATES, local, mixed)
    assert asked == [["local", "without-rope", "layer"]]
    assert half.scaled_groups == {2}
    assert STATE.block_size == {"layer": 4}


def test_until_the_model_is_asked_every_group_with_keys_may_be_scaled() -> None:
    groups: Any = types.SimpleNamespace(num_blocks=6, kv_cache_groups=[STATES, ALIKE])
    assert WorkerHalf(LINEAR, configured(), groups).scaled_groups == {1}


def test_a_layer_that_reads_the_keys_of_another_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = rotated(monkeypatch)
    reader = types.SimpleNamespace(isa="", kv_sharing_target_layer_name="layer")
    grouped(UNALIKE, layers={"layer": LAYER, "other": reader})
    assert asked == [["layer"]]
    assert STATE.block_size == {"layer": 4}


def test_a_model_none_of_whose_layers_are_rotated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rotated(monkeypatch, "layer")
    with pytest.raises(ValueError, match="but no layer of this model uses that embedding: serve this model"):
        worker()


@pytest.mark.parametrize("is_fused", [False, True], ids=["one-scale", "attention-rotates"])
def test_a_model_is_not_asked_where_nothing_depends_on_its_answer(
    is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = rotated(monkeypatch)
    monkeypatch.setattr(STATE, "rotaries", [dataclasses.replace(ROTARY, is_fused=is_fused)])
    monkeypatch.setattr(worker_half, "rotate_in_attention", lambda *_: None)
    worker(deployment=LINEAR if is_fused else dataclasses.replace(LINEAR, scales=(1.0,), max_model_len=10))
    assert asked == []
    assert STATE.block_size == {"layer": 4}


def test_a_model_with_other_rotations_is_asked_with_that_knowledge(monkeypatch: pytest.MonkeyPatch) -> None:
    known = []

    def layer_rotations(*_: Any, **told: bool) -> dict[str, Turned | None]:
        known.append(told)
        return {"layer": Turned(ROTARY, 0, is_neox_style=True)}

    monkeypatch.setattr(worker_half, "layer_rotations", layer_rotations)
    monkeypatch.setattr(STATE, "rotaries", [dataclasses.replace(ROTARY, has_other_rotations=True)])
    worker()
    assert known == [{"has_other_rotations": True}]


def test_where_positions_reach_past_tokens_each_scale_has_as_many_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STATE, "rotaries", [dataclasses.replace(ROTARY, positions_factor=4)])
    worker().apply(StepPlan(block_scales={2: [4, 1], 1: [3]}))
    assert offsets() == [0, 120, 0, 40, 120, 0]
    monkeypatch.setattr(STATE, "rotaries", [ROTARY, dataclasses.replace(ROTARY, positions_factor=4)])
    with pytest.raises(ValueError, match=r"in different rows, \(0, 10, 30\), \(0, 40, 120\): serve it without scaling"):
        worker()


def test_blocks_of_layers_that_are_cached_unalike_have_scales() -> None:
    unalike = UniformTypeKVCacheSpecs.from_specs({"wide": keys(2), "narrow": keys(1)})
    assert unalike is not None
    worker(group=KVCacheGroupSpec(["wide", "narrow"], unalike))
    assert STATE.block_size == {"wide": 4, "narrow": 4}


def test_a_block_that_nothing_was_said_of_is_unscaled() -> None:
    worker()
    assert offsets() == [0, 0, 0, 0, 0, 0]


def test_a_plan_gives_each_block_the_first_row_of_its_scale() -> None:
    worker().apply(StepPlan(block_scales={2: [4, 1], 1: [3], 0: [5]}))
    assert offsets() == [0, 30, 0, 10, 30, 0]


def test_a_block_keeps_its_scale_until_a_plan_gives_it_another() -> None:
    half = worker()
    half.apply(StepPlan(block_scales={1: [2, 3]}))
    half.apply(StepPlan())
    half.apply(StepPlan(block_scales={0: [2]}))
    assert offsets() == [0, 0, 0, 10, 0, 0]


class _Writes(TorchDispatchMode):
    """Counts the operations that write into one tensor."""

    def __init__(self, written: torch.Tensor) -> None:
        super().__init__()
        self.count, self._written = 0, written

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += operation._schema.is_mutable and args[0] is self._written
        return operation(*args, **(kwargs or {}))


def test_blocks_of_all_scales_are_written_at_once() -> None:
    half = worker()
    assert STATE.block_row_offset is not None
    with _Writes(STATE.block_row_offset) as writes:
        half.apply(StepPlan(block_scales={2: [4, 1], 1: [3], 0: [5]}))
    assert writes.count == 1
    assert offsets() == [0, 30, 0, 10, 30, 0]


def test_requests_that_cross_together_are_turned_in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    crossing = dataclasses.replace(LINEAR, on_crossing="rerotate", rerotate_budget_tokens=4)
    turned: list[list[tuple[int, ...]]] = []

    def rerotate(kv_caches: Any, moves: BlockMoves, change: ScaleChange, layout: Any) -> None:
        columns = moves.sources, moves.targets, moves.first_positions
        turned.append(list(zip(*(column.tolist() for column in columns), strict=True)))

    monkeypatch.setattr(STATE, "rotaries", [dataclasses.replace(ROTARY, deployment=crossing)])
    monkeypatch.setattr(cpu_key_order, "cpu_key_order", lambda *_: None)
    monkeypatch.setattr(ops, "rerotate", rerotate)
    half = worker(deployment=crossing)
    turned.clear()

    def rotation(from_index: int, *moves: tuple[int, int, int]) -> Rotation:
        made = (
            BlockMove(group=0, source=source, target=target, first_position=first, num_tokens=4)
            for source, target, first in moves
        )
        return Rotation(from_index=from_index, to_index=from_index + 1, moves=Moves.of(made))

    plan = StepPlan(rotations=[rotation(0, (1, 1, 0), (2, 3, 4)), rotation(1, (4, 4, 8)), rotation(0, (5, 5, 0))])
    half.apply(plan)
    assert turned == [[(1, 1, 0), (2, 3, 4), (5, 5, 0)], [(4, 4, 8)]]


def test_blocks_of_a_group_are_turned_in_the_caches_of_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    crossing = dataclasses.replace(LINEAR, on_crossing="rerotate", rerotate_budget_tokens=4)
    monkeypatch.setattr(STATE, "rotaries", [dataclasses.replace(ROTARY, deployment=crossing)])
    monkeypatch.setattr(cpu_key_order, "cpu_key_order", lambda *_: None)
    caches = {name: torch.zeros(6, 1, 4, 8) for name in ("first", "second")}
    turned: list[tuple[str, list[int]]] = []

    def rerotate(kv_caches: Any, moves: BlockMoves, change: ScaleChange, layout: Any) -> None:
        turned.extend((name, moves.targets.tolist()) for name, cache in caches.items() if kv_caches[0] is cache)

    monkeypatch.setattr(ops, "rerotate", rerotate)
    layers = {name: types.SimpleNamespace(isa="") for name in caches}
    half = WorkerHalf(
        crossing,
        configured(**layers),
        types.SimpleNamespace(num_blocks=6, kv_cache_groups=[KVCacheGroupSpec([name], keys(1)) for name in caches]),  # type: ignore[arg-type]
    )
    half.register_kv_caches(caches)
    turned.clear()
    moves = [
        BlockMove(group=group, source=block, target=block, first_position=0, num_tokens=4)
        for group, block in [(0, 1), (1, 2), (0, 3)]
    ]
    half.apply(StepPlan(rotations=[Rotation(from_index=0, to_index=1, moves=Moves.of(moves))]))
    assert turned == [("first", [1, 3]), ("second", [2])]


def test_the_table_stays_where_it_is_for_graphs_that_hold_its_address() -> None:
    half = worker()
    table = STATE.block_row_offset
    half.apply(StepPlan(block_scales={2: [1]}))
    assert STATE.block_row_offset is table


def test_steps_that_gave_blocks_a_scale_are_timed_and_others_are_not() -> None:
    half = worker()
    for plan, times in ((StepPlan(), 0), (StepPlan(block_scales={1: [2]}), 1), (StepPlan(), 0)):
        half.apply(plan)
        assert len(half.take_report().get("apply_seconds", ())) == times


def test_what_attention_did_while_the_engine_warmed_up_is_not_reported() -> None:
    half = worker()
    RECORD.take()
    read_and_skipped = RECORD.windows.on(torch.device("cpu"))
    read_and_skipped.add_(torch.tensor([300, 500]))
    half.apply(StepPlan())
    assert half.take_report() == {}
    read_and_skipped.add_(torch.tensor([3, 5]))
    half.apply(StepPlan())
    assert half.take_report() == {"window_kv_blocks_read": {"all": 3}, "window_kv_blocks_skipped": {"all": 5}}


def test_a_model_whose_rotary_embedding_was_not_built_for_the_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="scaling needs a model with a rotary embedding that posenc can replace"):
        worker(engine="another")


@pytest.mark.parametrize("on_crossing", ["pin", "rerotate"])
def test_another_engine_of_the_process_may_have_another_base_and_other_heads(
    on_crossing: OnCrossing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_key_order, "cpu_key_order", lambda *_: None)
    monkeypatch.setattr(ops, "rerotate", lambda *_: None)
    deployment = dataclasses.replace(LINEAR, on_crossing=on_crossing, rerotate_budget_tokens=4)
    monkeypatch.setattr(STATE, "rotaries", [dataclasses.replace(ROTARY, deployment=deployment)])
    worker(deployment=deployment)
    own = dataclasses.replace(SPEC, rope_theta=50.0, rotary_dim=2)
    STATE.enter(dataclasses.replace(ROTARY, deployment=deployment, own=own, engine="another"))
    assert (STATE.block_row_offset, STATE.block_size) == (None, {})  # vLLM tries steps before connectors are there
    worker(deployment=deployment, engine="another")
    assert STATE.block_size == {"layer": 4}
