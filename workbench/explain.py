"""Why an automation did or did not start on the events of a contact: in sentences, filter by filter, with near misses."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from workbench.connection import Connection
from workbench.display import words
from workbench.display.html import TableColumn, html, moment, plain
from workbench.errors import InvalidArgumentError, NotFoundError
from workbench.language.filter import Verdict

if TYPE_CHECKING:
    import polars as pl

EventToExplain: TypeAlias = str | Mapping[str, Any] | None
"""The id of an event, an event that has not happened, or None for the newest ones."""


@runtime_checkable
class Named(Protocol):
    """An automation, of which only the name is needed. A protocol, since `automation` imports this module."""

    @property
    def name(self) -> str: ...


class ExplainedEntry(msgspec.Struct, frozen=True):
    """The entry that an event started."""

    id: str
    state: str
    outcome: str | None


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why one event started the automation, or did not. `verdicts`: every filter of the trigger, with the actual value."""

    event_id: str | None
    event: str
    at: datetime
    matched: bool
    reasons: tuple[str, ...]
    cause: str | None
    wants: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    version: int | None
    entry: ExplainedEntry | None

    @property
    def event_fits(self) -> bool:
        """Whether the event has the right name, so that the filters are worth showing."""
        return "other_event" not in self.reasons and bool(self.verdicts)

    def sentence(self) -> str:
        """Return the reasons as a sentence."""
        # With the wrong event, filters that failed as well say nothing new.
        reasons = [reason for reason in self.reasons if reason != "filters" or "other_event" not in self.reasons]
        text = "; ".join(map(self._reason_text, reasons))
        if text:
            return f"{text[0].upper()}{text[1:]}."
        if self.entry is None:
            return "It would start."
        return f"It started. {words.ending(self.entry.state, self.entry.outcome, None)}"

    def _reason_text(self, reason: str) -> str:
        match reason:
            case "other_event":
                return f"it starts on {words.join_or(self.wants)}, not on {self.event}"
            case "filters":
                failed = [verdict for verdict in self.verdicts if not verdict.passed]
                return words.join_and(
                    [
                        f"it requires that {words.condition(verdict)}, but {words.actual_value(verdict)}"
                        for verdict in failed
                    ]
                )
            case "reentry":
                cause = words.CAUSE_WORDS.get(self.cause or "", "it does not enter again")
                return f"the contact entered before: {cause}"
            case _:
                return _REASONS[reason]

    def row(self) -> tuple[str, str, str, str]:
        """Return the cells of a table row."""
        mark = ("○" if self.reasons else "✓") if self.matched else "✗"
        return moment(self.at), self.event, mark, self.sentence()


_REASONS = {
    "not_there_yet": "the automation did not exist yet",
    "archived": "the automation was archived",
    "inactive": "the automation was switched off or paused",
    "held_out": "the contact is in the holdout",
    "dry_run": "it was a dry run, which starts nothing",
    "unpublished": "nothing was published, so nothing was done",
    "loop_guard": "the automation starts itself over and over",
    "dropped": "a reorganization of the chain dropped the log",
    "before_live": "its block is older than the activation of the automation",
    "no_entry": "its trigger fits, but nothing was started: imported history starts nothing, nor does a log without its confirmations",
}


class Explanations(Sequence[Explanation]):
    """The explanations for events of a contact, newest first."""

    def __init__(self, automation: str, active: bool, explanations: Sequence[Explanation]) -> None:
        self._automation, self._active = automation, active
        self._explanations = tuple(explanations)

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per event."""
        import polars as pl

        rows = [
            (
                explanation.at,
                explanation.event,
                explanation.matched,
                list(explanation.reasons),
                explanation.sentence(),
                explanation.event_id,
                explanation.entry and explanation.entry.id,
            )
            for explanation in self
        ]
        schema: dict[str, Any] = {
            "at": pl.Datetime("us", "UTC"),
            "event": pl.String,
            "matched": pl.Boolean,
            "reasons": pl.List(pl.String),
            "sentence": pl.String,
            "event_id": pl.String,
            "entry_id": pl.String,
        }
        return pl.DataFrame(rows, schema=schema, orient="row")

    def headline(self) -> str:
        """Return how many of the events started it."""
        started = sum(explanation.matched and not explanation.reasons for explanation in self)
        state = "" if self._active else " It is switched off now."
        return f"{started} of {words.quantity(len(self), 'event')} started “{self._automation}”.{state}"

    def __getitem__(self, index: Any) -> Any:
        return self._explanations[index]

    def __len__(self) -> int:
        return len(self._explanations)

    def __repr__(self) -> str:
        rows = [explanation.row() for explanation in self]
        return f"{self.headline()}\n{plain(_COLUMNS, rows, 'This contact has no events yet.')}"

    def _repr_html_(self) -> str:
        detailed = [explanation for explanation in self if explanation.event_fits][:_MAX_DETAILED]
        whys = [(f"{explanation.event}, {moment(explanation.at)}", explanation.verdicts) for explanation in detailed]
        rows = [explanation.row() for explanation in self]
        return html("explained.html.j2", title=self.headline(), columns=_COLUMNS, rows=rows, whys=whys)


_MAX_DETAILED = 5
_COLUMNS = (TableColumn("at (UTC)"), TableColumn("event"), TableColumn(""), TableColumn("why"))


def explain(
    connection: Connection, contact_id: str, automation: object, event: EventToExplain, limit: int
) -> Explanations:
    """Ask the server, which evaluates with the engine's own rules."""
    request: dict[str, Any] = {"automationId": _automation_id(connection, automation), "limit": limit}
    match event:
        case str():
            request["eventId"] = event
        case Mapping():
            request["event"] = event
        case None:
            pass
        case _:
            raise InvalidArgumentError('event must be an id, or an event like {"event": "deposit", "payload": {…}}')
    body = connection.post(f"/contacts/{contact_id}/explain", request)
    explanations = msgspec.convert(body["explanations"], tuple[Explanation, ...])
    return Explanations(body["automation"], body["active"], explanations)


def _automation_id(connection: Connection, automation: object) -> str:
    name = automation.name if isinstance(automation, Named) else automation
    if not isinstance(name, str):
        raise InvalidArgumentError('name an automation: .explain("Thanks for the deposit")')
    for archived in ("false", "true"):
        if rows := connection.get("/automations", name=name, archived=archived)["automations"]:
            return str(rows[0]["id"])
    raise NotFoundError(f"no automation {name!r} is saved: .save() or .publish() it first")
