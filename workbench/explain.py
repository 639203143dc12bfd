"""Explanations: why an automation did or did not start on a contact's events, filter by filter, with near misses."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from workbench.connection import Connection
from workbench.display import words
from workbench.display.html import ItemSequence, html, moment, plain, printable_text, table_columns
from workbench.errors import InvalidArgumentError, NotFoundError
from workbench.event_json import EventValues, describe_event
from workbench.language.explain import ExplanationView

if TYPE_CHECKING:
    import polars as pl

EventToExplain: TypeAlias = str | Mapping[str, Any] | None
"""The id of an event, an event that has not happened (its name or its JSON), or None for the newest ones."""


class Explanation(ExplanationView, frozen=True, rename="camel"):
    """Why one event did or did not start the automation. `verdicts`: each trigger filter with the actual value."""

    @property
    def event_fits(self) -> bool:
        """Whether the event has the right name, so that the filters are worth showing."""
        return "other_event" not in self.reasons and bool(self.verdicts)

    def sentence(self) -> str:
        # The filters are written for another event, so their failures would not explain anything.
        reasons = [reason for reason in self.reasons if reason != "filters" or "other_event" not in self.reasons]
        texts = []
        for reason in reasons:
            match reason:
                case "other_event":
                    texts.append(f"it starts on {words.join_or(self.wants)}, not on {self.event}")
                case "filters":
                    failed = [
                        f"it requires that {words.condition(verdict)}, but {words.actual_value(verdict)}"
                        for verdict in self.verdicts
                        if not verdict.passed
                    ]
                    texts.append(words.join_and(failed))
                case "reentry":
                    cause = words.CAUSE_WORDS.get(self.cause or "", "it does not enter again")
                    texts.append(f"the contact entered before: {cause}")
                case _:
                    texts.append(words.WORDS["not_started"][reason])
        if text := "; ".join(texts):
            return f"{text[0].upper()}{text[1:]}."
        if self.entry is None:
            return "It would start."
        moved = "" if self.entry.moved_to is None else f" It was moved to version {self.entry.moved_to}."
        return f"It started. {words.ending(self.entry.state, self.entry.outcome, None)}{moved}"

    def row(self) -> tuple[str, str, str, str]:
        """Return the cells of a table row; the mark is ✓ for started, ○ for matched only, ✗ for not matched."""
        mark = ("○" if self.reasons else "✓") if self.matched else "✗"
        return moment(self.at), self.event, mark, self.sentence()


class Explanations(ItemSequence[Explanation]):
    """The explanations for events of a contact, newest first."""

    def __init__(self, automation: str, active: bool, explanations: Sequence[Explanation]) -> None:
        super().__init__(tuple(explanations))
        self._automation, self._active = automation, active

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame, one row per event: at (UTC), event, matched, reasons, sentence, event_id, entry_id."""
        from workbench.frames import frame_of

        rows = []
        for explanation in self:
            event, entry_id = explanation.event, explanation.entry and explanation.entry.id
            texts = (explanation.sentence(), explanation.event_id, entry_id)
            rows.append((explanation.at, event, explanation.matched, explanation.reasons, *texts))
        ids = {"event_id": str, "entry_id": str}
        return frame_of(rows, at=datetime, event=str, matched=bool, reasons=list, sentence=str, **ids)

    def headline(self) -> str:
        """Return a sentence with the number of events that started the automation."""
        started = sum(explanation.matched and not explanation.reasons for explanation in self)
        state = "" if self._active else " It is switched off now."
        return f"{started} of {words.quantity(len(self), 'event')} started “{self._automation}”.{state}"

    @printable_text
    def __repr__(self) -> str:
        rows = [explanation.row() for explanation in self]
        return f"{self.headline()}\n{plain(_COLUMNS, rows, 'This contact has no events yet.')}"

    def _repr_html_(self) -> str:
        detailed = [explanation for explanation in self if explanation.event_fits][:_MAX_DETAILED]
        verdicts = [
            (f"{explanation.event}, {moment(explanation.at)}", explanation.verdicts) for explanation in detailed
        ]
        rows = [explanation.row() for explanation in self]
        return html("explained.html.j2", title=self.headline(), columns=_COLUMNS, rows=rows, verdicts=verdicts)


_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MAX_DETAILED = 5
_COLUMNS = table_columns("at (UTC)", "event", "", "reason")


def explain(
    connection: Connection, contact_id: str, automation: object, event: EventToExplain, fields: EventValues, limit: int
) -> Explanations:
    """Return the server's explanations for the newest `limit` events of a contact, or for one event."""
    name = getattr(automation, "name", automation)
    if not isinstance(name, str):
        raise InvalidArgumentError('Pass an automation or its name: .explain("Thanks for the deposit")')
    # An archived automation is explained too, unless another one has taken its name.
    for archived in ("false", "true"):
        if rows := connection.get("/automations", name=name, archived=archived)["automations"]:
            break
    else:
        raise NotFoundError(f"Automation not found on the server: {name!r}. Save it first: .save() or .publish()")
    request: dict[str, Any] = {"automationId": str(rows[0]["id"]), "limit": limit}
    if isinstance(event, str) and _ID.fullmatch(event):
        if fields:
            raise InvalidArgumentError(f"{next(iter(fields))} cannot be changed: {event} is the id of a stored event")
        request["eventId"] = event
    elif event is not None or fields:
        request["event"] = describe_event(event, fields)
    body = connection.post(f"/contacts/{contact_id}/explain", request)
    explanations = msgspec.convert(body["explanations"], tuple[Explanation, ...])
    return Explanations(body["automation"], body["active"], explanations)
