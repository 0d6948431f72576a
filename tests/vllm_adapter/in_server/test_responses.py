"""The scale in every answer, streamed ones in their last chunk, unless vLLM says it of each where it ends."""

from __future__ import annotations

import copy
import json
import types
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import RequestOutputCollector, RequestState
from vllm.v1.engine.parallel_sampling import ParentRequest

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.in_server.responses import announce_choices, announce_scales, announce_stopped
from posenc_runtime.vllm_adapter.releases.differences import Difference

KEY = "kv_transfer_params"
SAID = {"posenc": {"scale": 4.0}}
UNSCALED = {"posenc": {"scale": 1.0}}
BOTH = {"posenc": {"scale": 1.0}, "posenc_prompts": [{"scale": 1.0}, {"scale": 4.0}]}


@pytest.fixture(params=[True, False], ids=["streams-without-params", "streams-with-params"], autouse=True)
def older(request: pytest.FixtureRequest, as_if: Callable[[Difference, bool], None]) -> bool:
    """Whether vLLM streams no params, and makes events of messages out of texts."""
    is_older: bool = request.param
    as_if(releases.STREAMS_WITHOUT_PARAMS, is_older)
    as_if(releases.MESSAGES_MADE_OF_TEXTS, is_older)
    return is_older


class Serving:
    """Streams one chunk for each result, as vLLM's serving objects do, and then says that it is done."""

    def __init__(self, is_older: bool) -> None:
        self.is_older = is_older

    def chunk(self, result: Any) -> dict[str, Any]:
        return {"text": result.text} if self.is_older else {"text": result.text, KEY: result.kv_transfer_params}

    async def chat_completion_stream_generator(self, request: str, results: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for result in results:
            yield f"data: {json.dumps(self.chunk(result))}\n\n"
        yield "data: [DONE]\n\n"

    async def chat_completion_stream_generator_raw(
        self, request: str, results: AsyncIterator[Any]
    ) -> AsyncIterator[types.SimpleNamespace]:
        async for result in results:
            yield types.SimpleNamespace(**self.chunk(result))
        yield types.SimpleNamespace(usage="of all, or an error")

    async def completion_stream_generator(self, request: str, results: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for _, result in results:
            yield f"data: {json.dumps(self.chunk(result))}\n\n"
        if request == "fails":
            yield f"data: {json.dumps({'error': {'message': 'boom'}})}\n\n"
        yield "data: [DONE]\n\n"

    async def chat_completion_full_generator_batch(self, request: str, generators: list[Any]) -> types.SimpleNamespace:
        ended = [result for generator in generators async for result in generator]
        if request == "fails":
            return types.SimpleNamespace(error=ended)
        return types.SimpleNamespace(choices=[result.text for result in ended], kv_transfer_params=None)

    async def message_stream_converter(self, generator: AsyncIterator[Any]) -> AsyncIterator[str]:
        async for chunk in generator:
            if "DONE" in chunk if isinstance(chunk, str) else hasattr(chunk, "usage"):
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


@pytest.fixture
def announced(older: bool) -> Serving:
    serving = Serving(older)
    announce_scales(
        types.SimpleNamespace(
            openai_serving_chat=serving,
            openai_serving_completion=serving,
            openai_serving_chat_batch=serving,
            anthropic_serving_messages=None,
        )
    )
    return serving


async def converted(older: bool, *results: Any) -> list[tuple[str, dict[str, Any]]]:
    """Events that Anthropic's clients get: their names and what is in them."""
    serving = Serving(older)
    names = ("openai_serving_chat", "openai_serving_completion", "openai_serving_chat_batch")
    announce_scales(types.SimpleNamespace(**dict.fromkeys(names), anthropic_serving_messages=serving))
    stream: Any = serving.chat_completion_stream_generator if older else serving.chat_completion_stream_generator_raw
    chunks = stream("request", arriving(*results))
    events = [event async for event in serving.message_stream_converter(chunks)]
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in (event.strip().split("\n") for event in events)
    ]


def chunks_of(events: list[str]) -> list[dict[str, Any]]:
    """What a client reads of a stream, which has ended."""
    assert events[-1] == "data: [DONE]\n\n"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


async def test_the_last_chunk_before_the_end_says_the_scale_and_no_other(announced: Serving, older: bool) -> None:
    results = arriving(output("a"), output("b"), output("c", SAID))
    events = [event async for event in announced.chat_completion_stream_generator("request", results)]
    nothing = {} if older else {KEY: None}
    assert chunks_of(events) == [{"text": "a"} | nothing, {"text": "b"} | nothing, {"text": "c", KEY: SAID}]


async def test_a_stream_in_which_vllm_says_it_is_passed_on_as_it_is(announced: Serving, older: bool) -> None:
    stock = Serving(older)
    for name, results in (
        ("chat_completion_stream_generator", [output("a"), output("b", SAID)]),
        ("completion_stream_generator", [(0, output("a")), (0, output("b", SAID))]),
    ):
        ours = [event async for event in getattr(announced, name)("request", arriving(*results))]
        theirs = [event async for event in getattr(stock, name)("request", arriving(*results))]
        assert (ours == theirs) is not older


async def test_every_chunk_reaches_its_client_before_the_next_result_is_asked_for(announced: Serving) -> None:
    asked = []

    async def results() -> AsyncIterator[Any]:
        for result in (output("a"), output("b"), output("c", SAID)):
            asked.append(result.text)
            yield result

    events = announced.chat_completion_stream_generator("request", results())
    seen = [(json.loads(event.removeprefix("data: ")).get("text"), asked[-1]) async for event in events if "{" in event]
    assert seen == [("a", "a"), ("b", "b"), ("c", "c")]


async def test_an_error_event_is_passed_on_as_it_is(announced: Serving) -> None:
    results = arriving((1, output("b", UNSCALED)), (0, output("a", SAID)))
    events = [event async for event in announced.completion_stream_generator("fails", results)]
    assert chunks_of(events)[-1] == {"error": {"message": "boom"}}


async def test_a_stream_that_nobody_said_anything_about_is_passed_on_as_it_is(announced: Serving, older: bool) -> None:
    events = [event async for event in announced.chat_completion_stream_generator("request", arriving(output("a")))]
    assert chunks_of(events) == [{"text": "a"} if older else {"text": "a", KEY: None}]


async def test_of_several_prompts_every_scale_is_said_in_their_order(announced: Serving, older: bool) -> None:
    results = arriving((1, output("b", SAID)), (0, output("a", UNSCALED)))
    events = [event async for event in announced.completion_stream_generator("request", results)]
    assert [chunk.get(KEY) for chunk in chunks_of(events)] == [None if older else SAID, BOTH]
    whole = announced.request_output_to_completion_response([output("a", UNSCALED), output("b", SAID)], "request")
    assert whole.kv_transfer_params == BOTH


async def test_what_vllm_says_of_one_of_several_prompts_stays_beside_what_is_said_of_all(
    announced: Serving, older: bool
) -> None:
    results = arriving((0, output("a", UNSCALED)), (1, output("b", SAID)))
    events = [event async for event in announced.completion_stream_generator("request", results)]
    *_, last = chunks_of(events)
    assert last[KEY] == (BOTH if older else BOTH | SAID)


async def test_of_several_answers_to_several_prompts_every_one_says_its_scale(announced: Serving, older: bool) -> None:
    first = UNSCALED | {"posenc_choices": [{"scale": 1.0}, {"scale": 2.0}]}
    second = SAID | {"posenc_choices": [None, {"scale": 4.0}]}
    whole = announced.request_output_to_completion_response([output("a", first), output("b", second)], "request")
    said = BOTH | {"posenc_choices": [{"scale": 1.0}, {"scale": 2.0}, None, {"scale": 4.0}]}
    assert whole.kv_transfer_params == said
    results = arriving((0, output("a", first)), (1, output("b", second)))
    *_, last = chunks_of([event async for event in announced.completion_stream_generator("request", results)])
    assert last[KEY] == (said if older else said | SAID)


class Answering:
    """vLLM's own record of requests that share a prompt, one for each answer."""

    def __init__(self, kind: RequestOutputKind, answers: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RequestState, "make_request_output", RequestState.make_request_output)
        announce_choices()
        params = SamplingParams(n=answers, max_tokens=8, output_kind=kind, detokenize=False)
        arrived = EngineCoreRequest(
            request_id="all",
            external_req_id="all",
            prompt_token_ids=[1, 2],
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        parent, self.collected = ParentRequest(arrived), RequestOutputCollector(kind, "all")
        self.states = []
        for index in range(answers):
            name, of_child = parent.get_child_info(index)
            child = copy.copy(arrived)
            child.request_id, child.sampling_params = name, of_child
            self.states.append(
                RequestState.from_new_request(
                    None, child, None, parent, index, self.collected, log_stats=False, stream_interval=1
                )
            )

    def say(self, index: int, said: dict[str, Any] | None, ended: FinishReason | None) -> None:
        made = self.states[index].make_request_output([7], None, ended, None, kv_transfer_params=said)
        if made is not None:
            self.collected.put(made)

    def read(self) -> Any:
        return self.collected.get_nowait()


@pytest.mark.parametrize("is_behind", [False, True], ids=["read one by one", "read at the end"])
@pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY])
def test_each_of_several_answers_keeps_its_report_whichever_ends_last(
    kind: RequestOutputKind, is_behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, last = Answering(kind, 3, monkeypatch), None
    for index, said, ended in (
        (0, None, None),
        (2, SAID, FinishReason.LENGTH),
        (0, UNSCALED, FinishReason.STOP),
        (1, None, FinishReason.ABORT),
    ):
        answers.say(index, said, ended)
        if not is_behind:
            last = answers.read() or last
    last = answers.read() or last
    assert last.finished
    assert last.kv_transfer_params == UNSCALED | {"posenc_choices": [UNSCALED["posenc"], None, SAID["posenc"]]}


def test_one_answer_has_no_list_of_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answering(RequestOutputKind.FINAL_ONLY, 1, monkeypatch)
    answers.states[0].parent_req = None
    answers.say(0, SAID, FinishReason.LENGTH)
    assert answers.read().kv_transfer_params == SAID


async def test_of_several_conversations_every_scale_is_said_in_their_order(announced: Serving) -> None:
    batch = [arriving(output("a"), output("b", UNSCALED)), arriving(output("c", SAID))]
    response = await announced.chat_completion_full_generator_batch("request", batch)
    assert response.choices == ["a", "b", "c"] and response.kv_transfer_params == BOTH
    failed = await announced.chat_completion_full_generator_batch("fails", [arriving(output("a", SAID))])
    assert not hasattr(failed, "kv_transfer_params")


async def test_a_streamed_message_says_the_scale_in_the_event_that_ends_it(older: bool) -> None:
    delta, end, stop = ((name, {"type": name}) for name in ("content_block_delta", "message_delta", "message_stop"))
    said = (end[0], end[1] | {"kv_transfer_params": SAID})
    assert await converted(older, output("a"), output("b", SAID)) == [delta, delta, said, stop]
    assert await converted(older, output("kv_transfer_params")) == [delta, end, stop]


def test_of_one_prompt_an_answer_says_what_the_connector_said(announced: Serving) -> None:
    whole = announced.request_output_to_completion_response([output("a", SAID)], "request")
    assert whole.kv_transfer_params == SAID


@pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE])
async def test_where_queries_turn_an_answer_counts_tokens_past_the_trained_length(
    kind: RequestOutputKind,
) -> None:
    def answer(index: int, *, so_far: int, new: int) -> types.SimpleNamespace:
        num_tokens = new if kind == RequestOutputKind.DELTA else so_far
        return types.SimpleNamespace(index=index, token_ids=[7] * num_tokens)

    class Engine:
        async def generate(self, prompt: str, sampling_params: Any, request_id: str) -> AsyncIterator[Any]:
            for finished, outputs in (
                (False, [answer(0, so_far=4, new=4), answer(1, so_far=9, new=9)]),
                (True, [answer(1, so_far=20, new=11)]),
            ):
                theirs = {"theirs": 1} if finished else None
                yield types.SimpleNamespace(
                    finished=finished, kv_transfer_params=theirs, prompt_token_ids=[1] * 500, outputs=outputs
                )

    engine = Engine()
    announce_stopped(engine, Deployment(rope_type="rerope", original_max_position_embeddings=512, max_model_len=2048))
    asked = types.SimpleNamespace(max_tokens=100, output_kind=kind, n=2)
    told = [output.kv_transfer_params async for output in engine.generate("prompt", asked, "1")]
    nothing = {"rope_type": "rerope", "tokens_past_trained": 0, "crossings": []}
    report = nothing | {"tokens_past_trained": 8}
    assert told == [None, {"theirs": 1, "posenc": report, "posenc_choices": [nothing, report]}]


async def test_an_answer_without_a_report_of_the_engine_names_the_scale_of_admission() -> None:
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
    asked = types.SimpleNamespace(max_tokens=100, n=1)
    stopped = [output.kv_transfer_params async for output in engine.generate("stopped", asked, "1")]
    report = {"rope_type": "yarn", "scale": 4.0, "admission_tokens": 600, "crossings": []}
    assert stopped == [None, {"posenc": report}]
    assert [output.kv_transfer_params async for output in engine.generate("told", asked, "2")] == [None, SAID]
    asked = types.SimpleNamespace(max_tokens=100, n=2)
    *_, last = [output.kv_transfer_params async for output in engine.generate("stopped", asked, "3")]
    assert last == {"posenc": report, "posenc_choices": [report, report]}
