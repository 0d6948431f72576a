from __future__ import annotations

import pathlib
import random
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.checkpoints import save_tiny
from tests.engine.running_server import Server, running_server

# Every test of this folder starts an engine.
pytestmark = pytest.mark.engine


# This file takes longest. Two workers take files in their order: where it came last, one worker would wait for it.
FIRST = "test_under_pressure.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if pathlib.Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)
    items.sort(key=lambda item: item.path.name != FIRST)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Llama of two layers with random weights, trained (it says) on 256 tokens."""
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def address(
    server: Server, served: dict[str, Any], tiny: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where ``tiny`` is served by that name. A module says by which server, and with which other settings."""
    settings = {"model": str(tiny), "served_model_name": "tiny"} | served
    with running_server(tmp_path_factory.mktemp("server"), settings, server=server, imported=True) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=120) as http:
        yield http


@pytest.fixture
def prompts() -> PromptMaker:
    return PromptMaker(seed=0)


class PromptMaker:
    """Random prompts, the same in every run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, num_tokens: int) -> list[int]:
        return [self._random.randrange(2, 256) for _ in range(num_tokens)]
