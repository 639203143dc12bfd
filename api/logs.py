"""What processes say: one line of JSON per record on stderr, for machines first.

`message` is a word to search for; what belongs to it comes as `extra` fields. Bodies, keys and addresses are never logged.
Everything outside ASCII and every control character is escaped, so nothing that was sent can forge a line or move a cursor.
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


def install(stream: TextIO | None = None) -> None:
    """Let this process log to `stream` (stderr): our own records from INFO, those of libraries from WARNING."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Lines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(OURS).setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
