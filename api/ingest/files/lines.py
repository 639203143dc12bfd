"""One JSON value per line (ndjson), as it is or through a mapping of records."""

from collections.abc import Callable, Iterator
from itertools import islice

from api.ingest.files.opened import MAX_LINE, Opened
from api.ingest.files.row import Record, Row
from api.language.codec import MalformedJsonError, decode, encode, mend_surrogates
from api.language.problem import Problem

_BOM = b"\xef\xbb\xbf"
_TOO_LONG = (Problem("", f"is longer than {MAX_LINE} bytes"),)


class LineRows:
    """The rows of a file of lines, past the first `after` of them; without a mapping they are events already."""

    def __init__(self, file: Opened, after: int, mapping: Callable[[Record], Record] | None) -> None:
        self._file, self._after, self._mapping = file, after, mapping

    @property
    def share(self) -> float:
        """How much of the file has been read."""
        return self._file.share

    def __iter__(self) -> Iterator[Row]:
        """Give every line that is not empty."""
        mapping = self._mapping
        for number, line in enumerate(islice(self._file.lines(), self._after, None), self._after + 1):
            if line is None:
                yield number, b"", _TOO_LONG
            elif text := line.strip(b" \t\r\n"):
                if number == 1:
                    text = text.removeprefix(_BOM)
                yield (number, text, ()) if mapping is None else mapped(number, text, mapping)


def mapped(line: int, text: bytes, mapping: Callable[[Record], Record]) -> Row:
    """Return the row of a record in JSON."""
    try:
        record = decode(mend_surrogates(text))
    except MalformedJsonError as error:
        return line, text, (Problem("", f"malformed JSON: {str(error).removeprefix('JSON is malformed: ')}"),)
    if not isinstance(record, dict):
        return line, text, (Problem("", "must be a JSON object"),)
    return line, encode(mapping(record)), ()
