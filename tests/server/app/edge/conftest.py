from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What our logger says, whether or not vLLM's loggers pass records on."""
    messages: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("vllm.posenc"), Kept()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield messages
    logger.removeHandler(handler)
    logger.setLevel(level)
