"""What is known of a contact beside its identifiers: attributes, and their limits (contract §2.1)."""

from collections.abc import Iterator
from decimal import Decimal

from api.language.codec import Json, MalformedJsonError, decode, unfit, unfit_text
from api.language.problem import Problem

MAX_ATTRIBUTES, MAX_ATTRIBUTE_KEY, MAX_ATTRIBUTE_BYTES = 50, 128, 1024
MAX_ATTRIBUTES_TEXT = 524_288  # bytes as sent


def read_attributes(raw: bytes, problems: list[Problem]) -> dict[str, Json]:
    """Return the attributes in a JSON text (of `null`: none); add what is wrong with them."""
    if raw == b"null":
        return {}
    if len(raw) > MAX_ATTRIBUTES_TEXT:
        problems.append(Problem("attributes", f"is larger than {MAX_ATTRIBUTES_TEXT} bytes"))
        return {}
    try:
        attributes = decode(raw)
    except MalformedJsonError as error:
        problems.append(Problem("attributes", str(error)))
        return {}
    if not isinstance(attributes, dict):
        problems.append(Problem("attributes", "must be an object"))
    elif len(attributes) > MAX_ATTRIBUTES:
        problems.append(Problem("attributes", f"has {len(attributes)} keys, at most {MAX_ATTRIBUTES} are allowed"))
    else:
        problems.extend(unfit_attributes(attributes))
        return attributes
    return {}


def unfit_attributes(attributes: dict[str, Json]) -> Iterator[Problem]:
    """Yield what keeps attributes from being stored, each by its path: `attributes.tier`."""
    for key, value in attributes.items():
        if not 0 < len(key) <= MAX_ATTRIBUTE_KEY or unfit_text(key):
            yield Problem("attributes", f"keys must be 1 to {MAX_ATTRIBUTE_KEY} characters, without U+0000")
        elif reason := _unfit_attribute(value):
            yield Problem(f"attributes.{key}", reason)


def _unfit_attribute(value: Json) -> str | None:
    if not isinstance(value, str | int | Decimal):
        return "must be a string, number or boolean"
    if isinstance(value, str) and len(value.encode()) > MAX_ATTRIBUTE_BYTES:
        return f"must be at most {MAX_ATTRIBUTE_BYTES} bytes"
    return unfit(value)
