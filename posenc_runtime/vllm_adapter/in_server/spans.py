"""Puts the scale and the crossings of a request into its OpenTelemetry span.

vLLM makes a span for each request that has ended, where ``otlp_traces_endpoint`` is set: its output processor collects
attributes, and calls ``instrument_manual``. We note the engine's report before, and add it to the attributes.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Mapping
from typing import Any

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.in_server.responses import report_of_admission

_report: contextvars.ContextVar[Mapping[str, Any] | None] = contextvars.ContextVar("report", default=None)


def attributes_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """A request's report as attributes of a span; an attribute is a number, a text, or a list of one of them.

    Args:
        report: what an answer has at ``kv_transfer_params.posenc``.
    """
    crossings = list(report.get("crossings", ()))
    attributes: dict[str, Any] = {
        "posenc.scale": float(report["scale"]),
        "posenc.rope_type": str(report["rope_type"]),
        "posenc.admission_tokens": int(report["admission_tokens"]),
        "posenc.crossings": len(crossings),
    }
    if crossings:
        attributes |= {
            "posenc.crossings.at": [int(each["at"]) for each in crossings],
            "posenc.crossings.from": [float(each["from"]) for each in crossings],
            "posenc.crossings.to": [float(each["to"]) for each in crossings],
            "posenc.crossings.how": [str(each["how"]) for each in crossings],
        }
    return attributes


def announce_in_spans(engine: Any, deployment: Deployment) -> None:
    """Let the spans of a running engine's requests name their scales.

    Args:
        engine: vLLM's client of it; where it makes no spans, nothing is changed.
    """
    processor = engine.output_processor
    if not processor.tracing_enabled:
        return
    from vllm.v1.engine import output_processor

    stock = processor.do_tracing

    @functools.wraps(stock)
    def do_tracing(engine_core_output: Any, req_state: Any, *args: Any, **kwargs: Any) -> None:
        params = engine_core_output.kv_transfer_params
        report = (params or {}).get("posenc") or report_of_admission(
            deployment,
            num_prompt_tokens=len(req_state.prompt_token_ids or ()),
            max_tokens=req_state.max_tokens_param,
        )
        token = _report.set(report)
        try:
            stock(engine_core_output, req_state, *args, **kwargs)
        finally:
            _report.reset(token)

    processor.do_tracing = do_tracing
    output_processor.instrument_manual = _with_report(output_processor.instrument_manual)


def _with_report(stock: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(stock, "__wrapped__"):  # by an engine that was here before in this process
        return stock

    @functools.wraps(stock)
    def instrument_manual(*args: Any, **kwargs: Any) -> Any:
        report = _report.get()
        if report is not None:
            kwargs["attributes"] = {**(kwargs.get("attributes") or {}), **attributes_of(report)}
        return stock(*args, **kwargs)

    return instrument_manual
