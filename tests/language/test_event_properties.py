"""Whatever arrives: an event or problems, the same on both roads, and payloads keep their value."""

import json
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from api.language.codec import MalformedJsonError, decode, encode, mend_surrogates, unfit
from api.language.event import Event, normal_email, read_event
from api.language.problem import Problem

NOW_US = 1_795_000_000_000_000

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**320), 10**320)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
objects = st.dictionaries(st.text(max_size=8), values, max_size=6)
names = st.sampled_from(["e", "First", "", "a b", "x" * 65])
contacts = st.fixed_dictionaries(
    {},
    optional={
        "email": st.sampled_from(["a@b.co", "A@Bü.co", "nope", ""]) | values,
        "walletAddress": st.text(max_size=130) | values,
        "externalId": st.text(max_size=130) | values,
    },
)
bodies = st.fixed_dictionaries(
    {},
    optional={
        "event": names | values,
        "contact": contacts | values,
        "attributes": objects | values,
        "payload": objects | values,
        "idempotencyKey": st.text(max_size=5) | values,
        "occurredAt": st.sampled_from(["2026-11-18T11:06:40Z", "2020-01-01T00:00:00Z", "soon"]) | values,
        "test": st.booleans() | values,
        "unknown": values,
    },
)


@given(bodies, st.booleans())
def test_a_body_is_an_event_or_at_least_one_problem(body: dict[str, Any], ascii_only: bool) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    found = read_event(raw, NOW_US)
    if isinstance(found, Event):
        assert unfit(decode(found.payload)) is None
        assert unfit(found.attributes) is None
        encode(found)
    else:
        assert found
        assert all(problem.reason for problem in found)


@given(st.binary(max_size=200))
def test_any_bytes_are_judged_without_raising(raw: bytes) -> None:
    assert read_event(raw, NOW_US)


@given(st.binary(max_size=12), st.sampled_from([b'{"event":"e","contact":{"externalId":"u"},"payload":{"a":%b}}']))
def test_a_payload_that_is_stored_unread_can_be_read(part: bytes, around: bytes) -> None:
    found = read_event(around % part, NOW_US)
    if isinstance(found, Event):
        assert unfit(decode(found.payload)) is None


@given(bodies, st.sampled_from(["event", "idempotencyKey", "occurredAt", "test"]))
def test_a_field_of_the_wrong_type_hides_no_other_problem(body: dict[str, Any], field: str) -> None:
    """The typed road sees the body without the field, the slow road with it; the rest is judged alike."""
    sound = {"event": "e"} | {key: value for key, value in body.items() if key != field or field == "event"}
    sound = sound | {"event": "e"} if field == "event" else sound
    broken = sound | {field: [1]}
    expected = _problems(sound)
    found = _problems(broken)
    assert {field} <= {problem.field for problem in found}
    assert {problem for problem in found if problem.field != field} == expected


@given(st.integers(-(10**308), 10**308) | st.decimals(allow_nan=False, allow_infinity=False, places=20))
def test_numbers_in_a_payload_keep_their_value(number: int | Decimal) -> None:
    raw = b'{"event":"e","contact":{"externalId":"u"},"payload":{"n":' + encode(number) + b"}}"
    found = read_event(raw, NOW_US)
    assert isinstance(found, Event)
    assert decode(found.payload) == {"n": number}


@given(objects)
def test_an_accepted_payload_keeps_its_value(payload: dict[str, Any]) -> None:
    raw = json.dumps({"event": "e", "contact": {"externalId": "u"}, "payload": payload}).encode()
    found = read_event(raw, NOW_US)
    sent = decode(mend_surrogates(json.dumps(payload).encode()))
    if isinstance(found, Event):
        assert decode(found.payload) == sent
    else:
        assert unfit(sent) is not None


@given(values)
def test_json_goes_out_as_it_came_in(value: Any) -> None:
    raw = mend_surrogates(json.dumps(value).encode())
    try:
        read = decode(raw)
    except MalformedJsonError:
        return
    assert decode(encode(read)) == read


@given(st.text(max_size=30), st.sampled_from(["@b.co", "@Bücher.example", "@ΑΣ.example", ""]))
def test_the_normal_form_of_an_address_is_its_own_normal_form(local: str, domain: str) -> None:
    normal = normal_email(local + domain)
    if normal is not None:
        assert normal_email(normal) == normal
        assert normal == normal.lower()


def _problems(body: dict[str, Any]) -> set[Problem]:
    found = read_event(json.dumps(body).encode(), NOW_US)
    return set() if isinstance(found, Event) else set(found)
