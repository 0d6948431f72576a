"""vLLM's models with bounded validation, beside themselves without it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.openai.chat_completion.protocol import BatchChatCompletionRequest, ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMError
from vllm.utils.argparse_utils import FlexibleArgumentParser

from posenc_runtime.vllm_adapter import releases
from server.app.edge.bounded_validation import bound_validation, bounded
from tests.fuzz.attacks import ATTACKS
from tests.fuzz.bodies import requests

MODELS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/chat/completions/batch": BatchChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": AnthropicMessagesRequest,
    "/v1/messages/count_tokens": AnthropicCountTokensRequest,
}


def bodies(route: str, seed: int, count: int) -> Iterator[Any]:
    for found, text, _ in requests(seed, count):
        if found == route and len(text) < 5000:
            try:
                yield json.loads(text)
            except (ValueError, RecursionError):
                continue


def made(validate: Any, body: Any) -> Any:
    """What a validator makes of a body; None where it refuses the body."""
    try:
        value = validate(copy.deepcopy(body), from_attributes=True)
        # Ids that are made for a request that has none are random, and iterables are read here.
        return {name: _plain(each) for name, each in value if name not in ("request_id", "created")}
    except (ValueError, TypeError, AttributeError, RecursionError, VLLMError):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return type(value).__name__, {name: _plain(each) for name, each in value}
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if hasattr(value, "__next__") or isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if type(value).__name__ == "ValidatorIterator":
        return [_plain(each) for each in value]
    return repr(value)


@pytest.mark.parametrize("route", MODELS)
def test_what_a_model_accepts_and_makes_of_it_stays_the_same(route: str) -> None:
    model, accepted = MODELS[route], 0
    validator = bounded(TypeAdapter(model).core_schema)
    for body in bodies(route, seed=7, count=2500):
        stock = made(model.model_validate, body)
        assert made(validator.validate_python, body) == stock, json.dumps(body)[:2000]
        accepted += stock is not None
    assert accepted > 10


@pytest.fixture(scope="module")
def adapters() -> dict[str, list[TypeAdapter[Any]]]:
    """Adapters of vLLM's own application, after they were changed, by route."""
    from server.app.edge import bounded_validation

    arguments = (
        releases.cli_args()
        .make_arg_parser(FlexibleArgumentParser())
        .parse_args(["--model", "none", "--enable-scale-out"])
    )
    app = build_app(arguments, ("generate",))
    bound_validation(app)
    found: dict[str, list[TypeAdapter[Any]]] = {}
    for route in app.routes:
        if "POST" in (getattr(route, "methods", None) or ()):
            one = type("One", (), {"routes": [route]})
            found[route.path] = list(bounded_validation._adapters(one))  # type: ignore[arg-type]
    return found


# What else takes a body reads it by itself, and makes no model of it.
WITHOUT_A_MODEL = {
    *("/scale_elastic_ep", "/is_scaling_elastic_ep", "/inference/v1/abort_requests", "/ping"),
    "/v1/responses/{response_id}/cancel",
}


def test_every_route_that_takes_a_model_is_bounded(adapters: dict[str, list[TypeAdapter[Any]]]) -> None:
    assert {route for route, found in adapters.items() if not found} <= WITHOUT_A_MODEL


WRONG: dict[str, dict[str, Any]] = {
    "messages": {"messages": [{}] * 4000},
    "parts of a message": {"messages": [{"role": "user", "content": [{"type": "nothing"}] * 4000}]},
    "wrong parts of a message": {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}] * 4000}]},
    "input": {"input": [{}] * 4000},
    "input of a known type": {"input": [{"type": "message"}] * 4000},
    "parts of an input": {"input": [{"role": "user", "content": [{}] * 4000}]},
    "tools": {"input": "a", "tools": [{}] * 4000},
    "prompt": {"prompt": [1.5] * 1000},
    "ids of prompts": {"prompt": [[1.5] * 4000] * 1000},
    "biases": {"prompt": "a", "logit_bias": {str(key): "x" for key in range(4000)}},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_list_of_wrong_items_has_the_errors_of_one(name: str, adapters: dict[str, list[TypeAdapter[Any]]]) -> None:
    body = {"model": "tiny", "max_tokens": 1} | WRONG[name]
    several = 0
    for route in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/invocations"):
        for adapter in adapters[route]:
            try:
                list(made_of(adapter, body))
            except ValidationError as error:
                several = max(several, error.error_count())
            except VLLMError:  # what belongs to another route
                continue
    assert 1 <= several < 60


def made_of(adapter: TypeAdapter[Any], body: Any) -> Iterator[Any]:
    yield from (each for _, each in adapter.validate_python(copy.deepcopy(body), from_attributes=True))


@pytest.mark.parametrize("body", [{"messages": 1.5}, {"structured_outputs": "text"}, {"response_format": ["list"]}])
def test_a_check_of_vllm_that_stumbles_over_a_body_blames_the_body(
    body: dict[str, Any], adapters: dict[str, list[TypeAdapter[Any]]]
) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
    with pytest.raises((ValueError, VLLMError)):
        adapters["/v1/chat/completions"][0].validate_python(chat | body)


def test_the_attacks_have_few_errors_even_where_the_limits_let_them_through(
    adapters: dict[str, list[TypeAdapter[Any]]],
) -> None:
    for name in ("6,000 empty inputs", "256,000 empty messages", "5,000 empty parts"):
        route, text = ATTACKS[name]
        with pytest.raises(ValidationError) as refused:
            adapters[route][0].validate_python(json.loads(text))
        assert refused.value.error_count() < 60
