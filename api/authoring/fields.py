"""The fields of a request's body, read one by one; what is wrong with them gathers in `problems`.

Specs stay JSON text all the way, so every number is stored as it was written. null is absent; unknown fields are dropped.
"""

from datetime import datetime
from typing import Any, TypeVar

import msgspec

from api.clock import from_us
from api.language.codec import MalformedJsonError, decode, mend_surrogates, unfit
from api.language.moment import read_moment
from api.language.problem import Problem, Problems

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_T = TypeVar("_T")


class Fields:
    """The fields of one JSON object."""

    def __init__(self, fields: dict[str, msgspec.Raw]) -> None:
        self._fields = fields
        self.problems: list[Problem] = []

    def refuse(self, field: str, reason: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(field, reason))

    def raw(self, name: str) -> bytes | None:
        """Return the JSON text of a field."""
        raw = bytes(self._fields.get(name, b"null"))
        return None if raw == b"null" else raw

    def value(self, name: str) -> Any:
        """Return a field's decoded value, None when it is absent or cannot be stored."""
        raw = self.raw(name)
        if raw is None:
            return None
        try:
            value = decode(raw)
        except MalformedJsonError as error:
            self.refuse(name, str(error))
            return None
        if reason := unfit(value):
            self.refuse(name, reason)
            return None
        return value

    def text(self, name: str, most: int) -> str | None:
        """Return a string of 1 to `most` characters that are not all blank."""
        text = self._of(name, str, "must be a string")
        if text is None:
            return None
        if not text.strip() or len(text) > most:
            self.refuse(name, f"must be 1 to {most} characters, not all blank")
        return text

    def flag(self, name: str) -> bool | None:
        """Return a boolean."""
        return self._of(name, bool, "must be true or false")

    def number(self, name: str) -> int | None:
        """Return a whole number from 1 to 2,147,483,647."""
        number = self._of(name, int, "must be a whole number")
        if number is not None and not 1 <= number < 2**31:
            self.refuse(name, f"must be from 1 to {2**31 - 1}")
        return number

    def moment(self, name: str) -> datetime | None:
        """Return an aware moment."""
        text = self._of(name, str, "must be a string")
        moment_us = None if text is None else read_moment(text)
        if text is not None and moment_us is None:
            self.refuse(name, "must be an RFC 3339 date and time with a zone, like 2026-11-20T10:00:00Z")
        return None if moment_us is None else from_us(moment_us)

    def require(self, name: str) -> None:
        """Add a problem unless the field is there."""
        if self.raw(name) is None:
            self.refuse(name, "is required")

    def _of(self, name: str, kind: type[_T], otherwise: str) -> _T | None:
        value = self.value(name)
        if value is None or type(value) is kind:
            return value
        self.refuse(name, otherwise)
        return None


def read_fields(body: bytes) -> Fields | Problems:
    """Return the fields of a body, none when it is empty, or what is wrong with it as a whole."""
    if not body.strip(b" \t\r\n"):
        return Fields({})
    try:
        body.decode()
        return Fields(_OBJECT.decode(mend_surrogates(body)))
    except msgspec.ValidationError:
        return (Problem("", "the body must be one JSON object"),)
    except (ValueError, RecursionError) as error:  # includes UnicodeDecodeError and msgspec.DecodeError
        return (Problem("", f"malformed JSON: {error}"),)
