"""Tests of automations: the engine's own interpreter, a contact of your making, and a clock that moves when you say so.

No server, no network, no plugin: plain functions, for pytest or anything else.

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
from typing import Any, Literal, TypeAlias

from workbench.automation import Automation
from workbench.display import words
from workbench.draft import from_json
from workbench.git.files import read_file
from workbench.language.check import errors
from workbench.language.run import Message, State, channel_of
from workbench.simulate import Simulation, SimulationArguments, simulated

Channel: TypeAlias = Literal["inapp", "email", "webhook"]

NOON: datetime = datetime(2026, 1, 7, 12, tzinfo=UTC)
"""When events come unless a test says otherwise: a Wednesday at noon, UTC."""

DEFAULT_CONTACT: Mapping[str, Any] = {
    "externalId": "somebody",
    "email": "somebody@example.com",
    "walletAddress": "0x00000000000000000000000000000000000000aa",
}
"""Whom they are about unless a test says otherwise: a contact whom every channel reaches."""


def load(source: str | Path | Mapping[str, Any]) -> Automation:
    """Return the automation in a file that `workbench automations pull` wrote, or in a contract payload.

    Raises InvalidAutomationError when it is none, and FileNotFoundError.
    """
    if isinstance(source, Mapping):
        return Automation.from_json(source)
    return Automation(read_file(Path(source)).draft())


def problems(automation: Automation) -> list[str]:
    """Return what stands against publishing; a test may ask that it is nothing."""
    return [str(each) for each in errors(Automation(from_json(automation.to_json())).check())]


def simulate(
    automation: Automation,
    event: str | Mapping[str, Any],
    payload: Mapping[str, Any] | None = None,
    *,
    contact: Mapping[str, Any] = DEFAULT_CONTACT,
    now: datetime = NOON,
    events: Sequence[Mapping[str, Any]] = (),
) -> "TestRun":
    """Return what happens when a contact sends an event.

    `event` is its name, or the event as it would be posted. `contact`: `walletAddress, email, externalId, attributes, tags, segments`.
    `events` come later: `[{"event": "purchase", "after": "2h"}]`. Raises InvalidAutomationError for an event that the service would refuse.
    """
    draft = from_json(automation.to_json())
    return TestRun(simulated(draft, SimulationArguments(_event(event, payload), contact, now, events), None))


class SentMessages(Sequence[Message]):
    """Messages. True when there are some; says what was sent instead when an assertion fails."""

    def __init__(self, found: Sequence[Message], asked: str, sent: Sequence[Message]) -> None:
        self._found, self._asked, self._sent = tuple(found), asked, tuple(sent)

    def __getitem__(self, index: Any) -> Any:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        if self._found:
            return f"{words.quantity(len(self), 'message')}{self._asked}: {_told(self._found)}"
        return f"no message{self._asked}; sent: {_told(self._sent) or 'nothing'}"


class TestRun:
    """One entry, as far as it has come. `advance` and `send` return it as it stands later; this one stays as it is."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    @property
    def started(self) -> bool:
        """Whether the event started the automation."""
        return self.simulation.matched

    @property
    def path(self) -> list[str]:
        """The ids of the steps that were reached, in order."""
        return list(self.simulation.path)

    @property
    def messages(self) -> list[Message]:
        """What was sent, with all texts filled in."""
        return list(self.simulation.messages)

    @property
    def tags(self) -> list[str]:
        """The tags that were added."""
        return list(self.simulation.tags)

    @property
    def removed_tags(self) -> list[str]:
        """The tags that were taken off."""
        return list(self.simulation.removed_tags)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the contact that were written."""
        return dict(self.simulation.attributes)

    @property
    def state(self) -> State | None:
        """Where the entry stands; None when nothing started."""
        return self.simulation.state

    @property
    def outcome(self) -> str | None:
        """Why it ended, in one word, such as `completed`, `exit`, `goal` or `no_wallet`."""
        return self.simulation.outcome

    @property
    def waiting_at(self) -> str | None:
        """The id of the step at which it waits; None when it does not."""
        return self.simulation.waiting_at

    @property
    def now(self) -> datetime:
        """What its clock shows."""
        return self.simulation.now

    def sent(self, text: str = "", *, channel: Channel | None = None) -> SentMessages:
        """Return the messages that hold a text in their title, subject, address or body, of one channel or all."""
        found = [each for each in self.messages if text in "\n".join(words.message_parts(each)[:2])]
        found = [each for each in found if channel in (None, channel_of(each))]
        asked = f" by {channel}" if channel else ""
        return SentMessages(found, f"{asked} with “{text}”" if text else asked, self.messages)

    def advance(self, span: str | timedelta) -> "TestRun":
        """Let time pass: `"3d"`, `"1h 30m"`. The first time it begins at the event."""
        return TestRun(self.simulation.advance(span))

    def send(self, event: str | Mapping[str, Any], payload: Mapping[str, Any] | None = None) -> "TestRun":
        """Let the contact send another event, a second later."""
        return TestRun(self.simulation.send(_event(event, payload)))

    def why(self) -> str:
        """Return why it went as it did: each filter and condition, with what it found."""
        return self.simulation.why()

    def __repr__(self) -> str:
        return repr(self.simulation)


def _event(event: str | Mapping[str, Any], payload: Mapping[str, Any] | None) -> dict[str, Any]:
    written: dict[str, Any] = {"event": event} if isinstance(event, str) else dict(event)
    return written | ({"payload": payload} if payload is not None else {})


def _told(messages: Sequence[Message]) -> str:
    return ", ".join(f"{channel_of(each)} {words.message_line(each)}" for each in messages)
