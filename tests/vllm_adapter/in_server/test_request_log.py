"""The line that is written when a request has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from vllm import SamplingParams
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind

from posenc_runtime.vllm_adapter.in_server.request_log import (
    Format,
    RequestLinesMiddleware,
    log_requests,
    x_request_id,
)

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
        "method": None,
        "path": None,
        "status": None,
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


async def asked(
    application: Any, caplog: pytest.LogCaptureFixture, method: str = "POST", path: str = "/v1/completions"
) -> list[str]:
    """The lines of a request over HTTP."""
    app = RequestLinesMiddleware(application, "text", lambda: True)
    logger = logging.getLogger("vllm.posenc.requests")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, "vllm.posenc.requests"):
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
                with contextlib.suppress(RuntimeError):
                    await client.request(method, path)
    finally:
        logger.removeHandler(caplog.handler)
    return list(dict.fromkeys(record.getMessage() for record in caplog.records))


def answering(status: int, *engines: Any) -> Any:
    """An application that asks engines and answers with a status."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        for engine in engines:
            async for _ in engine.generate([1], SamplingParams(output_kind=RequestOutputKind.DELTA), "cmpl-1"):
                pass
        headers = [(b"x-request-id", b"abc")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    return application


@pytest.mark.parametrize(
    ("status", "how"), [(200, "answered"), (400, "refused"), (503, "failed")], ids=["tokenised", "refused", "failed"]
)
async def test_a_request_that_never_ran_has_a_line_with_its_status_and_name(
    status: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = await asked(answering(status), caplog)
    assert line.startswith(f"POST /v1/completions {status} abc: {how} after 0.0")


async def test_a_request_that_ran_has_one_line_with_path_status_and_tokens(caplog: pytest.LogCaptureFixture) -> None:
    log_requests(engine := engine_saying(output([1, 2], finished=True, params=SAID)), "text")
    (line,) = await asked(answering(200, engine), caplog)
    assert line.startswith("POST /v1/completions 200 cmpl-1: 500 + 2 tokens, scale 2 (rerotate from 1 at 512 tokens)")


async def test_a_request_that_ends_without_an_answer_was_aborted(caplog: pytest.LogCaptureFixture) -> None:
    async def gone(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("the client is gone")

    (line,) = await asked(gone, caplog)
    assert line.startswith("POST /v1/completions - -: aborted after 0.0")


async def test_an_engine_that_ends_after_its_client_is_gone_writes_the_only_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = engine_saying(output([1]), output([2]), output([3], finished=True))
    log_requests(engine, "text")
    running: list[Any] = []

    async def gone(scope: Any, receive: Any, send: Any) -> None:
        running.append(engine.generate([1], SamplingParams(output_kind=RequestOutputKind.DELTA), "cmpl-1"))
        await anext(running[0])
        raise RuntimeError("the client is gone")

    assert await asked(gone, caplog) == []
    logger = logging.getLogger("vllm.posenc.requests")
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "vllm.posenc.requests"):
        await running[0].aclose()
    logger.removeHandler(caplog.handler)
    assert caplog.records[-1].getMessage().startswith("POST /v1/completions - cmpl-1: 500 + 1 tokens, aborted after")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_what_asks_for_data_alone_has_no_line(method: str, caplog: pytest.LogCaptureFixture) -> None:
    assert await asked(answering(200), caplog, method) == []


async def test_a_path_cannot_be_read_as_another_line(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = await asked(answering(404), caplog, path="/a%0A12:00:00 POST /v1/completions 200" + "x" * 200)
    assert line.startswith("POST /a%0A12%3A00%3A00%20POST%20/v1/completions%20200xxx") and "\n" not in line
    assert len(line) < 150


async def test_two_requests_at_once_have_their_own_lines(caplog: pytest.LogCaptureFixture) -> None:
    log_requests(engine := engine_saying(output([1, 2], finished=True)), "text")
    lines = await asyncio.gather(
        asked(answering(200, engine), caplog, path="/one"), asked(answering(400), caplog, path="/two")
    )
    assert sorted(line.split(" after ")[0] for line in lines[-1]) == [
        "POST /one 200 cmpl-1: 500 + 2 tokens, length",
        "POST /two 400 abc: refused",
    ]
