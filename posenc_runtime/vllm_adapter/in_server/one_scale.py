"""Runs all requests of the engine that make one answer at one scale: those of beams, of items, and of questions.

vLLM sends the engine a request for each beam and token, for each item to score, and for each question to decide. Each
of these requests would be admitted at its own length, and one answer would mix scales. So they are admitted together,
at the longest length that one of them may reach, and none crosses. The length travels in ``extra_args``, under a name
that clients may not use. Decision 77.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from posenc_runtime.kv.deployment import Deployment
from posenc_runtime.vllm_adapter.contract.names import ADMISSION_TOKENS, PREFILLED_SCALE
from posenc_runtime.vllm_adapter.in_server.requests import check_pinned
from posenc_runtime.vllm_adapter.in_server.responses import report_of_admission

# Attributes of ``app.state`` that send several requests for one answer: the method, and the route.
ASK_SEVERAL = {
    "serving_generative_scoring": ("create_generative_scoring", "/generative_scoring"),
    "serving_structured_decisions": ("create_decision", "/v1/systemone"),
    "openai_serving_decisions": ("create_decisions", "/v1/decisions"),
}


class Together:
    """Requests of the engine that make one answer.

    Attributes:
        tokens: the longest length that one of them may reach; prompt and new tokens.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self._is_admitted = False

    def note(self, num_tokens: int) -> None:
        """Take in the length of one of them.

        Raises:
            RuntimeError: when another one runs already, and this one is longer than it was told.
        """
        if num_tokens <= self.tokens:
            return
        if self._is_admitted:
            raise RuntimeError(
                f"the requests of one answer must say their lengths before the first one runs, but one of {num_tokens} "
                f"tokens came after they were admitted for {self.tokens}: serve this route with one scale"
            )
        self.tokens = num_tokens

    def admitted(self, sampling_params: Any) -> Any:
        """The parameters of one of them, which tell the engine the length of all; the given ones are not changed."""
        self._is_admitted = True
        told = copy.copy(sampling_params)
        told.extra_args = {**(told.extra_args or {}), ADMISSION_TOKENS: self.tokens}
        return told

    def report(self, deployment: Deployment) -> dict[str, Any] | None:
        """What the answer says; None where no request was sent."""
        if not self._is_admitted:
            return None
        tokens = min(self.tokens, deployment.max_model_len)
        return report_of_admission(deployment, num_prompt_tokens=tokens, max_tokens=0)


# Tasks that are created meanwhile have it, too.
_together: ContextVar[Together | None] = ContextVar("together", default=None)


@contextlib.contextmanager
def _of(together: Together) -> Iterator[None]:
    token = _together.set(together)
    try:
        yield
    finally:
        _together.reset(token)


def keep_at_one_scale(engine: Any, state: Any, deployment: Deployment) -> None:
    """Let the requests of the engine that make one answer run at one scale, and the answer say which.

    Args:
        engine: vLLM's client of a running engine; its ``generate`` is wrapped. Whatever else wraps it must have done so
            before: it may begin only when it is read, and lengths are noted when it is called.
        state: ``app.state`` after ``init_app_state``.
    """
    for (module, *path, name), wrap in WRAPPED.items():
        owner = functools.reduce(getattr, path, importlib.import_module(module))
        setattr(owner, name, wrap(inspect.unwrap(getattr(owner, name)), deployment))
    if len(deployment.scales) == 1:
        return
    engine.generate = admitting(engine.generate)
    strategies: dict[int, Any] = {}
    for name, (method, route) in ASK_SEVERAL.items():
        serving = getattr(state, name, None)
        if serving is not None:
            setattr(serving, method, _handling(getattr(serving, method), serving, route, deployment))
            if (strategy := getattr(serving, "strategy", None)) is not None:
                strategies[id(strategy)] = strategy
    for strategy in strategies.values():
        if (render := getattr(strategy, "_render", None)) is not None:
            strategy._render = _noting(render)


def admitting(stock: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """Wrap ``generate`` of vLLM's client: requests of one answer say how long they are when it is called, and all of
    them tell the engine the longest length when they run.

    What it gives raises ``ValueError``, which is answered with status 400, for a client that writes a name of ours.
    """

    @functools.wraps(stock)
    def generate(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        together = _together.get()
        if together is not None:
            together.note(_num_tokens(prompt) + (sampling_params.max_tokens or 0))
            return admitted(together, prompt, sampling_params, *args, **kwargs)
        for name in getattr(sampling_params, "extra_args", None) or {}:
            if name in (ADMISSION_TOKENS, PREFILLED_SCALE):
                return refused(name)
        return stock(prompt, sampling_params, *args, **kwargs)

    async def admitted(
        together: Together, prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        async for output in stock(prompt, together.admitted(sampling_params), *args, **kwargs):
            yield output

    async def refused(name: str) -> AsyncIterator[Any]:
        raise ValueError(f"extra_args.{name} must be left out: only the server sets it")
        yield  # as what it stands for, it raises when it is read

    return generate


def _handling(stock: Callable[..., Any], serving: Any, route: str, deployment: Deployment) -> Callable[..., Any]:
    @functools.wraps(stock)
    async def handle(request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            check_pinned(request, deployment, f"{route} is asked")
        except ValueError as error:
            return serving.create_error_response(error)
        together = Together()
        with _of(together):
            response = await stock(request, *args, **kwargs)
        report = together.report(deployment)
        if report is not None and not hasattr(response, "error"):
            response.kv_transfer_params = {"posenc": report}
        return response

    return handle


def _noting(render: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap what makes the prompt of a question: all are made before the engine gets the first, which may be shorter."""

    @functools.wraps(render)
    async def rendered(*args: Any, **kwargs: Any) -> Any:
        made = await render(*args, **kwargs)
        if (together := _together.get()) is not None:
            together.note(len(made[1]) + 1)
        return made

    return rendered


def _beaming(stock: Callable[..., AsyncIterator[Any]], deployment: Deployment) -> Callable[..., AsyncIterator[Any]]:
    """Wrap vLLM's search: its beams are as long as the prompt and ``max_tokens``, however long they are by now."""
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    async def beam_search(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        asked = signature.bind(*args, **kwargs).arguments
        results, together = stock(*args, **kwargs), Together()
        if len(deployment.scales) > 1:
            together.note(_num_tokens(asked["prompt"]) + asked["params"].max_tokens)
        while True:
            # Set for one result at a time: between results, this generator runs in the context of whoever asks.
            with _of(together) if together.tokens else contextlib.nullcontext():
                try:
                    result = await anext(results)
                except StopAsyncIteration:
                    return
            if (report := together.report(deployment)) is not None:
                result.kv_transfer_params = {"posenc": report, "posenc_choices": [report] * len(result.outputs)}
            yield result

    return beam_search


def _num_tokens(prompt: Any) -> int:
    """Tokens of a prompt in the form in which vLLM's front end gives it to the engine."""
    prompt = prompt.get("decoder_prompt", prompt)
    return len(prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt_embeds"])


# vLLM's methods that we wrap, by module, class and name, each with the function that wraps it.
WRAPPED: Mapping[tuple[str, str, str], Callable[[Callable[..., Any], Deployment], Callable[..., Any]]] = {
    ("vllm.entrypoints.generate.beam_search.online", "BeamSearchOnlineMixin", "beam_search"): _beaming,
}
