"""For any body, `read_event` returns an event or problems, and payloads keep their values."""

import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from workbench.language.codec import MalformedJsonError, decode, encode, replace_lone_surrogates, storage_problem
from workbench.language.event import Event, normalize_email, parse_timestamp, read_event
from workbench.language.problem import Problem

NOW_US = 1_795_000_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999

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
    result = read_event(raw, NOW_US)
    if isinstance(result, Event):
        assert storage_problem(decode(result.payload)) is None
        assert storage_problem(result.attributes) is None
        encode(result)
    else:
        assert result
        assert all(problem.reason for problem in result)


usual = st.fixed_dictionaries(
    {
        "event": st.sampled_from(["e", "First"]),
        "contact": st.sampled_from([{"email": "a@b.co"}, {"walletAddress": "0xA", "externalId": "u"}, {}]),
        "payload": st.sampled_from(
            [
                None,
                {"n": 1.5},
                {"hash": "0x4e5e7"},
                {"n": 1e300},
                {"n": 10**399},
                {"n": 10**400},
                {"deep": 1},
                {"{": "[["},
                7,
            ]
        ),
        "occurredAt": st.sampled_from(["2026-11-18T11:06:40Z", "2020-01-01T00:00:00.5+02:00", "soon", None]),
    },
    optional={"attributes": st.sampled_from([{"plan": "pro"}, {"rate": 0.5}, {"list": []}, None])},
)
odd_texts = [
    b'{"event":"e","contact":{"externalId":"u"},"payload":{"n":1e-999}}',
    b'{"event":"e","contact":{"externalId":"u"},"payload":{"n":1E999}}',
    b'{"event":"e","contact":{"externalId":"u"},"payload":%b1%b}' % (b'{"a":\n' * 40, b"}" * 40),
    b'{"event":"e","contact":{"externalId":"u", "more":"%b"},"payload":{}}' % (b"x" * 2_000),
    b'{"event":"e","contact":{"externalId":"u"},"payload":{"t":"%b"}}' % (b"x" * 17_000),
    b"[]",
]


@given(usual.map(encode) | st.sampled_from(odd_texts))
def test_the_fast_path_reads_an_event_like_the_full_path(raw: bytes) -> None:
    escaped = raw.replace(b'"event"', b'"\\u0065vent"', 1)  # a text with an escape takes the full path
    assert read_event(raw, NOW_US, history=True) == read_event(escaped, NOW_US, history=True)


@given(
    st.datetimes(),
    st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
    st.sampled_from(["auto", "milliseconds", "microseconds"]),
)
def test_a_timestamp_is_read_as_python_reads_it(moment: datetime, zone: timezone, precision: str) -> None:
    text = moment.replace(tzinfo=zone).isoformat(timespec=precision)
    moment_us = (datetime.fromisoformat(text) - EPOCH) // timedelta(microseconds=1)
    assert parse_timestamp(text) == (moment_us if FIRST_US <= moment_us <= LAST_US else None)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_without_raising(raw: bytes) -> None:
    assert read_event(raw, NOW_US)


@given(st.binary(max_size=12), st.sampled_from([b'{"event":"e","contact":{"externalId":"u"},"payload":{"a":%b}}']))
def test_a_payload_that_is_stored_undecoded_can_be_decoded(part: bytes, around: bytes) -> None:
    event = read_event(around % part, NOW_US)
    if isinstance(event, Event):
        assert storage_problem(decode(event.payload)) is None


@given(bodies, st.sampled_from(["event", "idempotencyKey", "occurredAt", "test"]))
def test_a_field_of_the_wrong_type_hides_no_other_problem(body: dict[str, Any], field: str) -> None:
    """The typed decoder reads the body without the field, and the slow path with it; other problems are the same."""
    sound = {"event": "e"} | {key: value for key, value in body.items() if key != field or field == "event"}
    sound = sound | {"event": "e"} if field == "event" else sound
    broken = sound | {field: [1]}
    expected = _problems(sound)
    problems = _problems(broken)
    assert {field} <= {problem.field for problem in problems}
    assert {problem for problem in problems if problem.field != field} == expected


@given(st.integers(-(10**308), 10**308) | st.decimals(allow_nan=False, allow_infinity=False, places=20))
def test_numbers_in_a_payload_keep_their_value(number: int | Decimal) -> None:
    raw = b'{"event":"e","contact":{"externalId":"u"},"payload":{"n":' + encode(number) + b"}}"
    event = read_event(raw, NOW_US)
    assert isinstance(event, Event)
    assert decode(event.payload) == {"n": number}


@given(objects)
def test_an_accepted_payload_keeps_its_value(payload: dict[str, Any]) -> None:
    raw = json.dumps({"event": "e", "contact": {"externalId": "u"}, "payload": payload}).encode()
    event = read_event(raw, NOW_US)
    sent = decode(replace_lone_surrogates(json.dumps(payload).encode()))
    if isinstance(event, Event):
        assert decode(event.payload) == sent
    else:
        assert storage_problem(sent) is not None


@given(values)
def test_json_is_written_as_it_was_read(value: Any) -> None:
    raw = replace_lone_surrogates(json.dumps(value).encode())
    try:
        read = decode(raw)
    except MalformedJsonError:
        return
    assert decode(encode(read)) == read


@given(st.text(max_size=30), st.sampled_from(["@b.co", "@Bücher.example", "@ΑΣ.example", ""]))
def test_the_normal_form_of_an_address_is_its_own_normal_form(local: str, domain: str) -> None:
    normal = normalize_email(local + domain)
    if normal is not None:
        assert normalize_email(normal) == normal
        assert normal == normal.lower()


def _problems(body: dict[str, Any]) -> set[Problem]:
    event = read_event(json.dumps(body).encode(), NOW_US)
    return set() if isinstance(event, Event) else set(event)


digit_runs = st.tuples(st.sampled_from("0123459"), st.integers(1, 199)).map(lambda run: run[0] * run[1])
numbers = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole.lstrip('0') or '0'}{fraction}{exponent}",
    st.sampled_from(["", "-"]),
    digit_runs,
    st.just("") | digit_runs.map(".{}".format),
    st.just("")
    | st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 999)),
)


@given(numbers)
def test_a_payload_is_accepted_exactly_if_its_number_can_be_stored(number: str) -> None:
    payload = f'{{"n":{number}}}'
    event = read_event(f'{{"event":"e","contact":{{"externalId":"u"}},"payload":{payload}}}'.encode(), NOW_US)
    assert isinstance(event, Event) == (storage_problem(decode(payload.encode())) is None)
