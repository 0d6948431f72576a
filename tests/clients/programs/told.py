"""How the program of a client tells what worked. The standard library alone: it runs beside any client."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import asked

_SECONDS_TO_STOP = 10.0


def _tell(**record: Any) -> None:
    with open(os.environ["CLIENT_RESULTS"], "a", encoding="utf-8") as results:
        print(json.dumps(record), file=results)


@contextlib.contextmanager
def works(name: str) -> Iterator[None]:
    """Tell whether the block ends without an exception."""
    try:
        yield
    except Exception as error:
        _tell(check=name, failed=f"{type(error).__name__}: {str(error)[:600]}")
    else:
        _tell(check=name, failed=None)


@contextlib.contextmanager
def refused(name: str, expected: type[Exception], status: int, word: str = "") -> Iterator[None]:
    """Tell whether the block ends with the client's own exception, and whether a status in it is the right one.

    Args:
        word: from what the server said, that the exception must show.
    """
    with works(name):
        try:
            yield
        except expected as error:
            found = getattr(error, "status_code", status)
            assert found == status, f"the exception has status {found}"
            assert word in str(error), f"the exception does not say {word!r}: {error}"
        else:
            raise AssertionError("it was not refused")


def scale_at(place: str, expression: str, **names: Any) -> None:
    """Tell whether an expression gives the report of a request that crossed.

    Args:
        place: an answer, or a stream.
        names: that the expression has.
    """
    with works(f"scale of {place}"):
        report = eval(expression, names)
        assert (report["scale"], report["crossings"]) == (2.0, asked.CROSSINGS), report
    _tell(place=place, expression=expression)


def dropped(place: str, everything: Any) -> None:
    """Tell whether what a client hands on lacks the report, as the docs say."""
    with works(f"scale of {place}"):
        assert "admission_tokens" not in repr(everything), f"it is handed on: {everything!r}"
    _tell(place=place, expression=None)


@contextlib.contextmanager
def cancelled(by: str) -> Iterator[None]:
    """Tell whether the server stops an answer of ``CANCELLED_TOKENS`` that the block leaves after a few pieces.

    Args:
        by: what the block does to leave it.
    """
    _tell(cancelled_by=by)
    with works("cancel"):
        before = _metric("vllm:generation_tokens_total")
        yield
        deadline = time.monotonic() + _SECONDS_TO_STOP
        while _metric("vllm:num_requests_running"):
            assert time.monotonic() < deadline, f"it still runs after {_SECONDS_TO_STOP:.0f} s"
            time.sleep(0.2)
        generated = _metric("vllm:generation_tokens_total") - before
        assert generated < asked.CANCELLED_TOKENS, "it was generated to its end"


def _metric(name: str) -> float:
    request = urllib.request.Request(f"{asked.ADDRESS}/metrics", headers={"Authorization": f"Bearer {asked.KEY}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))
