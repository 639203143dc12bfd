"""The helpers of `workbench.testing` and the example in the docs work."""

import runpy
from datetime import timedelta
from pathlib import Path

import pytest

from tests.workbench.test_verbs import branching, new, thanks
from tests.workbench.test_verbs_and_settings import winback
from workbench import InvalidArgumentError, InvalidAutomationError
from workbench.language.run import State
from workbench.testing import DEFAULT_CONTACT, NOON, load, problems, simulate

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def test_the_example_in_the_docs_passes() -> None:
    tests = [
        value for name, value in runpy.run_path(str(EXAMPLES / "test_thanks.py")).items() if name.startswith("test_")
    ]
    assert len(tests) == 6
    for test in tests:
        test()


def test_a_failing_assertion_shows_the_messages() -> None:
    run = simulate(thanks(), "deposit", {"amountUsd": 100})
    assert repr(run.sent("goodbye")) == "no message with “goodbye”; sent: inapp “Thanks” 100 USD arrived"
    assert (
        repr(run.sent("100 USD", channel="inapp"))
        == "1 message by inapp with “100 USD”: inapp “Thanks” 100 USD arrived"
    )
    assert (
        repr(simulate(thanks(), "deposit").sent("x", channel="email")) == "no message by email with “x”; sent: nothing"
    )
    assert repr(run).startswith("Would send 1 message. Completed.")
    with pytest.raises(AssertionError, match="no message with “goodbye”; sent: inapp “Thanks” 100 USD arrived"):
        assert run.sent("goodbye")


def test_a_run_explains_its_branches() -> None:
    run = simulate(branching(), {"event": "trade"}, contact={**DEFAULT_CONTACT, "attributes": {"plan": "free"}})
    assert run.why() == (
        "Why “contact.plan …” was false (if_plan):\n"
        "  ✗ contact.plan is “pro”: it is “free”\n"
        "  ✗ amountUsd is set: amountUsd is not set"
    )


def test_advancing_a_run_does_not_change_it() -> None:
    run = simulate(winback(), "deposit", {"size": 1})
    later = run.advance("3d").send("purchase", {"plan": "pro", "size": 1})
    assert (later.tags, later.now) == (["buyer", "done"], NOON + timedelta(days=3, seconds=1))
    assert (run.state, run.outcome, run.waiting_at) == (State.COMPLETED, "completed", None)
    assert (run.removed_tags, run.attributes, len(run.messages)) == ([], {}, len(run.sent()))


def test_a_test_does_not_use_the_server_of_an_automation() -> None:
    automation = load(thanks().to_json())
    assert simulate(automation, "deposit", {"amountUsd": 100}).started
    assert problems(automation) == []
    assert problems(new().on("a").add_tag("")) == ["add_tag: the tag '' must be 1 to 64 characters"]


def test_invalid_files_and_events_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(InvalidAutomationError, match=r"x\.json is not an automation"):
        load(tmp_path / "x.json")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.json")
    with pytest.raises(InvalidArgumentError, match="would be refused"):
        simulate(thanks(), "deposit", contact={"externalId": "x" * 200})


def test_a_run_evaluates_expressions_and_explains_them() -> None:
    automation = new().on("deposit").where("amountUsd", gt=500).when("contact.age >= 18").then(lambda b: b.add_tag("x"))
    assert "amountUsd > 500" in repr(simulate(automation, "deposit", {"amountUsd": 500}))
    assert problems(automation) == []
    run = simulate(
        automation, "deposit", {"amountUsd": 500.5}, contact={**DEFAULT_CONTACT, "attributes": {"age": "20"}}
    )
    assert run.why() == (
        "Why it starts:\n"
        "  ✓ amountUsd > 500: amountUsd is 500.5\n"
        "Why “contact.age >= 18 …” was false (condition):\n"
        "  ✗ contact.age >= 18: contact.age is “20”"
    )


def test_events_join_a_run_that_collects() -> None:
    automation = new().on("trade").collect("1h").send_email("{{ events | length }}", "{{ events | sum('usd') }}")
    run = simulate(automation, "trade", {"usd": 1}).advance("10m").send("trade", {"usd": 2})
    assert run.waiting_at == "collect"
    assert "trade also starts this automation unless it joins this one; that entry" in repr(run)
    assert [(message.subject, message.body) for message in run.advance("1h").messages] == [("2", "3")]


def test_an_automation_that_starts_from_a_segment_needs_only_a_contact() -> None:
    welcome = new("Welcome").on_segment_entered("vip").send_email(subject="{{ segment }}", body="{{ email }}")
    assert problems(welcome) == []
    assert simulate(welcome).sent("vip")
    assert simulate(welcome.where("email", eq="ada@b.co"), contact={"email": "bob@b.co"}).started is False
    with pytest.raises(InvalidArgumentError, match="payload is not a field of a start"):
        simulate(welcome, payload={"a": 1})
    with pytest.raises(InvalidArgumentError, match="a start has a contact"):
        welcome.simulate()
    with pytest.raises(InvalidAutomationError, match="segment must be the name of a segment"):
        new("x").on_segment_left("VIP")


def test_a_run_has_the_time_zone_of_the_organization() -> None:
    morning = new().on("a").wait_until("09:00").send_email("Good morning", "…")
    zurich = timedelta(hours=20)  # NOON is 13:00 there
    assert simulate(morning, "a").simulation.steps[-1].at == NOON + timedelta(hours=21)
    assert simulate(morning, "a", timezone="Europe/Zurich").simulation.steps[-1].at == NOON + zurich
    advanced = simulate(morning, "a", timezone="Europe/Zurich").advance("20h")
    assert advanced.sent("Good morning")
    own = {**DEFAULT_CONTACT, "attributes": {"timezone": "UTC"}}
    assert simulate(morning, "a", timezone="Europe/Zurich", contact=own).simulation.steps[-1].at > NOON + zurich
    own_zone = morning.timezone("America/New_York")
    assert simulate(own_zone, "a", timezone="Europe/Zurich").simulation.steps[-1].at == NOON + timedelta(hours=2)
    with pytest.raises(InvalidArgumentError, match="timezone: 'Zurich' must be the name of a time zone"):
        simulate(morning, "a", timezone="Zurich")
