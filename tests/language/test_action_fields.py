"""Each field of a node takes its smallest and its largest value, and says what is wrong with those past them."""

from datetime import timedelta
from typing import Any

import pytest

from workbench.language.actions import (
    MAX_BRANCHES,
    MAX_COLLECTED,
    MAX_FIELDS,
    MAX_ID_LENGTH,
    MAX_TAG,
    MAX_URL,
    MAX_WAIT,
    InvalidAction,
    read_action,
)
from workbench.language.event import MAX_ATTRIBUTES
from workbench.language.locales import MAX_LOCALES

URL = "https://a.co/"
MAX_SECONDS = MAX_WAIT // timedelta(seconds=1)
EMAIL: dict[str, Any] = {"subject": "s", "body": "b"}
VIA: dict[str, Any] = {"connection": "chat", "fields": {}}
NOT_A_URL = "url: must be an http or https URL of at most 2048 characters; values may only follow the host"
LOCALES = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghijk"]


def problems(kind: str, data: dict[str, Any]) -> list[str]:
    action = read_action(kind, data, "n")
    return [str(problem) for problem in action.problems] if isinstance(action, InvalidAction) else []


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("add_tag", {"tag": "x"}),
        ("add_tag", {"tag": "x" * MAX_TAG}),
        ("update_contact", {"attributes": {f"a{n}": n for n in range(MAX_ATTRIBUTES)}}),
        ("update_contact", {"attributes": {"a": "{{ b }}" + "x" * 10_000}}),  # what it makes may be short
        ("delay", {"seconds": 1}),
        ("delay", {"seconds": MAX_SECONDS}),
        ("send_email", EMAIL | {"onMissing": "fail"}),
        ("send_email", EMAIL | {"locales": dict.fromkeys(LOCALES[:MAX_LOCALES], EMAIL)}),
        ("send_via", VIA | {"fields": {f"f{n}": n for n in range(MAX_FIELDS)}}),
        ("collect", {"seconds": 1, "key": "k", "max": 2}),
        ("collect", {"seconds": 1, "key": "k" * MAX_ID_LENGTH, "max": MAX_COLLECTED}),
        ("wait_until", {"attribute": "a" * MAX_ID_LENGTH, "offsetSeconds": MAX_SECONDS}),
        ("wait_until", {"attribute": "a", "offsetSeconds": -MAX_SECONDS}),
        ("wait_until", {"attribute": "a", "offsetSeconds": 1}),
        ("split", {"branches": [{"handle": "a", "percent": 0}, {"handle": "b" * MAX_ID_LENGTH, "percent": 100}]}),
        ("split", {"branches": [{"handle": f"h{n}", "percent": 1} for n in range(MAX_BRANCHES)]}),
        ("send_webhook", {"url": URL + "x" * (MAX_URL - len(URL))}),
    ],
)
def test_a_value_at_its_bound_is_valid(kind: str, data: dict[str, Any]) -> None:
    assert problems(kind, data) == []


@pytest.mark.parametrize(
    ("kind", "data", "reasons"),
    [
        ("add_tag", {"tag": ""}, ["tag: must be 1 to 64 characters"]),
        ("add_tag", {"tag": "x" * (MAX_TAG + 1)}, ["tag: must be 1 to 64 characters"]),
        ("add_tag", {"tag": "a\0"}, ["tag: must be 1 to 64 characters"]),
        (
            "delay",
            {"seconds": MAX_SECONDS + 1},
            ["seconds: must be a whole number of seconds from 1 to 31,622,400 (366 days)"],
        ),
        ("send_email", EMAIL | {"onMissing": "drop"}, ["onMissing: must be fail or skip"]),
        (
            "send_email",
            EMAIL | {"topic": "A b"},
            ["topic: must be the name of a topic: 1 to 64 characters of a-z, 0-9, _ and -"],
        ),
        (
            "send_email",
            EMAIL | {"locales": dict.fromkeys(LOCALES[: MAX_LOCALES + 1], EMAIL)},
            ["locales: must be an object of at most 100 locales"],
        ),
        (
            "send_email",
            EMAIL | {"locales": {"de": EMAIL, "DE": EMAIL, "12": EMAIL, "fr": "b"}},
            [
                "locales.DE: is the locale de once more",
                "locales.12: must be a locale: a language such as de, or one with a region such as de-AT",
                "locales.fr: must be an object with subject and body",
            ],
        ),
        ("send_via", VIA | {"locales": {"de": "b"}}, ["locales.de: must be an object with fields"]),
        (
            "send_via",
            VIA | {"fields": {f"f{n}": n for n in range(MAX_FIELDS + 1)}},
            ["fields: must be an object of at most 50 fields"],
        ),
        ("collect", {"seconds": 1, "max": 1}, ["max: must be a whole number from 2 to 1,000"]),
        ("collect", {"seconds": 1, "max": MAX_COLLECTED + 1}, ["max: must be a whole number from 2 to 1,000"]),
        ("collect", {"seconds": 1, "max": 2.0}, ["max: must be a whole number from 2 to 1,000"]),
        ("collect", {"seconds": 1, "key": ""}, ["key: must be a path of 1 to 128 characters, like orderId"]),
        ("collect", {"seconds": 1, "key": 5}, ["key: must be a path of 1 to 128 characters, like orderId"]),
        (
            "collect",
            {"seconds": 1, "key": "k" * (MAX_ID_LENGTH + 1)},
            ["key: must be a path of 1 to 128 characters, like orderId"],
        ),
        ("collect", {}, ["seconds: is missing: write a number of seconds, or a time of day as `until`"]),
        ("collect", {"seconds": 1, "until": "09:00"}, ["until: cannot be combined with `seconds`: write one of them"]),
        (
            "wait_until",
            {"attribute": "a", "offsetSeconds": 0},
            ["offsetSeconds: must be a whole number of seconds, not 0, up to 31,622,400 (366 days) either way"],
        ),
        (
            "wait_until",
            {"time": "09:00", "weekdays": [1, 8]},
            ["weekdays: must be an array of different weekdays from 1 (Monday) to 7 (Sunday)"],
        ),
        (
            "split",
            {"branches": [{"handle": "a", "percent": 101}, {"handle": "b", "percent": -1}]},
            [
                "branches[0].percent: must be a whole number from 0 to 100",
                "branches[1].percent: must be a whole number from 0 to 100",
            ],
        ),
        (
            "split",
            {"branches": [{"handle": f"h{n}", "percent": 1} for n in range(MAX_BRANCHES + 1)]},
            ["branches: must be an array of 2 to 100 branches"],
        ),
        ("send_webhook", {"url": URL + "x" * (MAX_URL + 1 - len(URL))}, [NOT_A_URL]),
    ],
)
def test_a_value_past_its_bound_is_named(kind: str, data: dict[str, Any], reasons: list[str]) -> None:
    assert problems(kind, data) == [f"n.data.{reason}" for reason in reasons]
