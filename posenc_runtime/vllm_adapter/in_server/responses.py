"""Puts the scale into every answer.

vLLM answers with what the connector reports at the end of a request, in ``kv_transfer_params``. Some answers lack it:
streamed messages of Anthropic's API, every stream of older releases, and answers to several prompts, which have the
first prompt's report or none. We wrap vLLM's serving objects: a wrapper reads the engine's results as they pass, and
completes the answer. Of several answers to one prompt (``n`` above 1), vLLM passes on the report of the one that ended
last. We keep the others' where vLLM's output processor drops them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from vllm.sampling_params import RequestOutputKind

from posenc_runtime.kv.admission import admit
from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter import releases

_KEY = "kv_transfer_params"
_PROMPTS, _CHOICES = "posenc_prompts", "posenc_choices"  # a report for each prompt, and one for each answer
_DATA = "data: "
_DONE = "[DONE]"
_MESSAGE_ENDS = "event: message_delta\n"  # Anthropic's event with what is known of an answer at its end


@dataclasses.dataclass
class _Said:
    """What the engine's results for one answer have reported so far.

    Attributes:
        params: the reports, by the index of the prompt.
        is_last: whether the latest result was the last one of its prompt.
    """

    params: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)
    is_last: bool = False


def announce_scales(state: Any) -> None:
    """Wrap the serving objects of a built application.

    Args:
        state: ``app.state`` after ``init_app_state``.
    """
    chat, completion = state.openai_serving_chat, state.openai_serving_completion
    if chat is not None and releases.STREAMS_WITHOUT_PARAMS.is_here:
        chat.chat_completion_stream_generator = _streaming(chat.chat_completion_stream_generator)
    if completion is not None:
        completion.completion_stream_generator = _streaming(completion.completion_stream_generator)
        completion.request_output_to_completion_response = _whole(completion.request_output_to_completion_response)
    batch, messages = state.openai_serving_chat_batch, state.anthropic_serving_messages
    if batch is not None:
        batch.chat_completion_full_generator_batch = _batch(batch.chat_completion_full_generator_batch)
    if messages is not None:  # it makes its events from a chat's
        if releases.MESSAGES_MADE_OF_TEXTS.is_here:
            messages.chat_completion_stream_generator = _streaming(messages.chat_completion_stream_generator)
        messages.message_stream_converter = _converting(messages.message_stream_converter)


def announce_choices() -> None:
    """Let the last result of a request with several answers have the report of each, in the order of their indices."""
    for (module, owner, name), wrap in OF_CHOICES.items():
        found = getattr(importlib.import_module(module), owner)
        setattr(found, name, wrap(inspect.unwrap(getattr(found, name))))


def _reporting(stock: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def make_request_output(self: Any, *args: Any, **kwargs: Any) -> Any:
        output, parent = stock(self, *args, **kwargs), self.parent_req
        if parent is None:
            return output
        reports = vars(parent).setdefault(_CHOICES, {})
        params = signature.bind(self, *args, **kwargs).arguments.get(_KEY) or {}
        if "posenc" in params:
            reports[self.request_index] = params["posenc"]
        if reports and output is not None and output.finished:
            # An answer that was aborted, or that a stop string ended, may be the last, and have no report.
            last = output.kv_transfer_params or {"posenc": next(reversed(reports.values()))}
            output.kv_transfer_params = last | {_CHOICES: [reports.get(index) for index in range(parent.n)]}
        return output

    return make_request_output


def announce_stopped(engine: Any, deployment: Deployment) -> None:
    """If requests keep their first scale, let an answer that ended at a stop string name this scale.

    This process finds stop strings, and the engine's report at the end of such a request is lost. Where requests cross,
    our scheduler adds the report to every output instead. Where queries turn, no engine reports anything.

    Args:
        engine: vLLM's client of the engine; its ``generate`` is wrapped.
    """
    wrap = naming_turned if deployment.turns_queries else naming_stopped
    engine.generate = wrap(engine.generate, deployment)


def naming_stopped(stock: Callable[..., AsyncIterator[Any]], deployment: Deployment) -> Callable[..., Any]:
    """Wrap ``generate`` of vLLM's client, so that the last output of every request has a report."""

    async def generate(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async for output in stock(prompt, sampling_params, *args, **kwargs):
            if output.finished:
                params = output.kv_transfer_params or {}
                choices = params.get(_CHOICES, [params.get("posenc")] * sampling_params.n)
                if None in choices:
                    report = report_of_admission(
                        deployment,
                        num_prompt_tokens=len(output.prompt_token_ids),
                        max_tokens=sampling_params.max_tokens,
                    )
                    params = {"posenc": report} | params | _of_choices([each or report for each in choices])
                    output.kv_transfer_params = params
            yield output

    return generate


def naming_turned(stock: Callable[..., AsyncIterator[Any]], deployment: Deployment) -> Callable[..., Any]:
    """Wrap ``generate`` of vLLM's client, so that the last output says how far a request went.

    What a connector of the user's own reports stays.
    """

    async def generate(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        new_tokens: Counter[int] = Counter()  # of each answer
        is_in_parts = sampling_params.output_kind == RequestOutputKind.DELTA
        async for output in stock(prompt, sampling_params, *args, **kwargs):
            for answer in output.outputs:
                before = new_tokens[answer.index] if is_in_parts else 0
                new_tokens[answer.index] = before + len(answer.token_ids)
            if output.finished:
                num_prompt_tokens = len(output.prompt_token_ids or ())
                longest, *of_choices = (
                    report_of_turning(deployment, num_tokens=num_prompt_tokens + num_new_tokens)
                    for num_new_tokens in (
                        max(new_tokens.values(), default=0),
                        *(new_tokens[index] for index in range(sampling_params.n)),
                    )
                )
                said = {"posenc": longest} | _of_choices(of_choices)
                output.kv_transfer_params = (output.kv_transfer_params or {}) | said
            yield output

    return generate


def _of_choices(reports: list[Any]) -> dict[str, Any]:
    """What is said of several answers to one prompt; nothing of one."""
    return {_CHOICES: reports} if len(reports) > 1 else {}


def report_of_turning(deployment: Deployment, *, num_tokens: int) -> dict[str, Any]:
    """The report of a request whose queries turn past the trained length.

    Args:
        num_tokens: of prompt and answer.
    """
    trained = deployment.original_max_position_embeddings
    return {"rope_type": deployment.rope_type, "tokens_past_trained": max(0, num_tokens - trained), "crossings": []}


def report_of_admission(deployment: Deployment, *, num_prompt_tokens: int, max_tokens: int | None) -> dict[str, Any]:
    """The report of a request that keeps its first scale, where the engine's own is lost."""
    admission = admit(deployment, num_prompt_tokens=num_prompt_tokens, max_tokens=max_tokens)
    return {
        "rope_type": deployment.rope_type,
        "scale": deployment.scales[admission.scale_index],
        "admission_tokens": admission.admission_tokens,
        "crossings": [],
    }


def _whole(respond: Callable[..., Any]) -> Callable[..., Any]:
    def announcing(final_res_batch: list[Any], *args: Any, **kwargs: Any) -> Any:
        response = respond(final_res_batch, *args, **kwargs)
        params = [output.kv_transfer_params for output in final_res_batch]
        said = {index: each for index, each in enumerate(params) if each}
        if said:
            response.kv_transfer_params = _params(said)
        return response

    return announcing


def _batch(respond: Callable[..., Any]) -> Callable[..., Any]:
    async def announcing(request: Any, generators: list[AsyncIterator[Any]], *args: Any, **kwargs: Any) -> Any:
        said = _Said()
        watched = [_watched(results, said, index) for index, results in enumerate(generators)]
        response = await respond(request, watched, *args, **kwargs)
        if said.params and hasattr(response, "kv_transfer_params"):  # an error has none
            response.kv_transfer_params = _params(said.params)
        return response

    return announcing


def _converting(converter: Callable[..., AsyncIterator[str]]) -> Callable[..., AsyncIterator[str]]:
    params_in = _params_in_text if releases.MESSAGES_MADE_OF_TEXTS.is_here else _params_in_chunk

    async def announcing(generator: AsyncIterator[Any]) -> AsyncIterator[str]:
        said: dict[str, Any] = {}

        async def watched() -> AsyncIterator[Any]:
            async for chunk in generator:
                said.update(params_in(chunk))
                yield chunk

        async for event in converter(watched()):
            if said and event.startswith(_MESSAGE_ENDS):
                yield _MESSAGE_ENDS + _with(json.loads(event.removeprefix(_MESSAGE_ENDS + _DATA)), said)
            else:
                yield event

    return announcing


def _params_in_text(event: str) -> Mapping[str, Any]:
    return json.loads(event.removeprefix(_DATA)).get(_KEY) or {} if _KEY in event else {}


def _params_in_chunk(chunk: Any) -> Mapping[str, Any]:
    return getattr(chunk, _KEY, None) or {}  # an error has none


def _streaming(generator: Callable[..., AsyncIterator[str]]) -> Callable[..., AsyncIterator[str]]:
    async def announcing(*args: Any, **kwargs: Any) -> AsyncIterator[str]:
        position = next(index for index, argument in enumerate(args) if hasattr(argument, "__aiter__"))
        said = _Said()
        watched = (*args[:position], _watched(args[position], said), *args[position + 1 :])
        # Only the last chunk before [DONE] is completed. It is made from a prompt's last result, so no other is held.
        held: str | None = None
        async for event in generator(*watched, **kwargs):
            if held is not None:
                yield _completed(held, said.params) if event.startswith(_DATA + _DONE) else held
            held = event if said.is_last else None
            if held is None:
                yield event
        if held is not None:
            yield held

    return announcing


async def _watched(results: AsyncIterator[Any], said: _Said, index: int = 0) -> AsyncIterator[Any]:
    """Pass results on and note their reports. Completions yield (prompt index, output), chats the output alone."""
    async for result in results:
        prompt, output = result if isinstance(result, tuple) else (index, result)
        if output.kv_transfer_params:
            said.params[prompt] = output.kv_transfer_params
        said.is_last = output.finished
        yield result


def _completed(event: str, said: dict[int, dict[str, Any]]) -> str:
    if not said or not event.startswith(_DATA + "{"):
        return event
    if len(said) == 1 and not releases.STREAMS_WITHOUT_PARAMS.is_here:
        return event  # vLLM has put it into the chunk with which the answer ended
    chunk = json.loads(event.removeprefix(_DATA))
    if "error" in chunk:
        return event
    params = _params(said)
    of_all = {name: params[name] for name in (_PROMPTS, _CHOICES) if name in params}
    return _with(chunk, params | (chunk.get(_KEY) or {}) | of_all)


def _with(chunk: dict[str, Any], params: dict[str, Any]) -> str:
    return f"{_DATA}{json.dumps(chunk | {_KEY: params}, ensure_ascii=False)}\n\n"


def _params(said: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The first prompt's report under ``posenc``; for several prompts, also all in order under ``posenc_prompts``.

    Where prompts have several answers, ``posenc_choices`` has a report for each, in the order of choices.
    """
    first, *others = (said[index] for index in sorted(said))
    if not others:
        return first
    params = first | {_PROMPTS: [each["posenc"] for each in (first, *others)]}
    if num_answers := max(len(each.get(_CHOICES, ())) for each in said.values()):
        prompts = (said.get(index, {}) for index in range(max(said) + 1))
        params[_CHOICES] = [report for each in prompts for report in each.get(_CHOICES, [None] * num_answers)]
    return params


_CHAT = ("vllm.entrypoints.openai.chat_completion.serving", "OpenAIServingChat")
_BATCH = ("vllm.entrypoints.openai.chat_completion.batch_serving", "OpenAIServingChatBatch")
_COMPLETION = ("vllm.entrypoints.openai.completion.serving", "OpenAIServingCompletion")
_MESSAGES = ("vllm.entrypoints.anthropic.serving", "AnthropicServingMessages")

# vLLM's methods that we wrap, by module, class and name, each with the function that wraps it.
WRAPPED: Mapping[tuple[str, str, str], Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    (*_CHAT, "chat_completion_stream_generator"): _streaming,
    (*_COMPLETION, "completion_stream_generator"): _streaming,
    (*_COMPLETION, "request_output_to_completion_response"): _whole,
    (*_BATCH, "chat_completion_full_generator_batch"): _batch,
    (*_MESSAGES, "message_stream_converter"): _converting,
}
# As above; replaced in the class, for all requests of this process.
OF_CHOICES: Mapping[tuple[str, str, str], Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    ("vllm.v1.engine.output_processor", "RequestState", "make_request_output"): _reporting,
}
