from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def restored_environment() -> Iterator[None]:
    """Take out of the environment what a test left there: commands run in our process, and set what vLLM reads."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
