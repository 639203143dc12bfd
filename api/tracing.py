"""OpenTelemetry, where it is wanted: off unless OTEL_EXPORTER_OTLP_ENDPOINT is set, and loaded only then (extra `otel`).

A span is told when it is over, so nothing is held open and nothing costs while it is off. Its attributes are ids, words of ours and
numbers, never a value that was sent. A request and what engines did with its events later are joined by `request_id`.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from api.clock import monotonic_ns

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

_tracer: "Tracer | None" = None


def install(role: str) -> "TracerProvider":
    """Send spans of this process to the collector that the variables OTEL_… name."""
    global _tracer  # noqa: PLW0603  one process, one exporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": f"workbench-{role}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _tracer = provider.get_tracer("workbench")
    return provider


def record(
    name: str, since_ns: int, attributes: Mapping[str, str | int | None], traceparent: str | None = None
) -> None:
    """Tell of something that began at a monotonic moment and is over now; a `traceparent` that is none is ignored."""
    if _tracer is None:
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract({} if traceparent is None else {"traceparent": traceparent})
    began_ns = time.time_ns() - (monotonic_ns() - since_ns)  # by the collector's kind of clock, not the database's
    known = {key: value for key, value in attributes.items() if value is not None}
    _tracer.start_span(name, parent, attributes=known, start_time=began_ns).end()
