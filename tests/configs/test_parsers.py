"""The parsers of tool calls and of reasoning that configurations name read what their models write."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

# Importing vLLM warns; see there.
import tests.vllm_adapter.conftest  # noqa: F401
from posenc_runtime.vllm_adapter.settings.arguments.engine_args import serve_arguments
from server.deployment import shipped
from server.deployment.load import load

# How each model calls a tool, as its makers document it: the text, and the tokens that it is recognised by.
HERMES = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>',
    ["<tool_call>", "</tool_call>"],
)
CALLS = {
    "qwen3-yarn": HERMES,
    "qwen3-vl-yarn": HERMES,
    "qwen35-yarn": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>",
        ["<tool_call>", "</tool_call>"],
    ),
    "llama31-llama3": ('{"name": "weather", "parameters": {"city": "Bern"}}', ["<|python_tag|>"]),
    "mistral-linear": ('[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Bern"}}]', ["[TOOL_CALLS]"]),
}
# vLLM recognises this model and reads its calls itself; the parser that is named lets requests have tools.
READ_BY_VLLM = "gpt-oss-yarn"
# The text, the tokens, and what a request says in chat_template_kwargs. Some prompts end with <think>.
THINK = ["<think>", "</think>"]
REASONING: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "qwen3-yarn": ("<think>\nIt rains.\n</think>\n\nTake a coat.", THINK, {}),
    "qwen35-yarn": ("It rains.\n</think>\n\nTake a coat.", THINK, {}),
    "deepseek-v31-yarn": ("It rains.</think>Take a coat.", THINK, {"thinking": True}),
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """One whose only tokens are those that parsers look for."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    special = sorted({token for _, tokens, *_ in [*CALLS.values(), *REASONING.values()] for token in tokens})
    words = WordLevel({token: number for number, token in enumerate(["unknown", *special])}, unk_token="unknown")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), additional_special_tokens=special)


def arguments(name: str) -> argparse.Namespace:
    """vLLM's, checked by its own parser; how the model is scaled is of no matter."""
    settings = load(shipped.path_of(name), environment={})
    return serve_arguments(
        model=settings.model,
        served_model_name=None,
        rope_type="default",
        engine=settings.engine,
        http=settings.server.arguments,
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_tool_call_of_the_model_is_read_by_the_parser_of_its_file(
    name: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    args = arguments(name)
    parser = ToolParserManager.get_tool_parser(args.tool_call_parser)(tokenizer)
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": {}}}
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "Rain?"}], tools=[tool])
    found = parser.extract_tool_calls(CALLS[name][0], request)
    assert args.enable_auto_tool_choice and found.tools_called
    (call,) = found.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Bern"})


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_of_the_model_is_told_from_its_answer(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.reasoning import ReasoningParserManager

    text, _, asked = REASONING[name]
    parser_class = ReasoningParserManager.get_reasoning_parser(arguments(name).reasoning_parser)
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "Rain?"}], chat_template_kwargs=asked)
    reasoning, content = parser_class(tokenizer, chat_template_kwargs=asked).extract_reasoning(text, request)
    assert (reasoning.strip(), content.strip()) == ("It rains.", "Take a coat.")


def test_a_model_that_thinks_when_it_is_asked_to_answers_otherwise(tokenizer: PreTrainedTokenizerFast) -> None:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.reasoning import ReasoningParserManager

    parser = ReasoningParserManager.get_reasoning_parser(arguments("deepseek-v31-yarn").reasoning_parser)(tokenizer)
    request = ChatCompletionRequest(messages=[{"role": "user", "content": "Rain?"}])
    assert parser.extract_reasoning("Take a coat.", request) == (None, "Take a coat.")


def test_a_model_whose_calls_vllm_reads_itself_takes_requests_with_tools() -> None:
    from vllm.tool_parsers import ToolParserManager

    args = arguments(READ_BY_VLLM)
    parser = ToolParserManager.get_tool_parser(args.tool_call_parser)
    assert args.enable_auto_tool_choice and parser.structural_tag_model == "harmony"


@pytest.mark.parametrize("name", sorted({*shipped.names()} - {*CALLS, READ_BY_VLLM}))
def test_no_file_else_takes_requests_with_tools(name: str) -> None:
    args = arguments(name)
    assert not args.enable_auto_tool_choice and args.tool_call_parser is None


@pytest.mark.parametrize("name", sorted({*shipped.names()} - REASONING.keys()))
def test_no_file_else_tells_reasoning_from_answers(name: str) -> None:
    assert not arguments(name).reasoning_parser
