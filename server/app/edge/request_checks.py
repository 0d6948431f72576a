"""How much one request may ask for, looked at in its fields before vLLM's models see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from server.app.edge.error_answers import RequestRefused
from server.app.edge.transfer_params import check_transfer_params

if TYPE_CHECKING:
    from posenc_runtime.vllm_adapter.settings.front_end import LimitSettings

_MESSAGES = ("messages", "input", "conversation", "chat_history")
_CONTENT = "content"  # a message's, if it is a list: texts, images and the like
_PROMPTS = ("prompt", "items", "questions")
_STOPS = ("stop", "stop_sequences", "bad_words")
_OUTPUT_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "max_new_tokens")
_LOGPROBS = ("logprobs", "top_logprobs", "prompt_logprobs")
_ANSWERS = ("n", "best_of")
_NAMES = (
    *("model", "user", "request_id", "session_id", "cache_salt", "previous_response_id", "prompt_cache_key"),
    *("safety_identifier", "service_tier", "lora_name", "lora_path"),
)
# What is made into a grammar; tools are where one of them must be called.
_CONSTRAINTS = ("structured_outputs", "response_format", "text", "output_format", "output_config")
_SAMPLING = "sampling_params"  # where requests with token ids have what others have at their top level
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1  # what travels to the engine


def sequences_asked(request: Any, limits: LimitSettings, *, transfer_params: Collection[str]) -> int:
    """Check a parsed body, and count the sequences that it asks for: prompts times answers for each.

    Args:
        transfer_params: the fields with parameters of a transfer that the engine's connectors need of clients.

    Raises:
        RequestRefused: naming the field, the rule, the value and the setting.
    """
    if not isinstance(request, dict):
        raise RequestRefused(f"the body must be a JSON object, got {_kind(request)}", "json")
    sampling = request.get(_SAMPLING)
    answers = 1
    for prefix, fields in (("", request), (f"{_SAMPLING}.", sampling)):
        if isinstance(fields, dict):
            _check_fields(prefix, fields, limits)
            answers = max(answers, _answers(prefix, fields, limits))
            _check_constraints(prefix, fields, limits)
            check_transfer_params(prefix, fields, transfer_params)
    _check_content(request, limits)
    prompts = _prompts(request, limits)
    if prompts * answers > limits.max_sequences:
        raise RequestRefused(
            f"a request may ask for {limits.max_sequences} sequences (limits.max_sequences), got {prompts} prompts "
            f"times {answers} answers for each",
            "max_sequences",
            param="n" if answers > 1 else "prompt",
        )
    return prompts * answers


def _check_fields(prefix: str, fields: Mapping[str, Any], limits: LimitSettings) -> None:
    for name, value in fields.items():
        param = prefix + name
        if isinstance(value, list | dict):
            _check_length(param, name, value, limits)
        elif isinstance(value, int):
            if not _SMALLEST <= value <= _LARGEST:
                raise RequestRefused(
                    f"{param} must be within 64 bits, got a number of {value.bit_length()} bits", "number", param=param
                )
        elif isinstance(value, str) and name in _NAMES and len(value) > limits.max_name_length:
            raise RequestRefused(
                f"{param} may have {limits.max_name_length} characters (limits.max_name_length), got {len(value)}",
                "max_name_length",
                param=param,
            )
    for names, setting in ((_OUTPUT_TOKENS, "max_output_tokens"), (_LOGPROBS, "max_logprobs")):
        if (allowed := getattr(limits, setting)) is not None:
            for name in names:
                _refuse_more(prefix + name, _number(fields.get(name)), allowed, setting)


def _check_constraints(prefix: str, fields: Mapping[str, Any], limits: LimitSettings) -> None:
    names = [name for name in _CONSTRAINTS if isinstance(fields.get(name), dict)]
    if fields.get("tool_choice") not in (None, "auto", "none"):
        names.append("tools")
    for name in names:
        if fields.get(name):
            size = len(msgspec.json.encode(fields[name]))
            _refuse_more(prefix + name, size, limits.max_constraint_bytes, "max_constraint_bytes", "bytes")


def _check_length(param: str, name: str, value: Any, limits: LimitSettings) -> None:
    if name in _STOPS:
        setting = "max_stop_strings"
    elif name in _MESSAGES:
        setting = "max_messages"
    elif isinstance(value, dict):
        return  # counted as members of the body
    elif _are_ids(value):
        return _refuse_more(param, len(value), limits.max_prompt_tokens, "max_prompt_tokens", "token ids")
    elif name in _PROMPTS:
        return _refuse_more(param, len(value), limits.max_prompts, "max_prompts", "items")
    else:
        setting = "max_list_items"
    _refuse_more(param, len(value), getattr(limits, setting), setting, "items")


def _prompts(request: Mapping[str, Any], limits: LimitSettings) -> int:
    """How many prompts a request has."""
    found = 1
    for name in _PROMPTS:
        value = request.get(name)
        if isinstance(value, list) and not _are_ids(value):
            if name == "prompt" and len(kinds := set(map(type, value))) > 1:
                raise RequestRefused(
                    f"{name} must be a text, token ids, or a list of one kind of these, got a list of "
                    f"{', '.join(sorted(kind.__name__ for kind in kinds))}",
                    "shape",
                    param=name,
                )
            found = max(found, len(value))
    for name in _MESSAGES:
        value = request.get(name)
        if isinstance(value, list) and any(isinstance(each, list) for each in value):  # one conversation each
            _refuse_more(name, len(value), limits.max_prompts, "max_prompts", "items")
            for each in value:
                if isinstance(each, list):
                    _refuse_more(name, len(each), limits.max_messages, "max_messages", "items")
            found = max(found, len(value))
    if isinstance(prompt := request.get("prompt"), list) and prompt and isinstance(prompt[0], list):
        tokens = sum(map(len, prompt))
        _refuse_more("prompt", tokens, limits.max_prompt_tokens, "max_prompt_tokens", "token ids in all lists")
    return found


def _check_content(request: Mapping[str, Any], limits: LimitSettings) -> None:
    for name in _MESSAGES:
        value = request.get(name)
        if isinstance(value, list):
            messages = [message for each in value for message in (each if isinstance(each, list) else [each])]
            found = sum(map(_parts_within, messages))
            _refuse_more(name, found, limits.max_content_parts, "max_content_parts", "parts of content")


def _parts_within(message: Any) -> int:
    """Parts of a message's content, and of the contents of these: a tool's result has its own."""
    content = message.get(_CONTENT) if isinstance(message, dict) else None
    return len(content) + sum(map(_parts_within, content)) if isinstance(content, list) else 0


def _answers(prefix: str, fields: Mapping[str, Any], limits: LimitSettings) -> int:
    found = [1]
    for name in _ANSWERS:
        if (number := _number(fields.get(name))) is not None:
            _refuse_more(prefix + name, number, limits.max_n, "max_n")
            found.append(int(number) if number == number else 1)
    return max(found)


def _refuse_more(param: str, found: float | None, allowed: int, setting: str, unit: str = "") -> None:
    if found is not None and found > allowed:
        what = f"may have {allowed} {unit}" if unit else f"may be {allowed} at most"
        raise RequestRefused(f"{param} {what} (limits.{setting}), got {found:.15g}", setting, param=param)


def _number(value: Any) -> float | None:
    """A value as vLLM's models read it where a number is asked for: a text of digits is one."""
    if isinstance(value, str) and len(value) <= 64:
        try:
            return float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None


def _are_ids(value: list[Any]) -> bool:
    """By its first item: where others are not, vLLM's models refuse the list."""
    return bool(value) and type(value[0]) is int


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number or a truth value")
