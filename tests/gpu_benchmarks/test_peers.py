"""vLLM's kernels, called as on CUDA: what takes their place checks the call, and computes from what it was given."""

from __future__ import annotations

import inspect
import re
import types
import warnings
from typing import Any

import pytest

from posenc_runtime.encodings.distance import Linear
from posenc_runtime.kernels.attention import reference as attention_reference
from posenc_runtime.kernels.attention.paged import PagedBatch
from posenc_runtime.vllm_adapter.contract.attention_choice import AttentionChoice
from tests.benchmarks.gpu import bias, peers
from tests.gpu_benchmarks.test_trials import STAGE, trial_of


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported, with the warnings that its dependencies raise meanwhile, and wanted although nothing is on CUDA."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm._custom_ops
        import vllm.v1.attention.ops.triton_reshape_and_cache_flash
        import vllm.v1.attention.ops.triton_unified_attention  # noqa: F401
    monkeypatch.setattr(peers, "need_vllm", lambda stage: None)


def stored(signature: inspect.Signature) -> Any:
    """In place of an operator that caches keys and values."""

    def store(*arguments: Any) -> None:
        given = signature.bind(*arguments).arguments
        assert given["kv_cache_dtype"] == "auto"
        slots, block_size = given["slot_mapping"], given["key_cache"].shape[1]
        for rows, cache in ((given["key"], given["key_cache"]), (given["value"], given["value_cache"])):
            cache[slots // block_size, slots % block_size] = rows

    return store


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("kind", ["prompt", "lone"])
def test_vllms_rotation_and_store_are_called_so_that_they_do_what_ours_does(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm._custom_ops as operators
    import vllm.v1.attention.ops.triton_reshape_and_cache_flash as by_triton
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("calls vLLM's rotation on the CPU, which only its CPU build has")
    for module, name in ((operators, "reshape_and_cache_flash"), (by_triton, "triton_reshape_and_cache_flash")):
        monkeypatch.setattr(module, name, stored(inspect.signature(getattr(module, name))))
    rows = trial_of("rotary_store", kind).answer(STAGE)
    assert [(row.state, row.why) for row in rows] == [("measured", "")] * 3


class AttendingKernel:
    """In place of ``kernel_unified_attention``: attends to what it was given."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._signature = signature
        self.was_split: list[bool] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(**named: Any) -> None:
            given = self._signature.bind(**named).arguments
            self.was_split.append(given["IS_3D"])
            starts = given["query_start_len_ptr"]
            lengths = given["seq_lens_ptr"]
            batch = PagedBatch(given["block_tables_ptr"], starts, lengths, int(starts.diff().max()), int(lengths.max()))
            assert not given["USE_SOFTCAP"] and given["SLIDING_WINDOW"] == 0 and given["USE_CAUSAL"]
            keys, values = (given[f"{name}_cache_ptr"].transpose(1, 2) for name in ("key", "value"))
            attention_reference.bias_attention(
                given["query_ptr"],
                keys,
                values,
                batch,
                Linear(given["alibi_slopes_ptr"]),
                given["scale"],
                given["output_ptr"],
            )

        return launch


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(("kind", "is_split"), [("decode", True), ("prefill", False)])
def test_vllms_attention_is_called_so_that_it_does_what_ours_does(
    kind: str, is_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vllm.v1.attention.ops.triton_unified_attention as unified

    kernel = AttendingKernel(inspect.signature(unified.kernel_unified_attention))
    monkeypatch.setattr(unified, "kernel_unified_attention", kernel)
    reduced: list[dict[str, Any]] = []
    monkeypatch.setattr(unified, "reduce_segments", {(2, 4): lambda **named: reduced.append(named)})
    monkeypatch.setattr(
        unified, "triton", types.SimpleNamespace(next_power_of_2=lambda number: 1 << (number - 1).bit_length())
    )
    rows = trial_of("bias", kind).answer(STAGE)
    assert {(row.state, row.why) for row in rows} == {("measured", "")}
    assert set(kernel.was_split) == {is_split} and bool(reduced) is is_split


def test_a_vllm_that_cannot_be_imported_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    imported = builtins.__import__

    def without_vllm(name: str, *others: Any, **more: Any) -> Any:
        if name == "vllm":
            raise ImportError("No module named 'vllm'")
        return imported(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", without_vllm)
    on_gpu = types.SimpleNamespace(is_rehearsal=False)
    with pytest.raises(peers.NotHere, match="vLLM cannot be imported here: ImportError: No module named 'vllm'"):
        peers.need_vllm(on_gpu)  # type: ignore[arg-type]


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("lacking", "why"),
    [
        ("rotary_embedding", "vLLM's compiled operators must be there, and _C.rotary_embedding is not: install its"),
        ("reshape_and_cache_flash", r"and _C_cache_ops\.reshape_and_cache_flash is not: install its CUDA build"),
        ("", None),
    ],
)
def test_a_vllm_without_its_compiled_operators_is_seen(
    lacking: str, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"rotary_embedding", "reshape_and_cache_flash"} - {lacking}
    library = types.SimpleNamespace(**dict.fromkeys(names))
    operators = types.SimpleNamespace(_C=library, _C_cache_ops=library)
    monkeypatch.setattr(peers, "torch", types.SimpleNamespace(ops=operators))
    found = peers.missing()
    assert found is None if why is None else found is not None and re.search(why, found)


def test_windows_leave_out_what_a_deployment_lets_them() -> None:
    assert AttentionChoice.window_tolerance == bias.TOLERANCE
