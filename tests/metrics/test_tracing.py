"""Spans reach a collector; without tracing its packages are not loaded."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.installation import Installation, until

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector(HTTPServer):
    """Receives spans."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SpanHandler)
        self.spans: list[Span] = []


class SpanHandler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        for resource in sent.resource_spans:
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as started:
        thread = threading.Thread(target=started.serve_forever)
        thread.start()
        yield started
        started.shutdown()
        thread.join()


async def test_requests_and_batches_become_spans_without_values(
    installation: Installation, collector: Collector
) -> None:
    keys = await installation.organization()
    api = installation.start_api(
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_port}", OTEL_BSP_SCHEDULE_DELAY="100"
    )
    with api.client(keys["live"]) as client:
        event = {"event": "deposit", "contact": {"externalId": "canary"}, "idempotencyKey": "canary"}
        for parent in (f"00-{TRACE}-b7ad6b7169203331-01", "x" * 4_000):
            sent = client.post("/events/batch", json={"events": [event]}, headers={"traceparent": parent})
            assert sent.status_code == 202
        client.post("/events", json=event, headers={"x-request-id": "request-1"})

    def request_spans() -> list[Span]:
        return [span for span in collector.spans if "/api/v1/events" in str(span.attributes)]

    until(lambda: len(request_spans()) == 3, "the spans arrive")
    assert request_spans()[0].trace_id.hex() == TRACE
    assert request_spans()[1].trace_id.hex() != TRACE
    assert "request-1" in str(request_spans()[2].attributes)
    assert {span.name for span in collector.spans} >= {"request", "store_batch"}
    assert "canary" not in str(collector.spans)


def test_opentelemetry_is_not_loaded_without_tracing() -> None:
    code = "import sys, api.app, api.worker; sys.exit('opentelemetry.sdk' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
