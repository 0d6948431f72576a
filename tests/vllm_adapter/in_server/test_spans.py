"""The span that vLLM makes of a request names its scale and its crossings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine import output_processor

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_server.spans import announce_in_spans, attributes_of

DEPLOYMENT = Deployment(
    rope_type="yarn", scales=(1, 2), original_max_position_embeddings=512, max_model_len=1024, headroom_tokens=16
)
REPORT = {
    "rope_type": "yarn",
    "scale": 4,
    "admission_tokens": 500,
    "crossings": [
        {"at": 512, "from": 1, "to": 2, "how": "rerotate"},
        {"at": 1024, "from": 2, "to": 4, "how": "rerotate"},
    ],
}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []

    def instrument_manual(*, span_name: str, attributes: dict[str, Any]) -> None:
        made.append({"name": span_name} | attributes)

    monkeypatch.setattr(output_processor, "instrument_manual", instrument_manual)
    return made


def engine(*, tracing_enabled: bool = True) -> Any:
    """As far as we look at vLLM's: it makes a span by the name that its module has for the function."""

    def do_tracing(engine_core_output: Any, req_state: Any, iteration_stats: Any) -> None:
        output_processor.instrument_manual(span_name="llm_request", attributes={"theirs": 1})

    return SimpleNamespace(output_processor=SimpleNamespace(tracing_enabled=tracing_enabled, do_tracing=do_tracing))


def trace(engine: Any, params: dict[str, Any] | None) -> None:
    request = SimpleNamespace(prompt_token_ids=[1] * 600, max_tokens_param=8)
    engine.output_processor.do_tracing(SimpleNamespace(kv_transfer_params=params), request, None)


def test_a_span_has_what_the_engine_reported(spans: list[dict[str, Any]]) -> None:
    traced = engine()
    announce_in_spans(traced, DEPLOYMENT)
    trace(traced, {"posenc": REPORT})
    assert spans == [
        {
            "name": "llm_request",
            "theirs": 1,
            "posenc.scale": 4.0,
            "posenc.rope_type": "yarn",
            "posenc.admission_tokens": 500,
            "posenc.crossings": 2,
            "posenc.crossings.at": [512, 1024],
            "posenc.crossings.from": [1.0, 2.0],
            "posenc.crossings.to": [2.0, 4.0],
            "posenc.crossings.how": ["rerotate", "rerotate"],
        }
    ]


def test_a_request_whose_report_is_lost_has_its_first_scale(spans: list[dict[str, Any]]) -> None:
    traced = engine()
    announce_in_spans(traced, DEPLOYMENT)
    trace(traced, None)
    (span,) = spans
    assert (span["posenc.scale"], span["posenc.admission_tokens"], span["posenc.crossings"]) == (2.0, 608, 0)


def test_a_span_of_nobodys_request_stays_as_it_is(spans: list[dict[str, Any]]) -> None:
    announce_in_spans(engine(), DEPLOYMENT)
    output_processor.instrument_manual(span_name="loading", attributes={"theirs": 1})
    assert spans == [{"name": "loading", "theirs": 1}]


def test_two_engines_of_a_process_add_the_attributes_once(spans: list[dict[str, Any]]) -> None:
    announce_in_spans(engine(), DEPLOYMENT)
    once = output_processor.instrument_manual
    announce_in_spans(engine(), DEPLOYMENT)
    assert output_processor.instrument_manual is once


def test_without_tracing_nothing_is_wrapped(spans: list[dict[str, Any]]) -> None:
    untraced = engine(tracing_enabled=False)
    stock = untraced.output_processor.do_tracing
    announce_in_spans(untraced, DEPLOYMENT)
    assert untraced.output_processor.do_tracing is stock


def test_attributes_are_of_kinds_that_spans_may_have() -> None:
    for value in attributes_of(REPORT).values():
        parts = value if isinstance(value, list) else [value]
        assert len({type(part) for part in parts}) == 1 and isinstance(parts[0], int | float | str)
