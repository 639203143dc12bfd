"""Tests of automations: the engine's own interpreter with a contact that you describe and a clock that you advance.

Needs no server, no network and no plugin: these are plain functions, for pytest or any other runner.

```
from workbench.testing import load, simulate

def test_large_deposits_are_thanked():
    run = simulate(load("automations/thanks.json"), "deposit", {"amountUsd": 500})
    assert run.sent("500 USD")
    assert run.path == ["trigger", "send_inapp"]
```
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from workbench.automation import Automation
from workbench.display import words
from workbench.display.html import ItemSequence, printable_text
from workbench.draft import from_json
from workbench.errors import InvalidArgumentError
from workbench.git.files import read_file
from workbench.language.channel import ChannelName, Message, channel_of
from workbench.language.check import errors
from workbench.language.local_time import NOT_A_ZONE, find_zone
from workbench.simulate import Simulation, SimulationArguments, simulate_draft

NOON: datetime = datetime(2026, 1, 7, 12, tzinfo=UTC)
"""The default time of the event: Wednesday, 7 January 2026, noon UTC."""

DEFAULT_CONTACT: Mapping[str, Any] = {
    "externalId": "somebody",
    "email": "somebody@example.com",
    "walletAddress": "0x00000000000000000000000000000000000000aa",
}
"""The default contact, with an address for every channel."""


def load(source: str | Path | Mapping[str, Any]) -> Automation:
    """Return the automation in a file that `workbench automations pull` wrote, or in a contract payload.

    Raises InvalidAutomationError if the content is not an automation, FileNotFoundError if there is no such file.
    """
    if isinstance(source, Mapping):
        return Automation.from_json(source)
    return Automation(read_file(Path(source)).draft())


def problems(automation: Automation) -> list[str]:
    """Return the errors that prevent publishing: `assert problems(automation) == []`."""
    # A copy without a server, so that a test never depends on what the server has stored.
    return [str(error) for error in errors(Automation(from_json(automation.to_json())).check())]


def simulate(
    automation: Automation,
    event: str | Mapping[str, Any] | None = None,
    payload: Mapping[str, Any] | None = None,
    *,
    contact: Mapping[str, Any] = DEFAULT_CONTACT,
    now: datetime = NOON,
    events: Sequence[Mapping[str, Any]] = (),
    locale: str | None = None,
    timezone: str | None = None,
) -> "TestRun":
    """Return the run of one entry, started by an event.

    `event` is its name, or the event as it would be posted; None if the automation starts from a segment. `contact` may
    have `walletAddress`, `email`, `externalId`, `attributes`, `tags`, `segments`, `optedOut` (channels) and `declined`
    (topics). `events` are later events of that contact: `[{"event": "purchase", "after": "2h"}]`. `locale`: that of the
    texts, in place of the contact's. `timezone`: that of the organization, for contacts and automations without one;
    UTC by default. Raises InvalidArgumentError for an event, contact or time zone that is not valid.
    """
    draft = from_json(automation.to_json())  # without a connection, so that the interpreter runs in this process
    if timezone is not None:
        if find_zone(timezone) is None:
            raise InvalidArgumentError(f"timezone: {timezone!r} {NOT_A_ZONE}")
        draft = msgspec.structs.replace(draft, extra_keys=draft.extra_keys | {"timezone": timezone})
    described = _event({} if event is None else event, payload)
    return TestRun(simulate_draft(draft, SimulationArguments(described, contact, now, events, locale=locale), None))


class SentMessages(ItemSequence[Message]):
    """The messages that `.sent()` found. True if there are any; a failed assertion shows what was sent instead."""

    def __init__(self, matches: Sequence[Message], question: str, sent: Sequence[Message]) -> None:
        super().__init__(tuple(matches))
        self._question, self._sent = question, tuple(sent)

    @printable_text
    def __repr__(self) -> str:
        if self:
            return f"{words.quantity(len(self), 'message')}{self._question}: {_lines(self)}"
        return f"no message{self._question}; sent: {_lines(self._sent) or 'nothing'}"


class TestRun:
    """One entry. `advance` and `send` return it as it is later; this value does not change.

    `started`: whether the event started the automation. `path`: the ids of the steps that were reached, in order, each
    once. `messages`: those that were sent, with all templates filled in. `tags`, `removed_tags`, `attributes`: what was
    added to the contact, removed and set. `state`: of the entry; None if the event did not start one. `outcome`: why it
    ended, in one word, such as `completed`, `exit`, `goal` or `no_wallet`. `waiting_at`: the id of the step at which it
    waits, or None. `now`: the time on the virtual clock.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.started = simulation.matched
        self.path, self.messages = list(simulation.path), list(simulation.messages)
        self.tags, self.removed_tags = list(simulation.tags), list(simulation.removed_tags)
        self.attributes = dict(simulation.attributes)
        self.state, self.outcome = simulation.state, simulation.outcome
        self.waiting_at, self.now = simulation.waiting_at, simulation.now

    def sent(self, text: str = "", *, channel: ChannelName | None = None) -> SentMessages:
        """Return the messages that contain `text` in title, subject, address or body, on one channel or on all."""
        matches = [
            message
            for message in self.messages
            if text in "\n".join(words.message_parts(message)[:2]) and channel in (None, channel_of(message).name)
        ]
        question = (f" by {channel}" if channel else "") + (f" with “{text}”" if text else "")
        return SentMessages(matches, question, self.messages)

    def advance(self, span: str | timedelta) -> "TestRun":
        """Let time pass: `"3d"`, `"1h 30m"`. The first call starts at the event."""
        return TestRun(self.simulation.advance(span))

    def send(self, event: str | Mapping[str, Any], payload: Mapping[str, Any] | None = None) -> "TestRun":
        """Let the contact send another event, one second later."""
        return TestRun(self.simulation.send(_event(event, payload)))

    def why(self) -> str:
        """Return one line per filter of the trigger, the conditions and the waits, with the actual value."""
        return self.simulation.why()

    @printable_text
    def __repr__(self) -> str:
        return repr(self.simulation)


def _event(event: str | Mapping[str, Any], payload: Mapping[str, Any] | None) -> dict[str, Any]:
    described: dict[str, Any] = {"event": event} if isinstance(event, str) else dict(event)
    return described | ({"payload": payload} if payload is not None else {})


def _lines(messages: Sequence[Message]) -> str:
    return ", ".join(f"{channel_of(message).name} {words.message_line(message)}" for message in messages)
