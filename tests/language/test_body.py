"""A struct of a body validates it and names all its problems; the same struct writes its schema."""

from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from workbench.language.body import Body, Id, Moment, Name, Number, read_body, read_query, read_value, schema_overrides
from workbench.language.problem import Problem

ID = "0198F000-0000-7000-8000-000000000001"


class Address(msgspec.Struct, rename="camel"):
    street_name: Name


class Order(Body, frozen=True, rename="camel"):
    amount: Annotated[Number, Meta(description="the number of pieces")]
    address: Address | None = None
    owner_id: Id | None = None
    at: Moment | None = None
    kind: Literal["b", "a"] | None = None
    level: Literal["low", "middle", "high"] | Number = "low"
    labels: Annotated[list[Name], Meta(max_length=2)] | None = None
    spec: Annotated[bytes, Meta(max_length=20)] = b"{}"
    urgent: bool = False

    def conflicts(self) -> list[Problem]:
        return [Problem("urgent", "needs a kind")] if self.urgent and self.kind is None else []


def reasons(body: bytes) -> list[str]:
    problems = read_body(Order, body)
    assert isinstance(problems, tuple), problems
    return [str(problem) for problem in problems]


def test_fields_are_converted_and_json_text_is_kept() -> None:
    order = read_body(
        Order, b'{"amount": 2, "ownerId": "%b", "spec": {"a": 1.10}, "more": 1, "kind": null}' % ID.encode()
    )
    assert order == Order(2, owner_id=ID.lower(), spec=b'{"a": 1.10}')


def test_all_problems_are_named_by_their_path() -> None:
    body = b'{"address": {"streetName": " "}, "ownerId": "x", "at": "today", "kind": "c", "level": 0, "urgent": 1}'
    assert reasons(body) == [
        "amount: is required: the number of pieces",
        "address.streetName: must be 1 to 200 characters, not all blank",
        "ownerId: must be an id",
        "at: must be an ISO 8601 date and time with a zone, like 2026-11-20T10:00:00Z",
        "kind: must be b or a",
        "level: must be one of low, middle, high or a whole number from 1 to 2147483647",
        "urgent: must be true or false",
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ('"amount": 1.5', "amount: must be a whole number from 1 to 2147483647"),
        (
            '"amount": 1, "labels": ["a", "b", "c"]',
            "labels: must be an array of at most 2 items, each a string of 1 to 200 characters",
        ),
        ('"amount": 1, "address": []', "address: must be an object"),
        ('"amount": 1, "address": {}', "address.streetName: is required"),
        ('"amount": 1, "spec": "123456789012345678901"', "spec: is 23 bytes, at most 20 are allowed"),
        ('"amount": 1, "kind": "\\u0000"', "kind: contains U+0000 or an unpaired surrogate"),
        ('"amount": 1, "at": 5', "at: must be an ISO 8601 date and time with a zone, like 2026-11-20T10:00:00Z"),
        ('"amount": 1e99999999999999999999', "amount: contains a number outside ±1e308 or of more than 400 digits"),
        ('"amount": 1, "urgent": true', "urgent: needs a kind"),
    ],
)
def test_a_problem_states_the_reason(fields: str, reason: str) -> None:
    (problem,) = reasons(f"{{{fields}}}".encode())
    assert problem == reason


class Rank(Enum):
    LOW = 1
    HIGH = 2


