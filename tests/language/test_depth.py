"""Endless nesting is cut off before a parser runs out of stack, and the error still names the field."""

import json
from random import Random
from typing import Any

import pytest

from workbench.language import codec
from workbench.language.codec import CUT_DEPTH, truncate_depth
from workbench.language.event import read_event
from workbench.language.problem import Problem

ODD = ("a[{", '"', "\\", "}]", '\\"[', "")


def nested(chance: Random, depth: int) -> Any:
    if depth == 0 or chance.random() < 0.2:
        return chance.choice((1, None, *ODD))
    children = [nested(chance, depth - 1) for _ in range(chance.randrange(4))]
    return children if chance.random() < 0.5 else dict(zip(ODD, children, strict=False))


def cut(value: Any, levels: int) -> Any:
    """Return the expected result: everything deeper than `levels` becomes null."""
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return None
    if isinstance(value, list):
        return [cut(child, levels - 1) for child in value]
    return {key: cut(child, levels - 1) for key, child in value.items()}


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_only_values_that_are_too_deep_are_cut(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "CUT_DEPTH", levels)
    chance = Random(levels)
    for _ in range(500):
        value = nested(chance, 7)
        for text in (json.dumps(value), json.dumps(value, indent=1)):
            assert json.loads(truncate_depth(text.encode())) == cut(value, levels)


@pytest.mark.parametrize(
    "text", [b'"' + b'\\"' * 300_000, b'"\\' * 200_000, b"[" * 400_000, b"]" * 400_000, b'{"a":' * 50_000]
)
def test_invalid_json_is_scanned_once(text: bytes) -> None:
    assert len(truncate_depth(text)) <= len(text) + 4


@pytest.mark.parametrize("depth", [33, CUT_DEPTH - 2, CUT_DEPTH, 1_025, 5_000, 40_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_d10_a_payload_that_is_too_deep_is_refused_by_its_field(depth: int, opening: bytes, closing: bytes) -> None:
    payload = b'{"x":' + opening * depth + b"1" + closing * depth + b"}"
    refused = read_event(b'{"event": "a", "contact": {"externalId": "u"}, "payload": ' + payload + b"}", 0)
    assert refused == (Problem("payload", "is nested more than 32 levels deep"),)


def test_d10_a_deep_unknown_field_is_dropped_like_any_other() -> None:
    body = b'{"event": "a", "contact": {"externalId": "u"}, "x": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    assert not isinstance(read_event(body, 0), tuple)


@pytest.mark.parametrize("size", [1_048_577, 8_000_000])
def test_an_event_over_a_megabyte_is_not_parsed(size: int) -> None:
    body = b'{"event": "a", "contact": {"externalId": "u"}, "x": "' + b"y" * size + b'"}'
    assert read_event(body, 0) == (Problem("", "is larger than 1048576 bytes"),)
