"""Collects OpenTelemetry spans that a server sends over HTTP."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class TraceCollector:
    """The spans that have arrived.

    Attributes:
        address: what a server is told to send to.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._spans: list[Any] = []

    def take(self, body: bytes) -> None:
        """Note the spans of a message."""
        message = ExportTraceServiceRequest.FromString(body)
        self._spans += [
            span for resource in message.resource_spans for scope in resource.scope_spans for span in scope.spans
        ]

    def span(self, request_id: str, seconds: float = 30.0) -> Any:
        """The span of a request, by a part of its id; waits for it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for span in list(self._spans):
                if request_id in str(attributes(span).get("gen_ai.request.id")):
                    return span
            time.sleep(0.1)
        raise AssertionError(f"no span of {request_id} within {seconds:.0f} s, but {len(self._spans)} others")


def attributes(span: Any) -> dict[str, Any]:
    """A span's attributes."""
    return {each.key: _value(each.value) for each in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextlib.contextmanager
def collecting() -> Iterator[TraceCollector]:
    """A collector on a free port of this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = TraceCollector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
