"""The line that is written when a request has ended."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from posenc_runtime.vllm_adapter.in_server.request_log import Format, log_requests, x_request_id

SAID = {"posenc": {"scale": 2.0, "crossings": [{"at": 512, "from": 1.0, "to": 2.0, "how": "rerotate"}]}}


def output(tokens: list[int], *, finished: bool = False, params: dict[str, Any] | None = None) -> RequestOutput:
    completion = CompletionOutput(0, "", tokens, None, None, finish_reason="length" if finished else None)
    return RequestOutput("r", "", [1] * 500, None, [completion], finished, kv_transfer_params=params)


def engine_saying(*outputs: RequestOutput) -> Any:
    async def generate(prompt: Any, sampling_params: Any, request_id: str) -> AsyncIterator[RequestOutput]:
        for each in outputs:
            yield each

    return SimpleNamespace(generate=generate)


async def lines(
    engine: Any,
    caplog: pytest.LogCaptureFixture,
    log_format: Format,
    kind: RequestOutputKind,
    most: int = 100,
    turns_past: int | None = None,
) -> list[str]:
    log_requests(engine, log_format, turns_past)
    with caplog.at_level(logging.INFO, "vllm.posenc.requests"):
        logging.getLogger("vllm.posenc.requests").addHandler(caplog.handler)
        try:
            results = engine.generate([1], SamplingParams(output_kind=kind), "cmpl-1")
            async for _ in results:
                most -= 1
                if not most:
                    await results.aclose()
        finally:
            logging.getLogger("vllm.posenc.requests").removeHandler(caplog.handler)
    return list(dict.fromkeys(record.getMessage() for record in caplog.records))


async def test_a_streamed_request_counts_what_is_new_in_each_result(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_saying(output([1, 2]), output([3]), output([4, 5], finished=True, params=SAID))
    (line,) = await lines(engine, caplog, "text", RequestOutputKind.DELTA)
    begins = "cmpl-1: 500 + 5 tokens, scale 2 (rerotate from 1 at 512 tokens), length after 0.0"
    assert line.startswith(begins) and "first token after 0.0" in line


async def test_a_whole_answer_is_one_result_and_says_nothing_of_its_first_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = engine_saying(output([1, 2, 3], finished=True, params={"posenc": {"scale": 1.0, "crossings": []}}))
    (line,) = await lines(engine, caplog, "text", RequestOutputKind.FINAL_ONLY)
    assert line.startswith("cmpl-1: 500 + 3 tokens, scale 1, length after 0.0") and "first token" not in line


async def test_json_has_the_same_by_name(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_saying(output([1, 2, 3], finished=True, params=SAID))
    (line,) = await lines(engine, caplog, "json", RequestOutputKind.FINAL_ONLY)
    told = json.loads(line)
    assert told.pop("seconds") < 1
    assert told == {
        "request_id": "cmpl-1",
        "x_request_id": None,
        "prompt_tokens": 500,
        "generation_tokens": 3,
        "scale": 2.0,
        "turned_past": None,
        "crossings": SAID["posenc"]["crossings"],
        "finish_reason": "length",
        "first_token_seconds": None,
    }


async def test_a_request_whose_client_is_gone_is_said_to_be_aborted(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_saying(output([1, 2]), output([3]), output([4], finished=True, params=SAID))
    (line,) = await lines(engine, caplog, "text", RequestOutputKind.DELTA, most=2)
    assert line.startswith("cmpl-1: 500 + 3 tokens, aborted after")


@pytest.mark.parametrize(("trained", "how"), [(501, "queries turned past 501, "), (502, "")])
async def test_where_queries_turn_the_line_says_which_and_no_scale(
    trained: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_saying(output([1, 2, 3], finished=True))
    (line,) = await lines(engine, caplog, "text", RequestOutputKind.FINAL_ONLY, turns_past=trained)
    assert line.startswith(f"cmpl-1: 500 + 3 tokens, {how}length after")


async def test_nothing_is_written_where_nobody_asked_and_of_what_never_ran(caplog: pytest.LogCaptureFixture) -> None:
    assert await lines(engine_saying(output([1], finished=True)), caplog, "off", RequestOutputKind.DELTA) == []
    assert await lines(engine_saying(), caplog, "text", RequestOutputKind.DELTA) == []


async def test_the_line_has_the_name_that_the_client_gave(caplog: pytest.LogCaptureFixture) -> None:
    token = x_request_id.set("from-a-proxy")
    try:
        engine = engine_saying(output([1], finished=True, params=SAID))
        (line,) = await lines(engine, caplog, "json", RequestOutputKind.FINAL_ONLY)
    finally:
        x_request_id.reset(token)
    assert json.loads(line)["x_request_id"] == "from-a-proxy"
