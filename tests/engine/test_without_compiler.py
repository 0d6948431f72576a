"""On a machine without a C++ compiler everything is served that the docs promise; with one, no request compiles."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.checkpoints import save_tiny
from tests.engine.running_server import running_server
from tests.without_compilers import link_programs

PROMPT = "a" * 100
COMPLETIONS: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 1},
    "logprobs of the prompt": {"logprobs": 2, "echo": True},
    "all sampling": {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    "temperature alone": {"temperature": 1.0},
    "seed": {"temperature": 1.0, "seed": 3},
    "several answers": {"temperature": 1.0, "n": 2},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": {"5": 2}},
    "stops": {"stop": ["zzz"], "bad_words": ["b"], "min_tokens": 2},
    # Longer than the answer: the model has no token that ends it.
    "a choice": {"structured_outputs": {"choice": ["a" * 40, "b" * 40]}},
    "a pattern": {"structured_outputs": {"regex": "[ab]{40}"}},
    "a schema": {"structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    "a crossing": {"prompt": "a" * 200, "max_tokens": 100, "ignore_eos": True, "logprobs": 1},
}


@pytest.fixture(scope="module")
def folder_of_programs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Links to all programs of the PATH but compilers."""
    folder = tmp_path_factory.mktemp("programs")
    link_programs(folder)
    return folder


SETTINGS: dict[str, Any] = {
    **{"served_model_name": "tiny", "scaling": {"rope_type": "yarn", "scales": [1, 2, 4], "headroom_tokens": 40}},
    "engine": {"dtype": "float32", "enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 2**28},
}


@pytest.fixture(scope="module")
def address(
    tiny: pathlib.Path, folder_of_programs: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    environment = without_compiler(folder_of_programs)
    with running_server(tmp_path_factory.mktemp("server"), SETTINGS | {"model": str(tiny)}, environment) as address:
        yield address


def without_compiler(folder_of_programs: pathlib.Path) -> dict[str, str]:
    return {"PATH": str(folder_of_programs), "CXX": "g++", "TORCHINDUCTOR_CACHE_DIR": str(folder_of_programs / "c")}


@pytest.mark.parametrize("asked", COMPLETIONS)
def test_a_completion_is_answered_without_a_compiler(asked: str, address: str) -> None:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0} | COMPLETIONS[asked]
    answer = httpx.post(f"{address}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert len(choices) == body.get("n", 1) and all(choice["text"] for choice in choices)
    if "logprobs" in body:
        assert choices[0]["logprobs"]["token_logprobs"][-1] < 0
    assert httpx.get(f"{address}/health", timeout=10).status_code == 200


def test_a_chat_with_likeliest_tokens_is_answered_without_a_compiler(address: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    answer = httpx.post(
        f"{address}/v1/chat/completions", json=body | {"logprobs": True, "top_logprobs": 3}, timeout=120
    )
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert [len(each["top_logprobs"]) for each in choice["logprobs"]["content"]] == [3, 3, 3, 3]


def complete(address: str, num_tokens: int) -> None:
    body = {"model": "tiny", "prompt": [5] * num_tokens, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{address}/v1/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text


def test_a_model_whose_functions_are_compiled_is_served_without_a_compiler(
    folder_of_programs: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    settings = SETTINGS | {"model": str(save_tiny(tmp_path / "model", "cohere"))}
    with running_server(tmp_path, settings, without_compiler(folder_of_programs)) as address:
        complete(address, 20)


@pytest.mark.release  # only a release of vLLM or torch compiles elsewhere
def test_a_model_whose_functions_are_compiled_compiles_them_before_the_first_request(tmp_path: pathlib.Path) -> None:
    settings = SETTINGS | {"model": str(save_tiny(tmp_path / "model", "cohere"))}
    kept = tmp_path / "compiled"
    with running_server(tmp_path, settings, {"TORCHINDUCTOR_CACHE_DIR": str(kept)}) as address:
        before = {file.name for file in kept.rglob("*.so")}
        for num_tokens in (1, 2, 7, 20, 300):
            complete(address, num_tokens)
        assert before
        assert {file.name for file in kept.rglob("*.so")} == before
