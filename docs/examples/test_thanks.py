"""Tests of an automation, which need no server: `pytest docs/examples`."""

from datetime import UTC, datetime
from pathlib import Path

from workbench.testing import DEFAULT_CONTACT, load, problems, simulate

THANKS = load(Path(__file__).parent / "thanks-for-the-deposit.json")
PRO = {**DEFAULT_CONTACT, "attributes": {"plan": "pro", "name": "Ada"}}


def test_the_automation_can_be_published():
    assert problems(THANKS) == []


def test_pro_customers_get_an_email_by_name():
    run = simulate(THANKS, "deposit", {"amountUsd": 500}, contact=PRO)
    assert run.sent("Thank you, Ada", channel="email")
    assert run.sent("500 USD")


def test_a_deposit_without_an_amount_starts_nothing():
    assert not simulate(THANKS, "deposit", {}).started


def test_a_buyer_within_three_days_is_tagged_and_gets_no_reminder():
    run = simulate(THANKS, "deposit", {"amountUsd": 5}).advance("2d").send("purchase")
    assert run.path == ["trigger", "if_plan", "send_inapp", "wait_for_purchase", "add_tag_buyer"]
    assert run.tags == ["buyer"]
    assert not run.sent("Still thinking?")


def test_other_customers_are_reminded_after_three_days():
    run = simulate(THANKS, "deposit", {"amountUsd": 5})
    assert not run.advance("2d 23h").sent("Still thinking?")
    assert run.advance("3d").sent("Still thinking?", channel="inapp")


def test_no_message_is_sent_at_night():
    night = datetime(2026, 1, 7, 23, tzinfo=UTC)
    run = simulate(THANKS, "deposit", {"amountUsd": 5}, now=night)
    assert run.advance("8h").waiting_at == "send_inapp"
    assert run.advance("9h").sent("Thanks!")
