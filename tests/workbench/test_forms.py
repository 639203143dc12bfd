"""The forms of a notebook make the calls that they show, with the real service."""

import re
from typing import Any

import pytest

from tests.running import Running
from workbench import InvalidArgumentError, Workbench
from workbench.forms import Forms

_CLOCK = re.compile(r"\d\d:\d\d:\d\d")


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    wb = running.workbench()
    wb.automation("form gift").on("form:paid").where("usd", gte=10).add_tag("paid").save()
    for usd, plan in ((5, "pro"), (12.5, "007")):
        payload = {"usd": usd, "plan": plan, "by": {"card": True}}  # a form has no fields for objects
        wb.events.send("form:paid", external_id="form-1", payload=payload)
    wb.events.send("form:back", external_id="form-1", attributes={"level": 3})
    return wb


def ask(forms: Forms, name: str, kind: str, **values: str) -> dict[str, Any]:
    return forms.answer("", {"ask": kind, "form": name, "values": values})


def fields(forms: Forms, name: str, **values: str) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in ask(forms, name, "fields", **values)["fields"]}


def test_an_event_is_tried_with_the_values_that_were_seen(wb: Workbench) -> None:
    shown = fields(wb.forms, "event", automation="form gift")
    assert [*shown] == ["automation", "event", "identifier", "contact", "payload.plan", "payload.usd"]
    assert (shown["event"]["value"], set(shown["payload.usd"]["options"])) == ("form:paid", {"5", "12.5"})
    assert shown["payload.plan"]["help"] == "text"
    values = {name: field["value"] for name, field in shown.items()} | {
        "contact": "form-1",
        "payload.plan": "007",
        "payload.usd": "12.5",
    }
    answer = ask(wb.forms, "event", "run", **values)
    assert answer["code"] == (
        "wb.automation('form gift').simulate('form:paid', external_id='form-1', payload={'plan': '007', 'usd': 12.5})"
    )
    assert "Would add the tag" in answer["html"]
    again = eval(answer["code"], {"wb": wb})._repr_html_()
    assert _CLOCK.sub("", answer["html"]) == _CLOCK.sub("", again)
    values["payload.usd"] = "5"
    assert "Nothing would happen" in ask(wb.forms, "event", "run", **values)["html"]
    other = fields(wb.forms, "event", automation="form gift", event="form:back", contact="me")
    assert (other["event"]["value"], other["contact"]["value"], "payload.usd" in other) == ("form:back", "me", False)


def test_a_funnel_and_retention_are_the_reports_that_they_show(wb: Workbench) -> None:
    empty = fields(wb.forms, "funnel")
    assert (empty["step_3"]["options"][0], empty["step_1"]["reloads"], empty["days"]["value"]) == ("", True, "30")
    chosen = fields(wb.forms, "funnel", step_1="form:paid", step_2="form:back", days="7", by="plan")
    assert [chosen[name]["value"] for name in ("step_1", "step_2", "days", "within", "by")] == [
        *("form:paid", "form:back", "7", "7d", "plan")
    ]
    assert [*chosen["by"]["options"][:5]] == ["", "by.card", "plan", "usd", "contact.segments"]
    assert "contact.level" in chosen["by"]["options"]
    other = fields(wb.forms, "funnel", step_1="form:back", by="plan")["by"]
    assert (other["value"], [*other["options"][:2]]) == ("", ["", "contact.segments"])
    steps = {"step_1": "form:paid", "step_2": "", "step_3": "form:back"}
    funnel = ask(wb.forms, "funnel", "run", **steps, within="1d", days="7", by="plan")
    assert funnel["code"] == "wb.funnel(['form:paid', 'form:back'], within='1d', days=7, by='plan')"
    assert "<img" in funnel["html"]
    retention = ask(wb.forms, "retention", "run", start="form:paid", back="", every="day", periods="3")
    assert retention["code"] == "wb.retention('form:paid', every='day', periods=3)"
    with pytest.raises(InvalidArgumentError, match="days must be a whole number, not 'x'"):
        ask(wb.forms, "funnel", "run", **steps, within="1d", days="x")
    with pytest.raises(InvalidArgumentError, match="2 to 12 steps, not 1"):
        ask(wb.forms, "funnel", "run", step_1="form:paid", within="1d", days="7")


def test_an_automation_is_drawn_and_has_figures(wb: Workbench) -> None:
    drawn = ask(wb.forms, "automation", "run", automation="form gift")
    assert (drawn["code"], "<img" in drawn["html"]) == ("wb.automation('form gift')", True)
    figures = ask(wb.forms, "stats", "run", automation="form gift", days="7")
    assert figures["code"] == "wb.automation('form gift').stats(days=7)"
    assert "form gift" in figures["html"]


def test_the_page_has_four_tabs(wb: Workbench) -> None:
    opened = wb.forms.answer("", {"ask": "open"})
    assert [(page["title"], [form["name"] for form in page["forms"]]) for page in opened["pages"]] == [
        ("Explore", ["funnel", "retention"]),
        ("Build", ["automation"]),
        ("Test", ["event"]),
        ("Watch", ["stats"]),
    ]
    assert "connected" in opened["html"]
    assert all("<table" in page["html"] for page in opened["pages"][:2])
    away = Workbench("http://127.0.0.1:9", "wb_x").forms.answer("", {"ask": "open"})
    assert ("not connected" in away["html"], [page["html"] for page in away["pages"]]) == (True, [""] * 4)
    with pytest.raises(InvalidArgumentError, match="reload it"):
        wb.forms.answer("", {"ask": "run", "form": "unknown", "values": {}})
