"""The Python side of the widgets answers requests, saves state in a notebook, and follows a live tail."""

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path as File
from typing import Any

import msgspec
import pytest

from tests.http_server import Handler
from tests.installation import until
from tests.running import Running
from tests.workbench.test_tail import Script, refusing, script, streaming
from workbench import Workbench, environment
from workbench.catalog import EventShape
from workbench.display import widgets
from workbench.display.payload import Drift, PayloadChange, code
from workbench.display.widgets import AWAY_S, LiveView, Row
from workbench.language.payload_schema import Frequency, FrequentValue, PropertyPath
from workbench.language.responses import StoredPayload

__all__ = ["script"]

EVIL = "<script>alert(1)</script>\"'"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def test_the_widget_receives_only_texts_and_numbers(wb: Workbench) -> None:
    listed = wb.catalog.answer({"ask": "list", "text": "depo"})
    (deposit,) = (entry for entry in listed["events"] if entry["event"] == "deposit")
    assert len(deposit["perDay"]) == len(listed["days"])
    looked = wb.catalog.answer({"ask": "look", "event": "deposit"})
    assert looked["title"].startswith("deposit: ")
    assert texts_and_numbers([listed, looked])


def texts_and_numbers(content: Any) -> bool:
    match content:
        case dict():
            return all(texts_and_numbers(item) for item in content.values())
        case list() | tuple():
            return all(texts_and_numbers(item) for item in content)
        case _:
            return isinstance(content, str | int)


AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
SHAPE = EventShape(
    event=EVIL,
    count=30,
    first_seen=AT,
    last_seen=AT,
    window_days=30,
    days=(),
    sampled=30,
    paths=(
        PropertyPath(
            EVIL, types={"string": 20, "number": 10}, samples=(EVIL,), missing_rate=0.001, null_rate=0.999, distinct=3
        ),
        PropertyPath("plan", types={"string": 30}, top_values=(FrequentValue(EVIL, 29),), samples=(EVIL,), distinct=2),
    ),
    per_day=(1, 0, 29),
    samples=(StoredPayload("1", AT, AT, {EVIL: EVIL * 2_000}),),
    drift=Drift(AT, 100, 60, (PayloadChange(EVIL, "new", Frequency(0, 100), Frequency(60, 60), "string"),)),
    undeliverable=0,
    sampled_since=None,
)


def test_a_copy_of_the_notebook_has_untrusted_content_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    page = SHAPE._repr_html_()
    assert "<script" not in page
    assert page.count("data:image/svg+xml;base64,") == 1
    for text in (
        "text 67%, number 33%",
        "&lt;1%",
        "&gt;99%",
        "as text is new: in 60 of 60 recently, in 0 of 100 before",
    ):
        assert text in page
    assert len(page) < 15_000
    assert "as text is new" in repr(SHAPE)


def test_untrusted_names_cannot_leave_their_quotes_in_inserted_code() -> None:
    evil = '""" + __import__("os").system("x") + """\\'
    for keys in (None, [evil], ["a", evil]):
        query, values = eval(code(evil, 7, keys), {"wb": Recorder, "__builtins__": {}})
        assert (values["event"], values["days"], values.get("path")) == (evil, 7, keys)
        assert "system" not in query


@pytest.mark.parametrize(
    ("payload", "keys"),
    [
        ({"a": {"b.c": 1}, "a.b": {"d": 1}}, ["a", "b.c"]),
        ({"a.b.c": 1, "a": {"b": {"c": 1}}}, ["a.b.c"]),
        ({"x": 1}, ["a", "b", "c"]),
    ],
)
def test_inserted_code_uses_the_keys_of_the_samples(payload: dict[str, Any], keys: list[str]) -> None:
    shape = msgspec.structs.replace(
        SHAPE, paths=(PropertyPath("a.b.c"),), samples=(StoredPayload("1", AT, AT, payload),)
    )
    (path,) = shape.page()["paths"]
    assert f"path={keys!r}" in path["code"]


