"""A refused request, and its answer in the shape of OpenAI's errors."""

from __future__ import annotations

import dataclasses
import json
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Send


# Reasons of refusals that are no setting of ``limits``.
OTHER_REASONS = ("json", "number", "shape", "transfer_params")


@dataclasses.dataclass
class RequestRefused(Exception):
    """A request that never reaches vLLM.

    Attributes:
        status: of the answer.
        message: the rule, the value, and the setting that says so.
        reason: of the metric's label: a setting of ``limits``, or one of ``OTHER_REASONS``.
        param: the field of the body.
        retry_after: seconds after which the client may try again.
    """

    message: str
    reason: str
    status: int = HTTPStatus.BAD_REQUEST
    param: str | None = None
    retry_after: int | None = None


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """An error in the shape of OpenAI's."""
    kind = "BadRequestError" if status == HTTPStatus.BAD_REQUEST else HTTPStatus(status).phrase
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": int(status)}}).encode()


async def answer(refused: RequestRefused, send: Send) -> None:
    """Send a refusal."""
    body = error_body(refused.status, refused.message, refused.param)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.retry_after is not None:
        headers.append((b"retry-after", str(refused.retry_after).encode()))
    await send({"type": "http.response.start", "status": int(refused.status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
