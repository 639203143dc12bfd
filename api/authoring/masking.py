"""An address that a reader may not see, taken out of values, in upper and lower case.

A trial decides by the true address, so that it does what the engine would, and tells of a contact from whom the address is taken out
(`language.seen`). That keeps addresses out of sight; who may write automations can still ask about them, by conditions.
"""

import re
from typing import TypeVar

import msgspec

from api.language.email import mask_email

_T = TypeVar("_T")


def without_email(value: _T, email: str) -> _T:
    """Return a value with the address masked wherever it stands in a text."""
    return _masked(value, re.compile(re.escape(email), re.IGNORECASE), mask_email(email))


def _masked(value: _T, address: re.Pattern[str], mask: str) -> _T:
    masked: object = value
    if isinstance(value, str):
        masked = address.sub(lambda _: mask, value) if address.search(value) else value  # a State stays a State
    elif isinstance(value, dict):
        masked = {_masked(key, address, mask): _masked(each, address, mask) for key, each in value.items()}
    elif isinstance(value, list):
        masked = [_masked(each, address, mask) for each in value]
    elif isinstance(value, tuple):
        masked = tuple(_masked(each, address, mask) for each in value)
    elif isinstance(value, msgspec.Struct):
        fields = {name: _masked(getattr(value, name), address, mask) for name in value.__struct_fields__}
        masked = msgspec.structs.replace(value, **fields)
    return masked  # type: ignore[return-value]  # every branch keeps the type
