"""Test sends: the messages of an automation, sent to yourself through the real channels."""

from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableSequence, TableView, table_columns
from workbench.display.words import CAUSE_WORDS, outcome
from workbench.draft import Draft
from workbench.errors import InvalidArgumentError
from workbench.language.decision import DELIVERY_ERRORS
from workbench.simulate import complete_event


class TestReceivers(TypedDict, total=False):
    """The addresses that tests are sent to: one for each channel to test."""

    email: str
    wallet_address: str
    url: str


class TestMessage(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one message: sent, failed, skipped or unknown (it may have arrived). `reason` is why, in a word."""

    __test__ = False  # pytest would collect the class because of its name

    node_id: str
    channel: str
    outcome: str
    reason: str | None = None
    detail: str = ""
    id: str | None = None
    title: str | None = None

    def why(self) -> str:
        """Return why it was not sent, or why its outcome is unknown; empty if it was sent."""
        if self.reason is None:
            return ""
        text = _REASON_TEXTS.get(self.reason) or CAUSE_WORDS.get(self.reason) or outcome(self.reason)
        return f"{text} ({self.detail})" if self.detail else text


class TestSent(TableSequence[TestMessage]):
    """The results of a test send, in the order of sending. Shows itself as a table."""

    __test__ = False

    def _view(self) -> TableView:
        columns = table_columns("step", "channel", "outcome", "why", "title")
        rows = []
        for message in self:
            channel = _CHANNELS.get(message.channel, message.channel)
            rows.append((message.node_id, channel, message.outcome, message.why(), message.title or ""))
        note = "Marked as tests and not counted. No contact received them." if rows else ""
        return TableView(columns, rows, "Test messages", "No message is sent for this event.", note)


def send_test(
    connection: Connection,
    automation_id: str,
    draft: Draft,
    event: Mapping[str, Any],
    to: Mapping[str, str],
    node: str | None,
) -> TestSent:
    """Send the messages of a draft for `event` to the addresses `to`, or only the message of one node.

    Raises InvalidArgumentError without an address, and InvalidRequestError if the event does not start the automation.
    """
    # Re-entry, caps and the holdout do not apply: a test shows what a message looks like, not whether it would be sent.
    if not to:
        raise InvalidArgumentError('add an address: email="me@example.com", wallet_address="0x…" or url="https://…"')
    trigger, _ = draft.language()
    receivers = {"walletAddress" if name == "wallet_address" else name: address for name, address in to.items()}
    body = {"event": complete_event(event, trigger, None), "to": receivers}
    answer = connection.post(
        f"/automations/{automation_id}/test", body | ({"nodeId": node} if node is not None else {})
    )
    return TestSent(msgspec.convert(answer["messages"], tuple[TestMessage, ...]))


_CHANNELS = {"inapp": "in-app", "email": "email", "webhook": "webhook"}
_REASON_TEXTS = {**DELIVERY_ERRORS} | {
    # Only test sends have these reasons.
    "no_address": "you gave no address for it",
    "too_many": "a test sends at most 20 messages: pass node=… to test this step alone",
    "opted_out": "the owner of this address has unsubscribed",
}
