"""The event loop, logs, counters and spans of every process.

**Logs** are one line of JSON per record on stderr. `word` is a constant to search for, and values are fields (`extra`).
Bodies, keys and addresses are never logged. Characters outside ASCII and control characters are escaped, so data from
outside can neither forge a line nor move a cursor. A line that cannot be written is counted and stops nothing.

**Counters** are plain numbers, kept where things happen; `api/metrics` exports them. Labels are bounded.

**Spans** go to OpenTelemetry if OTEL_EXPORTER_OTLP_ENDPOINT is set; otherwise its packages are not loaded. A span is
recorded when it is over, so nothing is held open. Attributes are ids, constants and numbers, never data from outside. A
request and the later work of engines on its events share a `request_id`.
"""

import asyncio
import gc
import json
import logging
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from api.clock import monotonic_ns

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

_Result = TypeVar("_Result")

_new_event_loop: Callable[[], asyncio.AbstractEventLoop] | None
try:
    from uvloop import new_event_loop as _new_event_loop
except ImportError:  # Windows and PyPy have no uvloop
    _new_event_loop = None


def run(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run the main coroutine of a process, as `asyncio.run` does, on uvloop: an import is 2-10 % faster on it."""
    gc.freeze()  # modules stay loaded, so collections need not visit them
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        return runner.run(main)


LOGGER = "workbench"
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def install_logging(stream: TextIO | None = None) -> None:
    """Log to `stream` (default stderr): our own records from INFO, those of libraries from WARNING."""
    handler = LineStream(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(LOGGER).setLevel(logging.INFO)
    logging.captureWarnings(capture=True)


def dropped() -> int:
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, LineStream))


class JsonLines(logging.Formatter):
    """Formats a record as a line of JSON: time (UTC), level, logger, word, extra fields, exception with traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "word": record.getMessage(),
        }
        # A field of `extra` cannot replace one of the fields above.
        line |= {
            name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS and name not in line
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr, skipkeys=True).replace("\x7f", "\\u007f")  # json leaves DEL as it is


class LineStream(logging.StreamHandler[TextIO]):
    """Writes lines. `dropped` counts those that could not be written, as on a full disk."""

    dropped = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        self.dropped += 1


class LogBudget:
    """At most `limit` lines a second; lines over it are left out and counted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._second = 0
        self._granted = 0
        self._left_out = 0

    def grant(self, now_ns: int) -> bool:
        """Return whether a line may be written at this monotonic moment."""
        second = now_ns // 1_000_000_000
        if second != self._second:
            self._second, self._granted = second, 0
        self._granted += 1
        if self._granted > self._limit:
            self._left_out += 1
            return False
        return True

    def take_left_out(self) -> int:
        """Return how many lines were left out since the last call."""
        left_out, self._left_out = self._left_out, 0
        return left_out


OTHER = "other"


class Tally:
    """Counts by combinations of words, one word for each of `labels`.

    From `max_combinations` on, new combinations are counted together as `other`, so input cannot fill the memory.
    """

    def __init__(self, *labels: str, max_combinations: int = 500) -> None:
        self.labels = labels
        self._max_combinations = max_combinations
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *words: str, times: int = 1) -> None:
        try:
            self._counts[words] += times
        except KeyError:
            if len(self._counts) >= self._max_combinations:
                words = (OTHER,) * len(self.labels)
            self._counts[words] = self._counts.get(words, 0) + times

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], int]]:
        return iter(tuple(self._counts.items()))


class Spans:
    """A histogram of durations: how many up to each of BOUNDS (seconds), and their sum."""

    BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counts = [0] * (len(self.BOUNDS) + 1)

    def note(self, nanoseconds: int) -> None:
        seconds = nanoseconds / 1e9
        self.seconds += seconds
        self._counts[bisect_left(self.BOUNDS, seconds)] += 1

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (bound, number of durations up to it) in Prometheus's form; the last bound is `+Inf`."""
        names = [*map(str, self.BOUNDS), "+Inf"]
        return [(name, float(sum(self._counts[: index + 1]))) for index, name in enumerate(names)]


_tracer: "Tracer | None" = None


def install_tracing(role: str) -> "TracerProvider":
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
    """Record a span from the monotonic moment `since_ns` to now. A malformed `traceparent` is ignored."""
    if _tracer is None:
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract({} if traceparent is None else {"traceparent": traceparent})
    # The collector compares hosts by their wall clocks, so this is not the database's time.
    began_ns = time.time_ns() - (monotonic_ns() - since_ns)
    present = {key: value for key, value in attributes.items() if value is not None}
    _tracer.start_span(name, parent, attributes=present, start_time=began_ns).end()
