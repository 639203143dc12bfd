"""No message is sent to a channel that the contact has opted out of."""

from datetime import UTC, datetime, time

import msgspec
import pytest

from tests.inapp.wallet import evm_wallet
from tests.language.strategies import contact_from
from workbench.language.actions import Action, SendEmail, SendInapp, SendVia, SendWebhook
from workbench.language.advance import advance
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.facts import Facts
from workbench.language.graph import DEFAULT_SETTINGS, Edge, Graph, Node, QuietHours
from workbench.language.run import Run, State

MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
CHANNELS: dict[str, Action] = {
    "inapp": SendInapp("Hi", "there"),
    "email": SendEmail("Hi", "there"),
    "webhook": SendWebhook("https://acme.example/hook"),
    "connection": SendVia("chat", {"text": "Hi"}),
}
ANN = ContactState("c1", Identifiers(evm_wallet("c"), "ann@b.co"))


def sent_to(
    contact: ContactState, action: Action, hours: QuietHours | None = None
) -> tuple[str, dict[str, object], int]:
    """Return the outcome, the detail and the number of effects of the step."""
    settings = msgspec.structs.replace(DEFAULT_SETTINGS, quiet_hours=hours)
    graph = Graph((Node("n", "send", action),), (Edge("", "n", "gone"),), settings)
    facts = Facts("paid", Identifiers(), {}, contact)
    decision = advance(graph, Run("e1", "a1", State.RUNNING, "n", 0, 1), facts, MIDNIGHT)
    assert decision.step is not None
    return decision.step.outcome, decision.step.detail, len(decision.effects)


@pytest.mark.parametrize("channel", CHANNELS)
def test_j12_a_channel_with_an_opt_out_is_skipped(channel: str) -> None:
    contact = msgspec.structs.replace(ANN, opted_out=(channel,))
    assert sent_to(contact, CHANNELS[channel]) == ("skipped", {"cause": "opted_out"}, 0)


@pytest.mark.parametrize("channel", CHANNELS)
def test_other_channels_are_not_skipped(channel: str) -> None:
    contact = msgspec.structs.replace(ANN, opted_out=tuple(CHANNELS.keys() - {channel}))
    assert sent_to(contact, CHANNELS[channel])[::2] == ("sent", 1)


def test_an_opt_out_is_skipped_without_waiting_for_quiet_hours() -> None:
    night = QuietHours(time(22), time(8), "timezone")
    assert sent_to(ANN, CHANNELS["email"], night)[0] == "waiting"
    contact = msgspec.structs.replace(ANN, opted_out=("email",))
    assert sent_to(contact, CHANNELS["email"], night)[0] == "skipped"


def test_an_opt_out_is_checked_before_the_address() -> None:
    without_addresses = ContactState("c2", Identifiers(), opted_out=("inapp", "email"))
    assert {sent_to(without_addresses, CHANNELS[channel])[0] for channel in ("inapp", "email")} == {"skipped"}


def test_a_described_contact_may_have_opt_outs() -> None:
    assert contact_from({"email": "ann@b.co", "optedOut": ["email"]}).opted_out == ("email",)
    for wrong in ("email", ["fax"]):
        with pytest.raises(
            ValueError, match=r"contact\.optedOut: must be an array with some of inapp, email, webhook, connection"
        ):
            contact_from({"optedOut": wrong})
