"""What processes say: one line of JSON per record on stderr, for machines first.

`message` is a word to search for; what belongs to it comes as `extra` fields. Bodies, keys and addresses are never logged.
Everything outside ASCII and every control character is escaped, so nothing that was sent can forge a line or move a cursor.
A line that cannot be written is counted, and stops nothing.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

OURS = "workbench"
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Lines(logging.Formatter):
    """Records as lines of JSON: time (UTC), level, logger, word, the extra fields, and the exception with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line without its end."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "word": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN and name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=repr, skipkeys=True).replace("\x7f", "\\u007f")


class Stream(logging.StreamHandler[TextIO]):
    """Writes lines; `dropped` counts those for which there was no room, as on a full disk."""

    dropped = 0

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Go on without the line."""
        self.dropped += 1


class Budget:
    """So many lines a second; what is over it is left out and counted."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._second = 0
        self._granted = 0
        self._left_out = 0

    def grant(self, now_ns: int) -> bool:
        """Return whether a line may be written at this monotonic moment."""
        second = now_ns // 1_000_000_000
        if second != self._second:
            self._second, self._granted = second, 0
        self._granted += 1
        if self._granted > self._most:
            self._left_out += 1
            return False
        return True

    def take_left_out(self) -> int:
        """Return how many lines were left out since this was last asked."""
        left_out, self._left_out = self._left_out, 0
        return left_out


def dropped() -> int:
    """Return how many lines this process could not write."""
    return sum(handler.dropped for handler in logging.getLogger().handlers if isinstance(handler, Stream))


def install(stream: TextIO | None = None) -> None:
    """Let this process log to `stream` (stderr): our own records from INFO, those of libraries from WARNING."""
    handler = Stream(stream or sys.stderr)
    handler.setFormatter(Lines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(OURS).setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
