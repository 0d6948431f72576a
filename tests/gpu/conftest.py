"""What needs an NVIDIA GPU. Elsewhere each of these tests is skipped, and says so."""

from __future__ import annotations

import pathlib

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="needs an NVIDIA GPU, and torch finds none")
    for item in items:
        if pathlib.Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(missing)
