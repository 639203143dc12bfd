"""A test send: the messages of an automation, sent to yourself through the real channels."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableColumn, plain, table
from workbench.display.words import CAUSE_WORDS, outcome
from workbench.draft import Draft
from workbench.errors import InvalidArgumentError
from workbench.simulate import completed


class TestReceivers(TypedDict, total=False):
    """Where tests go: one address for each channel that is to be tried."""

    email: str
    wallet_address: str
    url: str


class TestMessage(msgspec.Struct, frozen=True, rename="camel"):
    """What became of one message: sent, failed, skipped, or unknown (it may have arrived). `reason`: why, in one word."""

    __test__ = False  # it is no test of pytest's

    node_id: str
    channel: str
    outcome: str
    reason: str | None = None
    detail: str = ""
    id: str | None = None
    title: str | None = None

    def why(self) -> str:
        """Say why it was not sent, or what is not known of it."""
        if self.reason is None:
            return ""
        told = _REASONS.get(self.reason) or CAUSE_WORDS.get(self.reason) or outcome(self.reason)
        return f"{told} ({self.detail})" if self.detail else told


class TestSent(Sequence[TestMessage]):
    """What became of the messages of a test, in the order of sending; shows itself."""

    __test__ = False

    def __init__(self, messages: Sequence[TestMessage]) -> None:
        self._messages = tuple(messages)

    def __getitem__(self, index: Any) -> Any:
        return self._messages[index]

    def __len__(self) -> int:
        return len(self._messages)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (each.node_id, _CHANNELS.get(each.channel, each.channel), each.outcome, each.why(), each.title or "")
            for each in self
        ]

    def __repr__(self) -> str:
        return plain(_COLUMNS, self._rows(), _NONE)

    def _repr_html_(self) -> str:
        return table(_COLUMNS, self._rows(), title="Test messages", note=_NOTE if self else "", empty=_NONE)


def send_test(
    connection: Connection,
    automation_id: str,
    draft: Draft,
    event: Mapping[str, Any],
    to: Mapping[str, str],
    node: str | None,
) -> TestSent:
    """Send a test and return what became of it; raises InvalidRequestError when the event does not start the automation."""
    if not to:
        raise InvalidArgumentError('where to? Add email="me@example.com", wallet_address="0x…" or url="https://…"')
    trigger, _ = draft.language()
    names = {"email": "email", "wallet_address": "walletAddress", "url": "url"}
    given = {names.get(name, name): value for name, value in to.items()}
    body = {"event": completed(event, trigger, None), "to": given} | ({"nodeId": node} if node is not None else {})
    answer = connection.post(f"/automations/{automation_id}/test", body)
    return TestSent(msgspec.convert(answer["messages"], list[TestMessage]))


_COLUMNS = tuple(map(TableColumn, ("step", "channel", "outcome", "why", "title")))
_CHANNELS = {"inapp": "in-app", "email": "email", "webhook": "webhook"}
_REASONS = {
    "no_address": "you gave no address for it",
    "too_many": "a test sends twenty messages at most: name the step to try it alone",
    "no_answer": "it may have arrived: no answer came",
    "unreachable": "no connection came about",
    "tls_failed": "the certificate is not valid",
    "refused": "the receiver said no",
    "gone": "the endpoint is no more",
    "busy": "too many deliveries wait for this endpoint",
    "not_signed_in": "the mail server does not take our name and password",
    "invalid_address": "nobody can be reached under this address",
    "opted_out": "who has this address wants no messages",
}
_NONE = "With this event, no message is sent."
_NOTE = "Marked as tests; no contact got them, and nothing counts them."
