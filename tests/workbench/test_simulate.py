"""Simulations without a server give the results of the interpreter, and texts that show them."""

from datetime import UTC, datetime

import pytest

from tests.inapp.wallet import evm_wallet
from tests.workbench.test_verbs import branching, new, thanks
from workbench import InvalidArgumentError
from workbench.language.run import State

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
WALLET = {"walletAddress": evm_wallet("A11CE")}


def test_a_matching_event_shows_the_rendered_message() -> None:
    simulation = thanks().simulate({"payload": {"amountUsd": 100}}, contact=WALLET, now=NOW)
    assert simulation.matched
    assert simulation.path == ("trigger", "send_inapp")
    assert [(message.wallet_address, message.body) for message in simulation.messages] == [
        (evm_wallet("a11ce"), "100 USD arrived")
    ]
    assert (simulation.state, simulation.outcome) == (State.COMPLETED, "completed")
    assert simulation.headline() == "Would send 1 message"


def test_a_near_miss_is_explained() -> None:
    simulation = thanks().simulate({"payload": {"amountUsd": "100"}}, contact=WALLET, now=NOW)
    assert not simulation.matched
    assert simulation.headline() == "Nothing would happen"
    assert simulation.reason() == (
        "The trigger requires that amountUsd is 100, but it is “100”, a text; 100 is a number, so they are different."
    )


def test_a_missing_value_is_explained() -> None:
    assert "amountUsd is not set" in thanks().simulate({}, contact=WALLET, now=NOW).reason()
    big = thanks().where("amountUsd > 500 and fee < 1")
    assert big.simulate({"payload": {"amountUsd": 100}}, contact=WALLET, now=NOW).reason() == (
        "The trigger requires that amountUsd > 500 and fee < 1, but amountUsd is 100 and fee is not set."
    )


def test_an_event_of_another_name_is_explained() -> None:
    simulation = thanks().simulate({"event": "trade"}, contact=WALLET, now=NOW)
    assert simulation.reason() == "This automation starts on deposit, not on trade."


def test_the_attributes_of_the_contact_choose_the_branch() -> None:
    event = {"event": "deposit", "payload": {"amountUsd": 1}}
    pro = branching().simulate(event, contact=WALLET | {"attributes": {"plan": "pro"}}, now=NOW)
    other = branching().simulate(event, contact=WALLET, now=NOW)
    assert pro.tags == ("Pro customer", "seen")
    assert other.path == ("trigger", "if_plan", "send_inapp", "add_tag_seen")


def test_a_message_to_a_contact_without_a_wallet_is_skipped() -> None:
    simulation = thanks().simulate({"payload": {"amountUsd": 100}}, contact={"email": "ada@example.com"}, now=NOW)
    assert (simulation.state, simulation.steps[-1].outcome, simulation.messages) == (State.COMPLETED, "skipped", ())
    assert "send_inapp: skipped, because neither the event nor the contact has a wallet" in repr(simulation)


def test_a_contact_without_a_wallet_fails_after_all_attempts() -> None:
    automation = new().on("deposit").send_inapp("Thanks", "{{ amountUsd }}", on_missing="fail")
    simulation = automation.simulate({"payload": {"amountUsd": 100}}, contact={"email": "ada@example.com"}, now=NOW)
    assert (simulation.state, simulation.outcome) == (State.DEAD, "no_wallet")
    assert len(simulation.steps) == 7
    assert "Failed permanently" in repr(simulation)


def test_steps_are_a_frame() -> None:
    frame = thanks().simulate({"payload": {"amountUsd": 100}}, contact=WALLET, now=NOW).frame()
    assert frame["node_id"].to_list() == ["trigger", "send_inapp"]


@pytest.mark.parametrize(
    ("event", "contact", "words"),
    [
        ({}, None, "the event has no contact"),
        ({"contact": {}}, WALLET, "contact: needs at least one"),
        ({"payload": 1}, WALLET, "payload: must be an object"),
        ({"event": ""}, WALLET, "event: must be 1 to 64"),
        ({"amountUsd": 100}, WALLET, 'amountUsd is not a field of an event: put it into "payload"'),
    ],
)
def test_an_invalid_event_is_refused(event, contact, words) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        thanks().simulate(event, contact=contact, now=NOW)


@pytest.mark.parametrize(
    ("contact", "words"),
    [
        ("ada", "contact: must be an object"),
        ({"walletAddress": 1}, r"contact\.walletAddress: must be a string"),
        ({"email": "nope"}, r"contact\.email: not a valid email"),
        ({**WALLET, "plan": "pro"}, r'contact\.plan is not a field of a contact: put it into "attributes"'),
        ({"externalId": "1", "attributes": {"plan": object()}}, r"contact\.attributes: must hold"),
    ],
)
def test_an_invalid_contact_is_refused_with_its_field(contact, words) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        thanks().simulate({"payload": {"amountUsd": 100}}, contact=contact, now=NOW)


@pytest.mark.parametrize(
    ("event", "now", "words"),
    [
        (7, NOW, "written by its name"),
        ({}, NOW.replace(tzinfo=None), "time zone"),
        ({"payload": {1: object()}}, NOW, "JSON"),
    ],
)
def test_invalid_arguments_are_refused(event, now, words) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        thanks().simulate(event, contact=WALLET, now=now)


def test_a_simulation_shows_the_texts_of_a_locale() -> None:
    locales = {"de": {"title": "Danke", "body": "b"}}
    automation = new().on("deposit").send_inapp("Thanks", "b", locales=locales)
    austrian = {**WALLET, "attributes": {"locale": "de_AT"}}
    shown = [
        automation.simulate({}, contact=austrian, now=NOW, locale=locale) for locale in (None, "fr", "de-CH", "default")
    ]
    assert [simulation.messages[0].title for simulation in shown] == ["Danke", "Thanks", "Danke", "Thanks"]
    assert "2. send_inapp: message sent in de\n" in repr(shown[0])
    assert "2. send_inapp: message sent with the default texts\n" in repr(shown[1])
    with pytest.raises(InvalidArgumentError, match="locale: must be a locale"):
        automation.simulate({}, contact=austrian, now=NOW, locale="German")


def test_an_event_name_is_required_if_several_start_the_automation() -> None:
    with pytest.raises(InvalidArgumentError, match="the event has no name"):
        branching().simulate({}, contact=WALLET, now=NOW)


def test_the_page_shows_message_reasons_and_steps() -> None:
    page = branching().simulate({"event": "trade", "payload": {}}, contact=WALLET, now=NOW)._repr_html_()
    for words in (
        "Upgrade?",
        "Why “contact.plan …” was false (if_plan)",
        "<td>not set</td>",
        "Steps",
        "data:image/svg+xml;base64,",
    ):
        assert words in page
    assert "<svg" not in page


def test_untrusted_text_is_escaped() -> None:
    automation = new().on("x").send_inapp(title="{{ name }}", body="b")
    page = automation.simulate(
        {"payload": {"name": "<script>alert(1)</script>"}}, contact=WALLET, now=NOW
    )._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
