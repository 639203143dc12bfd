"""Why an automation did or did not take the events of a contact, in sentences, filter by filter, with near misses."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from api.language.filter import Verdict
from workbench.connection import Connection
from workbench.display import words
from workbench.display.page import html, moment
from workbench.display.table import Column, plain
from workbench.errors import DraftError, NotThereError

if TYPE_CHECKING:
    import polars as pl

_LOOKED_INTO = 5
_COLUMNS = (Column("at (UTC)"), Column("event"), Column(""), Column("why"))


@runtime_checkable
class Named(Protocol):
    """An automation, of which only the name is needed."""

    @property
    def name(self) -> str:
        """The name by which it is saved."""
        ...


Asked: TypeAlias = str | Mapping[str, Any] | None
"""The id of an event, an event that has not happened, or the newest ones."""


class Entry(msgspec.Struct, frozen=True):
    """The entry that an event started."""

    id: str
    state: str
    outcome: str | None


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why one event was taken, or not. `verdicts`: every filter of the trigger, with what it found."""

    event_id: str | None
    event: str
    at: datetime
    matched: bool
    reasons: tuple[str, ...]
    cause: str | None
    wants: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    version: int | None
    entry: Entry | None

    def sentence(self) -> str:
        """Say why."""
        told = [reason for reason in self.reasons if reason != "filters" or "other_event" not in self.reasons]
        said = "; ".join(_REASONS.get(reason) or getattr(self, f"_{reason}")() for reason in told)
        if said:
            return f"{said[0].upper()}{said[1:]}."
        if self.entry is None:
            return "It would start."
        return f"It started. {words.ending(self.entry.state, self.entry.outcome, None)}"

    def _other_event(self) -> str:
        return f"it starts on {words.either(self.wants)}, not on {self.event}"

    def _filters(self) -> str:
        failed = [each for each in self.verdicts if not each.passed]
        return words.both([f"it asks whether {words.condition(each)}, and {words.found(each)}" for each in failed])

    def _reentry(self) -> str:
        return f"the contact was here before: {words.CAUSE_WORDS.get(self.cause or '', 'it does not enter again')}"

    def _near(self) -> bool:
        """Whether the filters are worth a look: the event is the right one."""
        return "other_event" not in self.reasons and bool(self.verdicts)

    def row(self) -> tuple[str, str, str, str]:
        """Return the cells of a table."""
        mark = ("○" if self.reasons else "✓") if self.matched else "✗"
        return moment(self.at), self.event, mark, self.sentence()


_REASONS = {
    "not_there_yet": "the automation did not exist yet",
    "archived": "the automation was put away",
    "inactive": "the automation was switched off or paused",
    "held_out": "the contact is held out, to be compared with the others",
    "dry_run": "it was a dry run, which starts nothing",
    "unpublished": "nothing was published, so nothing was done",
    "loop_guard": "the automation starts itself over and over",
    "dropped": "the chain dropped it",
    "before_live": "its block is older than the automation was live",
    "no_entry": "its trigger fits, but nothing was started: imported history starts nothing, nor does a log without its confirmations",
}


class Explained(Sequence[Explanation]):
    """The answers for events of a contact, the newest first."""

    def __init__(self, automation: str, active: bool, explanations: Sequence[Explanation]) -> None:
        self._automation, self._active = automation, active
        self._explanations = tuple(explanations)

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per event."""
        import polars as pl

        rows = [
            (
                each.at,
                each.event,
                each.matched,
                list(each.reasons),
                each.sentence(),
                each.event_id,
                each.entry and each.entry.id,
            )
            for each in self
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
        """Say how many started it."""
        started = sum(each.matched and not each.reasons for each in self)
        state = "" if self._active else " It is switched off now."
        return f"{started} of {words.counted(len(self), 'event')} started “{self._automation}”.{state}"

    def __getitem__(self, index: Any) -> Any:
        return self._explanations[index]

    def __len__(self) -> int:
        return len(self._explanations)

    def __repr__(self) -> str:
        rows = [each.row() for each in self]
        return f"{self.headline()}\n{plain(_COLUMNS, rows, 'This contact has no events yet.')}"

    def _repr_html_(self) -> str:
        looked_into = [each for each in self if each._near()][:_LOOKED_INTO]
        whys = [(f"{each.event}, {moment(each.at)}", each.verdicts) for each in looked_into]
        rows = [each.row() for each in self]
        return html("explained.html.j2", title=self.headline(), columns=_COLUMNS, rows=rows, whys=whys)


def explained(connection: Connection, contact_id: str, automation: object, event: Asked, most: int) -> Explained:
    """Ask the server, which judges with the engine's own rules."""
    asked: dict[str, Any] = {"automationId": _id_of(connection, automation), "limit": most}
    match event:
        case str():
            asked["eventId"] = event
        case Mapping():
            asked["event"] = event
        case None:
            pass
        case _:
            raise DraftError('an event is its id, or {"event": "deposit", "payload": {…}}')
    answer = connection.post(f"/contacts/{contact_id}/explain", asked)
    return Explained(
        answer["automation"], answer["active"], msgspec.convert(answer["explanations"], tuple[Explanation, ...])
    )


def _id_of(connection: Connection, automation: object) -> str:
    name = automation.name if isinstance(automation, Named) else automation
    if not isinstance(name, str):
        raise DraftError('name an automation: .explain("Thanks for the deposit")')
    for archived in ("false", "true"):
        if rows := connection.get("/automations", name=name, archived=archived)["automations"]:
            return str(rows[0]["id"])
    raise NotThereError(f"no automation {name!r} is saved: .save() or .publish() it first")