class Odd(Body, frozen=True):
    text: str = ""
    short: Annotated[str, Meta(max_length=5)] = ""
    name: Name = ""
    count: int = 0
    least: Annotated[int, Meta(ge=1)] = 1
    rank: Rank = Rank.LOW
    texts: list[str] | None = None
    counts: tuple[int, ...] = ()
    objects: list[dict[str, int]] | None = None
    ages: dict[str, int] | None = None
    size: float = 0
    colour: Annotated[str, Meta(pattern="^#", extra={"reason": "must begin with #"})] = "#"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ('"text": 1', "text: must be a string"),
        ('"short": 1', "short: must be a string"),
        ('"short": "123456"', "short: must be 0 to 5 characters"),
        ('"name": "a\\nb"', "name: contains control or format characters, such as a line break or a mark of direction"),
        ('"count": "1"', "count: must be a whole number"),
        ('"least": "1"', "least: must be a whole number"),
        ('"least": true', "least: must be a whole number"),
        ('"least": 0', "least: must be at least 1"),
        ('"rank": 3', "rank: must be one of 1, 2"),
        ('"texts": 1', "texts: must be an array of strings"),
        ('"counts": 1', "counts: must be an array of whole numbers"),
        ('"objects": 1', "objects: must be an array of objects"),
        ('"ages": {"a": "b"}', "ages: must be an object"),
        ('"size": "1"', "size: must be of another type"),
        ('"colour": "red"', "colour: must begin with #"),
        ('"text": "\\ud800"', "text: contains U+0000 or an unpaired surrogate"),
    ],
)
def test_a_reason_describes_the_type(fields: str, reason: str) -> None:
    problems = read_body(Odd, f"{{{fields}}}".encode())
    assert isinstance(problems, tuple), problems
    assert list(map(str, problems)) == [reason]


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b"\x0b", b"X", b"{", b'{"text": "\xff"}', b'{"text": 1} 2'])
def test_what_is_no_object_is_one_problem_of_the_body(body: bytes) -> None:
    problems = read_body(Odd, body)
    assert isinstance(problems, tuple), problems
    assert [problem.field for problem in problems] == [""]


@pytest.mark.parametrize("body", [b"", b" \t\r\n", b"{}"])
def test_an_empty_body_is_an_empty_object(body: bytes) -> None:
    assert read_body(Odd, body) == Odd()


def test_a_decoded_value_is_read_at_its_path() -> None:
    assert read_value(Order, {"amount": 2}, "order") == Order(2)
    assert read_value(Order, [], "order") == (Problem("order", "must be an object"),)
    assert read_value(Order, {"amount": 0}, "order") == (
        Problem("order.amount", "must be a whole number from 1 to 2147483647"),
    )


def test_a_schema_of_its_own_replaces_that_of_the_type_and_allows_null_unless_required() -> None:
    schema = {"type": "object", "minProperties": 1}

    class Own(msgspec.Struct, rename="camel"):
        the_graph: Annotated[bytes, Meta(extra={"schema": schema})]
        plain: bytes
        old_graph: Annotated[bytes, Meta(extra={"schema": schema})] = b""

    assert schema_overrides(Own) == {"theGraph": schema, "oldGraph": schema | {"type": ["object", "null"]}}


class Page(Body, frozen=True, rename="camel"):
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    before_id: Id | None = None
    detail: bool = False
    prefix: str = ""
    kinds: list[str] | None = None


@pytest.mark.parametrize(
    ("texts", "page"),
    [
        ({}, Page()),
        ({"detail": "false", "prefix": "", "beforeId": ""}, Page()),
        ({"limit": "007", "beforeId": ID, "detail": "true", "prefix": "7"}, Page(7, ID.lower(), True, "7")),
    ],
)
def test_a_query_is_read(texts: dict[str, str], page: Page) -> None:
    assert read_query(Page, {name: [text] for name, text in texts.items()}) == page


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[("limit", text) for text in ("", "0", "501", "-1", "+1", " 1", "1.0", "1_0", "\u0661", "9" * 5_000, "x")],
        *[("beforeId", text) for text in ("x", ID[:-1], ID + "\n")],
        *[("detail", text) for text in ("1", "True", "yes")],
        ("prefix", "a\0"),
    ],
)
def test_a_parameter_that_is_not_valid_is_named(name: str, text: str) -> None:
    problems: Any = read_query(Page, {name: [text]})
    assert [problem.field for problem in problems] == [name]


def test_an_array_is_sent_as_several_parameters_or_separated_by_commas() -> None:
    assert read_query(Page, {"kinds": ["a,b", "c"], "prefix": ["x", "y"]}) == Page(kinds=["a", "b", "c"], prefix="x")


def test_a_field_with_an_object_may_have_a_reader() -> None:
    class Letter(Body, frozen=True):
        to: Annotated[Address, Meta(extra={"read": lambda value, path: f"{path}: {value['city']}"})]

    letter = read_body(Letter, b'{"to": {"city": "Chur"}}')
    assert isinstance(letter, Letter)
    assert str(letter.to) == "to: Chur"
