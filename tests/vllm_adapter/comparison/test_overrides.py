"""What of ours vLLM calls in the place of its own: all of it is found, and all of it is callable alike."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import pytest

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.comparison import overrides
from posenc_runtime.vllm_adapter.connector import PosencConnector
from posenc_runtime.vllm_adapter.scheduler import PosencScheduler


@pytest.fixture(scope="module")
def replaced() -> dict[str, overrides.Replaced]:
    return {each.name: each for each in overrides.everywhere()}


def test_vllm_can_call_ours_in_every_way_in_which_it_can_call_its_own(replaced: dict[str, overrides.Replaced]) -> None:
    assert [misfit for each in replaced.values() for misfit in each.misfits()] == []
    assert overrides.abstract() == []


@pytest.mark.parametrize(
    "name",
    [
        "scheduler.PosencScheduler._get_local_prefix_cache_hit",
        "scheduler._InStep._update_after_schedule",
        "connector.PosencConnector.__init__",
        "connector.PosencConnector.build_prom_metrics",
        "in_worker.attention.cpu.BiasImpl.forward",
        "in_worker.attention.cuda.PosencMetadataBuilder.get_cudagraph_support",
        "in_worker.attention.fused_rotary.flash.RotatingFlashAttentionImpl.do_kv_cache_update",  # by what is mixed in
        "in_worker.rotary.embedding.PosencRotaryEmbedding.forward",
        "in_worker.rotary.embedding.PosencMRotaryEmbedding.__init__",
        "in_worker.rotary.long_embedding.PosencLongRotaryEmbedding.forward",
        "in_worker.models.decoder.PosencModel.forward",
        "metrics.prometheus.PosencPromMetrics.observe",
        "metrics.stats.PosencStats.aggregate",
        "arrivals.salting",
        "answers.one_of",
        "cpu_seeds.sample_tokens",
        "responses around AnthropicServingMessages.message_stream_converter",
        "responses.naming_stopped",
        "requests around ResponsesRequest.to_sampling_params",
        "Implementation for CPUAttentionBackendImpl.__init__",
    ],
)
def test_what_takes_the_place_of_vllms_is_found(name: str, replaced: dict[str, overrides.Replaced]) -> None:
    assert name in replaced


def test_what_an_override_does_not_take_is_found_in_classes_and_in_what_is_mixed_in() -> None:
    class Bounded(PosencScheduler):
        def _get_local_prefix_cache_hit(self, request: Any) -> Any:  # as vLLM had it once
            pass

    class Mixed:
        def on_new_request(self, request: Any, now: float) -> None:
            pass

    class Late(Mixed, PosencConnector):
        @classmethod
        def build_kv_connector_stats(cls) -> Any:
            pass

    for each in (Bounded, Mixed, Late):
        each.__module__ = "posenc_runtime.vllm_adapter.somewhere"
    told = [misfit.split(".")[-1] for each in overrides._of_classes([Late]) for misfit in each.misfits()]
    assert told == [
        "build_kv_connector_stats takes no positional argument data",
        "on_new_request requires now, which vLLM does not pass",
    ]
    bounded = [misfit for each in overrides._of_classes([Bounded]) for misfit in each.misfits()]
    assert bool(bounded) is not releases.PREFIX_HITS_WITHOUT_BOUND.is_here


def test_a_class_of_ours_that_lacks_what_vllm_demands_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PosencConnector, "__abstractmethods__", frozenset({"wait_for_wind"}))
    assert overrides.abstract() == ["connector.PosencConnector has no wait_for_wind"]


def test_every_class_that_only_we_make_is_there_and_made_otherwise_than_vllms() -> None:
    by_name = {overrides._short(each): each for each in overrides._classes()}
    assert by_name.keys() >= overrides.MADE_BY_US
    unlike = set()
    for name in overrides.MADE_BY_US:
        theirs = next(base for base in by_name[name].__mro__ if base.__module__.startswith("vllm."))
        replaced = overrides.Replaced(name, by_name[name].__init__, inspect.unwrap(theirs.__init__))
        unlike |= {name} if replaced.misfits() else set()
    assert unlike == overrides.MADE_BY_US


def told(replaced: Iterable[overrides.Replaced]) -> list[str]:
    return [misfit for each in replaced for misfit in each.misfits()]


def test_a_scheduler_method_that_vllm_calls_with_more_arguments_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    def schedule(self: Any, throttle_prefills: bool = False, urgent: bool = False) -> None:
        pass

    monkeypatch.setattr(Scheduler, "schedule", schedule)
    assert "scheduler.PosencScheduler.schedule takes no positional argument urgent" in told(overrides.in_scheduler())


def test_a_route_that_makes_its_answer_of_more_than_our_wrapper_takes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    def message_stream_converter(self: Any, generator: Any, version: str) -> None:
        pass

    monkeypatch.setattr(AnthropicServingMessages, "message_stream_converter", message_stream_converter)
    assert any(
        "message_stream_converter takes no positional argument version" in each for each in told(overrides.in_server())
    )


def test_a_runner_that_samples_by_more_than_we_pass_on_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def sample_tokens(self: Any, grammar_output: Any, *, seeds: Any = None) -> None:
        pass

    monkeypatch.setattr(GPUModelRunner, "sample_tokens", sample_tokens)
    assert "cpu_seeds.sample_tokens takes no keyword argument seeds" in told(overrides.in_cpu_runner())
