"""Keeps tracebacks of what is a client's mistake out of the log of vLLM's server.

Routes of OpenAI's API log nothing for a request that gets status 400. Those of Anthropic's and Cohere's log a traceback
at level ERROR, so that a client whose prompt is too long looks like a failure of the server.
"""

from __future__ import annotations

import logging

_LOGGERS = ("vllm.entrypoints.anthropic.api_router", "vllm.entrypoints.cohere.api_router")


def log_no_client_errors() -> None:
    """Leave out of these logs what clients are told in their answers."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_the_servers)


def _is_the_servers(record: logging.LogRecord) -> bool:
    from vllm.exceptions import GracefulHTTPError, VLLMClientError

    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, ValueError | GracefulHTTPError | VLLMClientError)
