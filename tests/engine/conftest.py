from __future__ import annotations

import pathlib
import random

import pytest

from tests.checkpoints import save_tiny

# Every test of this folder starts an engine.
pytestmark = pytest.mark.engine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if pathlib.Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Llama of two layers with random weights, trained (it says) on 256 tokens."""
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def prompts() -> PromptMaker:
    return PromptMaker(seed=0)


class PromptMaker:
    """Random prompts, the same in every run."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self, num_tokens: int) -> list[int]:
        return [self._random.randrange(2, 256) for _ in range(num_tokens)]
