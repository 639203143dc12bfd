"""The bounds that docs/contract.md names equal the constants of `workbench.language`."""

import re
from pathlib import Path

import pytest

from workbench.language import codec, contact, event
from workbench.language.trigger import ALIASES, BUILT_INS

CONTRACT = (Path(__file__).parents[2] / "docs/contract.md").read_text("utf-8")
UNITS = {"KB": 1_024, "KiB": 1_024, "MiB": 1_048_576}


def numbers(text: str) -> list[int]:
    """Return the numbers in a text, in bytes where a unit follows: `at most 16 KB` is 16,384.

    The `8` of `UTF-8` and the status in `are a 400` are left out.
    """
    matches = re.findall(r"(?<![\w-])(?<!are a )(\d[\d,]*)(?: (KB|KiB|MiB)\b)?", text)
    return [int(digits.replace(",", "")) * UNITS.get(unit, 1) for digits, unit in matches]


def sentence(start: str) -> str:
    """Return the sentence of the contract that contains a phrase, from the phrase to the full stop."""
    match = re.search(re.escape(start) + r".*?\.(?=\s)", " ".join(CONTRACT.split()))
    assert match is not None, f"docs/contract.md has no sentence with {start!r}"
    return match[0]


def row(section: str, name: str) -> str:
    """Return the last cell of a row in the table of a section."""
    chapter = CONTRACT.split(f"\n{section} ", 1)[1].split("\n## ", 1)[0].split("\n### ", 1)[0]
    (line,) = (line for line in chapter.splitlines() if line.startswith(f"| {name} |"))
    return line.rsplit("|", 2)[1]


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("`contact.email`", [event.MAX_EMAIL]),
        ("`contact.walletAddress`", [event.MAX_WALLET]),
        ("`contact.externalId`", [event.MAX_EXTERNAL_ID]),
        ("`attributes`", [event.MAX_ATTRIBUTES, event.MAX_ATTRIBUTE_BYTES]),
        ("`payload`", [event.MAX_PAYLOAD_BYTES]),
        ("`idempotencyKey`", [event.MAX_KEY]),
    ],
)
def test_the_fields_of_an_event_have_the_bounds_of_the_code(name: str, bounds: list[int]) -> None:
    assert numbers(row("### 2.1", name)) == bounds


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("email", [event.MAX_EMAIL]),
        ("wallet address", [event.MAX_WALLET]),
        ("external id", [event.MAX_EXTERNAL_ID]),
        ("idempotency key", [event.MAX_KEY]),
        ("attributes", [event.MAX_ATTRIBUTES, event.MAX_ATTRIBUTE_BYTES]),
        ("payload", [event.MAX_PAYLOAD_BYTES]),
        ("age of an event", [event.MAX_AGE.days, event.MAX_FUTURE.seconds // 60]),
    ],
)
def test_the_limits_are_those_of_the_code(name: str, bounds: list[int]) -> None:
    assert numbers(row("## 8.", name)) == bounds


@pytest.mark.parametrize(
    ("start", "bounds"),
    [
        ("16 KB are", [event.MAX_PAYLOAD_BYTES, event.MAX_PAYLOAD_BYTES]),
        ("or with more than 400 decimals", [codec.MAX_DIGITS]),
        ("more than 32 levels of nesting", [codec.MAX_DEPTH]),
        ("Keys of attributes have", [event.MAX_ATTRIBUTE_KEY]),
        ("A payload of more than", [event.MAX_RAW_PAYLOAD_BYTES, event.MAX_ATTRIBUTES_BYTES]),
        ("A contact has at most", [contact.MAX_CONTACT_ATTRIBUTES, contact.MAX_CONTACT_ATTRIBUTES_BYTES]),
    ],
)
def test_the_bounds_of_values_are_those_of_the_code(start: str, bounds: list[int]) -> None:
    assert numbers(sentence(start)) == bounds


def test_a_request_for_one_event_has_the_bound_of_an_event() -> None:
    assert numbers(sentence("for one event has at most"))[0] == event.MAX_EVENT_BYTES


def test_numbers_have_the_exponent_of_the_code() -> None:
    assert re.findall(r"±1e(\d+)", sentence("Numbers outside")) == [str(codec.MAX_EXPONENT)]


def test_the_pattern_of_event_names_is_that_of_the_code() -> None:
    assert f"`^{event.EVENT_NAME.pattern}$`" in row("### 2.1", "`event`")
    length = re.fullmatch(r".*\{(\d+),(\d+)\}", event.EVENT_NAME.pattern)
    assert length is not None
    assert f"{length[1]}-{length[2]} characters" in row("## 8.", "event name")


def test_occurred_at_has_the_bounds_of_the_code() -> None:
    days, minutes = event.MAX_AGE.days, event.MAX_FUTURE.seconds // 60
    text = row("### 2.1", "`occurredAt`").partition("default now")[2]
    assert numbers(text) == [days, minutes]


def test_the_names_of_triggers_and_built_ins_are_those_of_the_code() -> None:
    aliases = re.findall(r"`([^`]+)`", sentence("(aliases:").partition(")")[0])
    assert {"app_event", *aliases} == ALIASES
    assert (
        tuple(re.findall(r"`(\w+)`", sentence("Filters see a flat context").partition("and `event`")[2]))
        == BUILT_INS[1:]
    )
