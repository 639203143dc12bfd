"""Test sends: the messages of an automation, sent to yourself through the real channels."""

from collections.abc import Mapping
from typing import Any

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableSequence, TableView, table_columns
from workbench.display.words import CAUSE_WORDS, WORDS, outcome
from workbench.draft import Draft
from workbench.errors import InvalidArgumentError
from workbench.language.channel import CHANNELS
from workbench.language.decision import DELIVERY_ERRORS
from workbench.language.responses import TestMessageView
from workbench.simulate import checked_locale, complete_event

RECEIVERS = {channel.receiver for channel in CHANNELS.values()}


class TestMessage(TestMessageView, frozen=True, rename="camel"):
    """The result of one message.

    `outcome`: sent, failed, skipped or unknown (it may have arrived). `reason`: the cause, such as `no_address`;
    None if it was sent.
    """

    __test__ = False  # pytest would collect the class because of its name

    def why(self) -> str:
        """Return why it was not sent, or why its outcome is unknown; empty if it was sent."""
        if self.reason is None:
            return ""
        texts = {**CAUSE_WORDS, **DELIVERY_ERRORS, **WORDS["test_sends"]}
        text = texts.get(self.reason) or outcome(self.reason)
        return f"{text} ({self.detail})" if self.detail else text


class TestSent(TableSequence[TestMessage]):
    """The results of a test send, in the order of sending, displayed as a table."""

    __test__ = False

    def _view(self) -> TableView:
        columns = table_columns("step", "channel", "outcome", "why", "title")
        rows = []
        for message in self:
            channel = CHANNELS.get(message.channel)
            noun = message.channel if channel is None else channel.noun.removesuffix(" message")
            rows.append((message.node_id, noun, message.outcome, message.why(), message.title or ""))
        note = "Marked as tests and not counted. No contact received them." if rows else ""
        return TableView(columns, rows, "Test messages", "No message is sent for this event.", note)


def send_test(
    connection: Connection,
    automation_id: str | None,
    draft: Draft,
    event: Mapping[str, Any],
    to: Mapping[str, str],
    node: str | None,
    locale: str | None,
) -> TestSent:
    """Send the messages of a draft for `event` to the addresses `to`, or only the message of one node.

    Raises InvalidArgumentError without an address, and InvalidRequestError if the event does not start the automation.
    """
    # Re-entry, caps and the holdout do not apply: a test shows what a message looks like, not whether it would be sent.
    if unknown := sorted(to.keys() - RECEIVERS):
        raise InvalidArgumentError(f"{unknown[0]} is not a kind of address; use one of {', '.join(sorted(RECEIVERS))}")
    if not to:
        raise InvalidArgumentError(
            'add an address: to={"email": "me@example.com"}, {"walletAddress": "0x…"} or {"url": "https://…"}'
        )
    trigger, _ = draft.language()
    payload = draft.payload()
    body = {"triggerSpec": payload["triggerSpec"], "graph": payload["graph"], "to": dict(to)}
    options = {"automationId": automation_id, "nodeId": node, "event": complete_event(event, trigger, None)}
    if locale is not None:
        options["locale"] = checked_locale(locale)
    answer = connection.post("/test", body | {name: value for name, value in options.items() if value is not None})
    return TestSent(msgspec.convert(answer["messages"], tuple[TestMessage, ...]))
