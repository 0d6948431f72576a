"""Bodies of requests, right ones and mutated ones, the same for the same seed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
CHAT = [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]
CALLS = [
    {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "1"},
]
SAMPLING: dict[str, Any] = {
    **{"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 1, "n": 2, "max_tokens": 4, "min_tokens": 1},
    **{"presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "length_penalty": 1.0},
    **{"stop": ["z", "yy"], "stop_token_ids": [3], "bad_words": ["b"], "ignore_eos": True, "logit_bias": {"5": 1.5}},
    **{"allowed_token_ids": [5, 6, 7], "prompt_logprobs": 1, "include_stop_str_in_output": True},
    **{"skip_special_tokens": False, "spaces_between_special_tokens": False, "truncate_prompt_tokens": 5},
    **{"detokenize": True, "flat_logprobs": False, "thinking_token_budget": 3, "logprobs_mode": "raw_logprobs"},
}
CONSTRAINTS: list[dict[str, Any]] = [
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"regex": "[a-c]{2}"}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
    {"structured_outputs": {"json_object": True}},
    {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", "format": {"type": "any_text"}})}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
]
OTHERS: dict[str, Any] = {
    **{"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "user": "u"},
    **{"echo": True, "suffix": "s", "best_of": 2, "use_beam_search": False, "priority": 1, "request_id": "r"},
    **{"cache_salt": "s", "session_id": "s", "return_token_ids": True, "return_tokens_as_token_ids": True},
    **{"add_special_tokens": False, "prompt_embeds": "AAAA", "lora_request": None, "vllm_xargs": {"a": 1}},
    **{"kv_transfer_params": {"do_remote_prefill": True, "remote_prefill_cached_tokens": -7}},
    **{"ec_transfer_params": {"a": 1}, "kv_hints": {"a": 1}, "metadata": {"a": "b"}, "logprobs": 2},
}
CHATS: dict[str, Any] = {
    **{"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True, "top_logprobs": 2, "logprobs": True},
    **{"chat_template": "{{ messages[0].content }}", "chat_template_kwargs": {"a": 1}, "documents": [{"text": "d"}]},
    **{"add_generation_prompt": True, "continue_final_message": False, "reasoning_effort": "low"},
    **{"include_reasoning": True, "mm_processor_kwargs": {"a": 1}, "media_io_kwargs": {"a": {}}},
    **{"max_completion_tokens": 4, "service_tier": "auto", "bad_words": ["c"], "enable_thinking": True},
}

# By route: a body that is answered, and further fields that it may have.
ROUTES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "/v1/completions": (
        [{"prompt": "hello"}, {"prompt": [5, 6, 7]}, {"prompt": ["a", "b"]}, {"prompt": [[5], [6, 7]]}],
        SAMPLING | OTHERS,
    ),
    "/v1/chat/completions": ([{"messages": CHAT}, {"messages": CALLS}], SAMPLING | OTHERS | CHATS),
    "/v1/chat/completions/batch": ([{"messages": [CHAT, CHAT]}], SAMPLING | OTHERS | CHATS),
    "/v1/responses": (
        [
            {"input": "hello"},
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]},
            {
                "input": [
                    {"role": "user", "content": "hello"},
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "1"},
                ]
            },
        ],
        SAMPLING
        | OTHERS
        | {
            **{"max_output_tokens": 4, "instructions": "i", "background": False, "store": False, "include": []},
            **{"previous_response_id": "resp_1", "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}},
            **{
                "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}],
                "truncation": "auto",
            },
            **{"max_tool_calls": 1, "prompt": {"id": "p"}, "previous_input_messages": CHAT, "top_logprobs": 1},
        },
    ),
    "/v1/messages": (
        [{"messages": CHAT[1:]}, {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}],
        {
            **{"max_tokens": 4, "system": "s", "stop_sequences": ["z"], "stream": True, "temperature": 0.5, "top_k": 3},
            **{"tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"}},
            **{"metadata": {"user_id": "u"}, "top_p": 0.5, "thinking": {"type": "disabled"}, "kv_transfer_params": {}},
        },
    ),
    "/v1/messages/count_tokens": ([{"messages": CHAT[1:]}], {"system": "s", "tools": []}),
    "/tokenize": (
        [{"prompt": "hello"}, {"messages": CHAT}],
        CHATS | {"add_special_tokens": True, "return_token_strs": True},
    ),
    "/detokenize": ([{"tokens": [5, 6]}], {"prompt": "a"}),
    "/inference/v1/generate": ([{"token_ids": [5, 6], "sampling_params": {"max_tokens": 3}}], OTHERS),
    "/invocations": ([{"prompt": "hello"}, {"messages": CHAT}], SAMPLING | CHATS),
    "/v1/completions/render": ([{"prompt": "hello"}], SAMPLING),
    "/v1/chat/completions/render": ([{"messages": CHAT}], CHATS),
    "/v1/responses/render": ([{"input": "hello"}], CHATS),
    "/v1/messages/render": ([{"messages": CHAT[1:]}], {"system": "s"}),
    "/generative_scoring": ([{"query": "a", "items": ["b"], "label_token_ids": [5]}], {"item_first": True}),
    "/v1/systemone": ([{"prompt": "a", "questions": ["b"]}], {}),
}

_RAW = "@raw:"  # a text that begins so is written without quotes


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def _itself() -> dict[str, Any]:
    return {"$ref": "#", "type": "object"}


_HOSTILE: list[Callable[[random.Random], Any]] = [
    lambda r: r.choice([None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400]),
    lambda r: r.choice([0.0, -0.0, 0.5, -1.5, 1e300, 1e-320, float("nan"), float("inf"), float("-inf")]),
    lambda r: _RAW + r.choice(["1e999", "-1e999", "0." + "1" * 5000, "1" * 5000, "-", "01", "+1", "undefined", "'a'"]),
    lambda r: r.choice(
        ["", " ", "a", "\x00", "\ud800", "a\udfffb", "\U0001f600", "\u202e", "1", "nan", "inf", "-5", "true"]
    ),
    lambda r: r.choice(["a", "é", "\U0001f600", "\\", '"', "(", "[", "\ud800"]) * r.choice([10, 1000, 20_000, 200_000]),
    lambda r: r.choice(["(", "[a", "a{1000}{1000}{1000}", "(a*)*b", "(?=a)", "\\", "(?P<n>a)\\k<n>", ".{0,100000}"]),
    lambda r: r.choice([[], {}, [[]], [{}], {"": {}}, [None], [[], {}], {"type": "x"}, {"role": "user"}]),
    lambda r: [r.choice([0, {}, [], "a", 1.5, None, "\ud800"])] * r.choice([2, 100, 3000, 30_000]),
    lambda r: _nested(r.choice([5, 50, 99, 101, 300])),
    lambda r: _RAW + "[" * 5000 + "]" * r.choice([5000, 4999]),
    lambda r: {str(key): r.choice([0, "a", {}]) for key in range(r.choice([1, 50, 5000]))},
    lambda r: r.choice(
        [SCHEMA, _itself(), {"$ref": "#/x"}, {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}]
    ),
    lambda r: r.choice(
        [{"pattern": "("}, {"type": "string", "pattern": "[", "maxLength": -1}, {"type": "nothing"}, True]
    ),
    lambda r: {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": r.choice([5, 10**4, 10**9]),
        "maxItems": 10**9,
    },
    lambda r: {"type": "object", "properties": {f"p{i}": {"enum": list(range(50))} for i in range(r.choice([5, 200]))}},
    lambda r: r.choice(["root ::= root", "root ::= ", "x", 'root ::= "a" root*' * 50, "?start: a\na: a a a"]),
    lambda r: r.choice(
        [{"json": "{"}, {"json": "[" * 5000}, {"regex": "("}, {"choice": []}, {"choice": [""]}, "text", ["list"]]
    ),
    lambda r: r.choice(
        [{"grammar": "root ::= root"}, {"regex": "a{1000}{1000}"}, {"structural_tag": "{"}, {"json": _itself()}]
    ),
    lambda r: r.choice(["data:image/png;base64,AAAA", "file:///etc/passwd", "http://127.0.0.1:9/x", "data:,"]),
    lambda r: [
        {
            "type": r.choice(["image_url", "input_audio", "video_url", "file", "input_image"]),
            "image_url": {"url": "data:,"},
        }
    ],
    lambda r: r.choice(
        ["{{ 1/0 }}", "{% for i in range(99999999) %}{% endfor %}", "{{ x.__class__ }}", "{{", "{{ messages|tojson }}"]
    ),
]


def requests(seed: int, count: int) -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """Route, body and headers of mutated requests."""
    drawn = random.Random(seed)
    routes = list(ROUTES)
    weights = [6, 8, 2, 5, 4, 1, 2, 1, 4, 2, 1, 1, 1, 1, 1, 1]
    for _ in range(count):
        [route] = drawn.choices(routes, weights)
        yield route, *_request(drawn, route)


def _request(drawn: random.Random, route: str) -> tuple[bytes, dict[str, str]]:
    bodies, fields = ROUTES[route]
    body = {"model": "tiny", "max_tokens": 3} | copy.deepcopy(drawn.choice(bodies))
    if "count_tokens" in route or "tokenize" in route:
        del body["max_tokens"]
    for name in drawn.sample(sorted(fields), min(len(fields), drawn.randrange(4))):
        body[name] = copy.deepcopy(fields[name])
    if drawn.random() < 0.25:
        body |= copy.deepcopy(drawn.choice(CONSTRAINTS))
    for _ in range(drawn.choice([0, 1, 1, 1, 2, 3])):
        _mutate(drawn, body, fields)
    text = written(body)
    headers = {"content-type": "application/json"}
    kind = drawn.random()
    if kind < 0.02:
        text = text[: drawn.randrange(len(text))]
    elif kind < 0.04:
        position = drawn.randrange(len(text))
        text = text[:position] + bytes([drawn.randrange(256)]) + text[position + 1 :]
    elif kind < 0.05:
        text = drawn.choice(
            [b"", b"[]", b"null", b"[" * 5000, b"\xef\xbb\xbf{}", b'{"a":' * 5000, b'"\\ud800"', b"{}" * 9]
        )
    elif kind < 0.06:
        headers["content-type"] = drawn.choice(["text/plain", "application/xml", "multipart/form-data", "", "json"])
    elif kind < 0.08:
        headers |= {"x-request-id": drawn.choice(["\u00e9", "a" * 3000, "a b", "%00"]), "x-session-id": "s"}
    return text, headers


def _mutate(drawn: random.Random, body: dict[str, Any], fields: dict[str, Any]) -> None:
    hostile = drawn.choice(_HOSTILE)(drawn)
    if drawn.random() < 0.4:
        body[drawn.choice([*sorted(fields), *body])] = hostile
        return
    holder, key = _place(drawn, body)
    match drawn.randrange(6):
        case 0:
            holder.pop(key)
        case 1:
            holder[key] = [holder[key]] * drawn.choice([1, 3, 200])
        case 2:
            holder[key] = {"a": holder[key]}
        case _:
            holder[key] = hostile


def _place(drawn: random.Random, body: dict[str, Any]) -> tuple[Any, Any]:
    """Somewhere in a body: a mapping or a list, and a key of it."""
    holder: Any = body
    while True:
        key = drawn.choice(sorted(holder)) if isinstance(holder, dict) else drawn.randrange(len(holder))
        if not isinstance(holder[key], dict | list) or not holder[key] or drawn.random() < 0.4:
            return holder, key
        holder = holder[key]


def written(body: Any) -> bytes:
    """JSON, and what is almost JSON: NaN, infinities, lone surrogates, numbers out of range."""
    parts = json.dumps(body).split(f'"{_RAW}')
    return (parts[0] + "".join(part.replace('"', "", 1) for part in parts[1:])).encode()
