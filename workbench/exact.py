"""Whether two values are the same JSON."""

from typing import Any

import msgspec

_ENCODER = msgspec.json.Encoder(decimal_format="number", order="deterministic")


def same(left: Any, right: Any) -> bool:
    """Return whether two values are the same JSON to the last digit; the order of keys says nothing."""
    return _ENCODER.encode(left) == _ENCODER.encode(right)
