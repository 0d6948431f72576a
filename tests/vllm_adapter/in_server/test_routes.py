"""Every route of vLLM's that takes a request: how many requests its engine gets, and what the answer says of scales."""

from __future__ import annotations

import inspect
from typing import Any

from vllm.entrypoints.launchers.app import build_app
from vllm.utils.argparse_utils import FlexibleArgumentParser

from posenc_runtime.vllm_adapter import releases
from posenc_runtime.vllm_adapter.in_server.one_scale import ASK_SEVERAL

ONE = {"/v1/chat/completions", "/v1/responses", "/v1/messages", "/inference/v1/generate"}
SEVERAL_OF_WHICH_EACH_SAYS_ITS_OWN = {"/v1/completions", "/v1/chat/completions/batch"}
AS_ANOTHER_ROUTE = {"/invocations"}
NO_ANSWER_OF_THE_MODEL = {
    *("/tokenize", "/detokenize", "/ping", "/scale_elastic_ep", "/is_scaling_elastic_ep"),
    *("/v1/responses/{response_id}/cancel", "/v1/messages/count_tokens", "/inference/v1/abort_requests"),
    *("/v1/chat/completions/render", "/v1/messages/render", "/v1/completions/render", "/v1/responses/render"),
    *("/v1/chat/completions/derender", "/v1/completions/derender"),
}
ONLY_WHERE_A_CLIENT_IS_INSTALLED = {"/v2/chat"}
NOT_IN_ALL_RELEASES_THAT_WE_KNOW = {"/inference/v1/abort_requests", "/v1/systemone", "/v1/decisions"}


def routes() -> list[Any]:
    every = ["--model", "none", "--enable-scale-out"]
    arguments = releases.cli_args().make_arg_parser(FlexibleArgumentParser()).parse_args(every)
    return [
        each for each in build_app(arguments, ("generate",)).routes if "POST" in (getattr(each, "methods", ()) or ())
    ]


def test_no_route_answers_by_several_requests_unknown_to_us() -> None:
    taking = {route.path for route in routes()}
    at_one_scale = {route for _, route in ASK_SEVERAL.values()}
    known = ONE | SEVERAL_OF_WHICH_EACH_SAYS_ITS_OWN | AS_ANOTHER_ROUTE | NO_ANSWER_OF_THE_MODEL | at_one_scale
    assert taking - ONLY_WHERE_A_CLIENT_IS_INSTALLED == known - (NOT_IN_ALL_RELEASES_THAT_WE_KNOW - taking)


def test_a_route_that_sends_several_requests_calls_the_method_that_is_wrapped() -> None:
    asked = {route.path: inspect.getsource(inspect.unwrap(route.endpoint)) for route in routes()}
    methods = {route: method for method, route in ASK_SEVERAL.values() if route in asked}
    assert "/generative_scoring" in methods
    for route, method in methods.items():
        assert f".{method}(" in asked[route]