class Recorder:
    """Replaces `wb`, and returns the arguments of the call."""

    @staticmethod
    def sql(query: str, **values: Any) -> tuple[str, dict[str, Any]]:
        return query, values


class Page:
    """A page that shows a tail: it sends requests and records the updates."""

    def __init__(self, following: LiveView) -> None:
        self.following = following
        self.sent: list[dict[str, Any]] = []
        following.window.send = self.sent.append  # type: ignore[method-assign]

    def send(self, word: str) -> dict[str, Any]:
        return self.following.answer({"ask": word})

    @property
    def events(self) -> list[str | int]:
        return [row["event"] for update in self.sent for row in update["rows"]]

    @property
    def states(self) -> list[str]:
        return list(dict.fromkeys(update["state"] for update in self.sent))


def test_a_lost_connection_is_shown_and_resumed_at_the_cursor(script: Script) -> None:
    script.answers = [streaming("1", "2", broken=True), streaming("3"), refusing]
    page = Page(script.tail().live_view())
    page.send("hello")
    until(lambda: "ended" in page.states, "the revoked key ends it")
    assert page.events == ["e", "e", "e"]
    assert script.cursors == [None, "after-2", "after-3"]
    assert "does not know this key" in page.sent[-1]["reason"]
    again = page.send("hello")
    assert [row["number"] for row in again["rows"]] == [1, 2, 3]
    assert again["state"] == "ended"


def test_an_unavailable_server_is_shown_and_retried(script: Script) -> None:
    errors = [partial(Handler.answer_json, status=status, body={"error": "not now"}) for status in (503, 502, 429)]
    script.answers = [errors[0], streaming("1"), *errors[1:], streaming("2"), refusing]
    page = Page(script.tail().live_view())
    page.send("hello")
    until(lambda: "ended" in page.states, "the revoked key ends it")
    assert page.events == ["e", "e"]
    assert script.cursors == [None, None, "after-1", "after-1", "after-1", "after-2"]
    assert any("not now" in update["reason"] for update in page.sent if update["state"] == "lost")


def test_an_unexpected_error_is_shown_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "_RECONNECT_S", 0.01)
    cursors: list[str] = []

    def steps(cursor: str) -> Iterator[tuple[str, Row | None, str]]:
        cursors.append(cursor)
        yield f"{cursor}+", {"event": "e"}, ""
        if len(cursors) < 3:
            raise RuntimeError("the sky fell")

    page = Page(LiveView(steps))
    page.send("hello")
    until(lambda: "ended" in page.states, "the third try ends in order")
    assert cursors == ["", "+", "++"]
    assert page.events == ["e"] * 3


def test_a_cell_with_a_tail_ends_after_following_has_started(script: Script) -> None:
    script.answers = [streaming("1"), refusing]
    following = script.tail().live_view()
    following.show()
    assert following._started.is_set()


def test_following_pauses_without_a_visible_page_and_resumes_at_the_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    now, resumed, cursors = [0.0], threading.Event(), []
    monkeypatch.setattr(environment, "monotonic_s", lambda: now[0])

    def steps(cursor: str) -> Iterator[tuple[str, Row | None, str]]:
        cursors.append(cursor)
        yield f"{cursor}+", {"event": f"after {cursor}"}, ""
        if not cursor:
            resumed.wait(10)
            yield "never", {"event": "never shown"}, ""

    page = Page(LiveView(steps))
    page.send("hello")
    until(lambda: page.events == ["after "], "the first event")
    now[0] += AWAY_S + 1
    page.following._changed.set()
    until(lambda: page.following._state == "resting", "it pauses without a visible page")
    resumed.set()
    page.send("here")
    until(lambda: page.events == ["after ", "after +"], "the next event")
    assert cursors == ["", "+"]


def test_every_call_of_the_documentation_works(wb: Workbench) -> None:
    page = (File(__file__).parents[2] / "docs" / "catalog.md").read_text()
    calls = [call for line in page.splitlines() if line.startswith("|") for call in re.findall(r"`(wb\..*?)`", line)]
    assert len(calls) == 12
    for call in calls:
        repr(eval(call, {"wb": wb}))
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, {"wb": wb})
