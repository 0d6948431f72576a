"""The scale in every answer, streamed ones in their last chunk."""

from __future__ import annotations

import json
import types
from collections.abc import AsyncIterator
from typing import Any

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.responses import announce_scales, announce_stopped

SAID = {"posenc": {"scale": 4.0}}
UNSCALED = {"posenc": {"scale": 1.0}}
BOTH = {"posenc": {"scale": 1.0}, "posenc_prompts": [{"scale": 1.0}, {"scale": 4.0}]}


class Serving:
    """Streams one chunk for each result, as vLLM's serving objects do, and then says that it is done."""

    async def chat_completion_stream_generator(self, request: str, results: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for result in results:
            yield f"data: {json.dumps({'text': result.text})}\n\n"
        yield "data: [DONE]\n\n"

    async def completion_stream_generator(self, request: str, results: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for _, result in results:
            yield f"data: {json.dumps({'text': result.text})}\n\n"
        if request == "fails":
            yield f"data: {json.dumps({'error': {'message': 'boom'}})}\n\n"
        yield "data: [DONE]\n\n"

    async def chat_completion_full_generator_batch(self, request: str, generators: list[Any]) -> types.SimpleNamespace:
        ended = [result for generator in generators async for result in generator]
        if request == "fails":
            return types.SimpleNamespace(error=ended)
        return types.SimpleNamespace(choices=[result.text for result in ended], kv_transfer_params=None)

    async def message_stream_converter(self, generator: AsyncIterator[str]) -> AsyncIterator[str]:
        async for chunk in generator:
            if "DONE" in chunk:
                yield f"event: message_delta\ndata: {json.dumps({'type': 'message_delta'})}\n\n"
                yield f"event: message_stop\ndata: {json.dumps({'type': 'message_stop'})}\n\n"
            else:
                yield f"event: content_block_delta\ndata: {json.dumps({'type': 'content_block_delta'})}\n\n"

    def request_output_to_completion_response(self, outputs: list[Any], request: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(kv_transfer_params=outputs[0].kv_transfer_params)


def output(text: str, said: dict[str, Any] | None = None) -> types.SimpleNamespace:
    return types.SimpleNamespace(text=text, kv_transfer_params=said, finished=said is not None)


async def arriving(*results: Any) -> AsyncIterator[Any]:
    for result in results:
        yield result


def announced() -> Serving:
    serving = Serving()
    announce_scales(
        types.SimpleNamespace(
            openai_serving_chat=serving,
            openai_serving_completion=serving,
            openai_serving_chat_batch=serving,
            anthropic_serving_messages=None,
        )
    )
    return serving


def announced_messages() -> Serving:
    serving = Serving()
    names = ("openai_serving_chat", "openai_serving_completion", "openai_serving_chat_batch")
    announce_scales(types.SimpleNamespace(**dict.fromkeys(names), anthropic_serving_messages=serving))
    return serving


async def converted(*results: Any) -> list[tuple[str, dict[str, Any]]]:
    """Events that Anthropic's clients get: their names and what is in them."""
    serving = announced_messages()
    chunks = serving.chat_completion_stream_generator("request", arriving(*results))
    events = [event async for event in serving.message_stream_converter(chunks)]
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in (event.strip().split("\n") for event in events)
    ]


async def test_the_last_chunk_before_the_end_says_the_scale_and_no_other() -> None:
    events = [
        event
        async for event in announced().chat_completion_stream_generator(
            "request", arriving(output("a"), output("b"), output("c", SAID))
        )
    ]
    assert events[-1] == "data: [DONE]\n\n"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert chunks == [{"text": "a"}, {"text": "b"}, {"text": "c", "kv_transfer_params": SAID}]


async def test_every_chunk_reaches_its_client_before_the_next_result_is_asked_for() -> None:
    asked = []

    async def results() -> AsyncIterator[Any]:
        for result in (output("a"), output("b"), output("c", SAID)):
            asked.append(result.text)
            yield result

    events = announced().chat_completion_stream_generator("request", results())
    seen = [(json.loads(event.removeprefix("data: ")).get("text"), asked[-1]) async for event in events if "{" in event]
    assert seen == [("a", "a"), ("b", "b"), ("c", "c")]


async def test_an_error_event_is_passed_on_as_it_is() -> None:
    events = [
        event async for event in announced().completion_stream_generator("fails", arriving((0, output("a", SAID))))
    ]
    assert json.loads(events[-2].removeprefix("data: ")) == {"error": {"message": "boom"}}


async def test_a_stream_that_nobody_said_anything_about_is_passed_on_as_it_is() -> None:
    events = [event async for event in announced().chat_completion_stream_generator("request", arriving(output("a")))]
    assert events == ['data: {"text": "a"}\n\n', "data: [DONE]\n\n"]


async def test_of_several_prompts_every_scale_is_said_in_their_order() -> None:
    results = arriving((1, output("b", SAID)), (0, output("a", UNSCALED)))
    events = [event async for event in announced().completion_stream_generator("request", results)]
    assert json.loads(events[-2].removeprefix("data: "))["kv_transfer_params"] == BOTH
    whole = announced().request_output_to_completion_response([output("a", UNSCALED), output("b", SAID)], "request")
    assert whole.kv_transfer_params == BOTH


async def test_of_several_conversations_every_scale_is_said_in_their_order() -> None:
    batch = [arriving(output("a"), output("b", UNSCALED)), arriving(output("c", SAID))]
    response = await announced().chat_completion_full_generator_batch("request", batch)
    assert response.choices == ["a", "b", "c"] and response.kv_transfer_params == BOTH
    failed = await announced().chat_completion_full_generator_batch("fails", [arriving(output("a", SAID))])
    assert not hasattr(failed, "kv_transfer_params")


async def test_a_streamed_message_says_the_scale_in_the_event_that_ends_it() -> None:
    delta, end, stop = ((name, {"type": name}) for name in ("content_block_delta", "message_delta", "message_stop"))
    said = (end[0], end[1] | {"kv_transfer_params": SAID})
    assert await converted(output("a"), output("b", SAID)) == [delta, delta, said, stop]
    assert await converted(output("kv_transfer_params")) == [delta, end, stop]


def test_of_one_prompt_an_answer_says_what_the_connector_said() -> None:
    whole = announced().request_output_to_completion_response([output("a", SAID)], "request")
    assert whole.kv_transfer_params == SAID


async def test_an_answer_of_which_the_engine_said_nothing_names_the_scale_it_was_admitted_at() -> None:
    class Engine:
        async def generate(self, prompt: str, sampling_params: Any, request_id: str) -> AsyncIterator[Any]:
            for finished, said in ((False, None), (True, SAID if prompt == "told" else None)):
                yield types.SimpleNamespace(finished=finished, kv_transfer_params=said, prompt_token_ids=[1] * 500)

    engine = Engine()
    yarn = Deployment(
        rope_type="yarn",
        scales=(1.0, 4.0),
        original_max_position_embeddings=512,
        max_model_len=2048,
        on_crossing="pin",
    )
    announce_stopped(engine, yarn)
    asked = types.SimpleNamespace(max_tokens=100)
    stopped = [output.kv_transfer_params async for output in engine.generate("stopped", asked, "1")]
    report = {"rope_type": "yarn", "scale": 4.0, "admission_tokens": 600, "crossings": []}
    assert stopped == [None, {"posenc": report}]
    assert [output.kv_transfer_params async for output in engine.generate("told", asked, "2")] == [None, SAID]
