"""A body in chunks, read strictly: a size is 1 to 8 hex digits and nothing else, lines end in CR LF, no trailers follow."""

import re
from typing import Literal

Progress = Literal["unfinished", "whole", "malformed", "too_large"]

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")
_SIZE_BEGUN = re.compile(rb"(?:[0-9A-Fa-f]{1,8}\r?)?")


class Chunks:
    """The chunks of one body of at most `limit` bytes, taken out of a buffer as they come."""

    def __init__(self, limit: int) -> None:
        self.body = bytearray()
        self._limit = limit

    def take(self, buffer: bytearray) -> Progress:
        """Move the whole chunks at the buffer's beginning into the body; what follows the last chunk stays."""
        while (size := _SIZE.match(buffer)) is not None:
            begin = size.end()
            end = begin + int(size[1], 16)
            if len(self.body) + end - begin > self._limit:
                return "too_large"
            if len(buffer) < end + 2:
                return "unfinished"
            if buffer[end : end + 2] != b"\r\n":
                return "malformed"
            self.body += buffer[begin:end]
            del buffer[: end + 2]
            if begin == end:
                return "whole"
        return "unfinished" if _SIZE_BEGUN.fullmatch(buffer) else "malformed"
