"""The payload of one event as a page, as text, and as the data of the catalog widget.

The server samples payloads and counts their paths; this module only puts the counts into words.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from workbench.display.html import html, moment, plain, printable_text, table_columns
from workbench.display.words import quantity, short, value
from workbench.language.codec import encode
from workbench.language.payload_schema import FrequentValue, PropertyPath, SchemaChange
from workbench.language.responses import EventDescription, SchemaDrift, StoredPayload

_COLUMNS = table_columns("path", "type", "missing", "null", "values", numbers=("missing", "null"))
_SHOWN_VALUES = 4
_TYPES = {"string": "text", "boolean": "yes/no", "array": "list"}
_SAMPLE_CHARACTERS = 4_000  # a cell with a payload of 1 MB would freeze the notebook
_VALUE_CHARACTERS = 80
_CHANGE_WORDS = {"new": "is new", "gone": "is gone", "more": "is more frequent", "less": "is less frequent"}
_EVENTS_SQL = """
select created_at, contact_id, payload
from app_events
where event = :event and created_at > now() - :days * interval '1 day'
order by created_at desc
limit 100
"""
_VALUES_SQL = """
select payload #>> :path as value, count(*) as events, count(distinct contact_id) as contacts
from app_events
where event = :event and created_at > now() - :days * interval '1 day'
group by 1
order by 2 desc
limit 50
"""


class PayloadChange(SchemaChange, frozen=True):
    """A path, or one type of its values, that is `new`, `gone`, or `more` or `less` frequent recently than before."""

    def sentence(self) -> str:
        """Return the change in words, with the counts of both periods."""
        subject = self.path if self.type is None else f"{self.path} as {_TYPES.get(self.type, self.type)}"
        return f"{subject} {_CHANGE_WORDS[self.what]}: in {self.recent} recently, in {self.before} before"


class Drift(SchemaDrift, frozen=True):
    """Changes since a time, and how many payloads from before and after it were compared."""

    changes: tuple[PayloadChange, ...]


class Shape(EventDescription, frozen=True, rename="camel"):
    """The server's response about one event name."""

    drift: Drift

    def _title(self) -> str:
        return f"{self.event}: {quantity(self.count, 'event')}"

    def _repr_html_(self) -> str:
        return html(
            "event.html.j2",
            title=self._title(),
            note=self._note(),
            per_day=self.per_day,
            drift=[change.sentence() for change in self.drift.changes],
            columns=_COLUMNS,
            rows=[_row(path) for path in self.paths],
            samples=[(sample.created_at, _sample_text(sample)) for sample in self.samples],
        )

    @printable_text
    def __repr__(self) -> str:
        changes = [f"Changed recently: {change.sentence()}" for change in self.drift.changes]
        rows = [_row(path) for path in self.paths]
        return "\n".join([self._title(), *changes, plain(_COLUMNS, rows, "The payload is empty.")])

    def page(self) -> dict[str, Any]:
        """Return the data of the catalog widget: texts and counts."""
        drifting = {change.path for change in self.drift.changes}
        paths = []
        for path in self.paths:
            name, types, missing, nulls, _ = _row(path)
            top = [(_value_text(share.value), f"{share.count:,}") for share in _frequent(path)]
            # A key may contain dots, so the samples decide how a path is split into keys.
            keys = next(
                (keys for sample in self.samples if (keys := _keys(path.path, sample.payload))), path.path.split(".")
            )
            paths.append(
                {
                    "path": name,
                    "types": types,
                    "missing": missing,
                    "nulls": nulls,
                    "top": top,
                    "distinct": path.distinct,
                    "examples": [] if top else [_value_text(sample) for sample in path.samples[:_SHOWN_VALUES]],
                    "drifting": path.path in drifting,
                    "code": code(self.event, self.window_days, keys),
                }
            )
        return {
            "event": self.event,
            "title": self._title(),
            "note": self._note(),
            "perDay": self.per_day,
            "days": self.days,
            "drift": [change.sentence() for change in self.drift.changes],
            "code": code(self.event, self.window_days),
            "paths": paths,
            "samples": [{"at": moment(sample.created_at), "text": _sample_text(sample)} for sample in self.samples],
        }

    def _note(self) -> str:
        parts = []
        if self.first_seen:
            parts.append(f"First seen {moment(self.first_seen)}, last seen {moment(self.last_seen)} (UTC)")
        if 0 < self.sampled < self.count:
            parts.append(f"paths of the newest {self.sampled:,}")
        return f"{'; '.join(parts)}." if parts else ""


def code(event: str, days: int, keys: Sequence[str] | None = None) -> str:
    """Return Python code that queries such events, or the values below some keys.

    Names of events and keys come from outside, so they are passed as parameters and quoted with `repr`, never put
    into the SQL.
    """
    if keys is None:
        return f'wb.sql("""{_EVENTS_SQL}""", event={event!r}, days={days:d})'
    return f'wb.sql("""{_VALUES_SQL}""", event={event!r}, path={[*keys]!r}, days={days:d})'


def python_number(sample: Any) -> Any:
    """Return a Decimal as a float if that is exact, and any other value as it is."""
    return float(sample) if isinstance(sample, Decimal) and Decimal(str(float(sample))) == sample else sample


def _keys(path: str, payload: Any) -> list[str]:
    """Return the keys by which a path leads to a value in a payload; empty if it leads to none."""
    if not isinstance(payload, dict):
        return []
    if path in payload:
        return [path]
    heads = (key for key in payload if path.startswith(f"{key}."))
    return next(([key, *rest] for key in heads if (rest := _keys(path[len(key) + 1 :], payload[key]))), [])


def _row(path: PropertyPath) -> tuple[str, str, str, str, str]:
    total = sum(path.types.values()) or 1
    ranked = sorted(path.types.items(), key=lambda item: -item[1])
    types = [(_TYPES.get(kind, kind), count) for kind, count in ranked]
    type_text = ", ".join(kind if len(types) == 1 else f"{kind} {_percent(count / total)}" for kind, count in types)
    if top := _frequent(path):
        values = ", ".join(f"{_value_text(share.value)} ({share.count:,})" for share in top[:_SHOWN_VALUES])
    else:
        values = ", ".join(map(_value_text, path.samples[:_SHOWN_VALUES]))
    return path.path, type_text, _percent(path.missing_rate), _percent(path.null_rate), values


def _frequent(path: PropertyPath) -> Sequence[FrequentValue]:
    """Return the most frequent values; none if most values are unique, because a few repetitions mean nothing then."""
    return path.top_values if 2 * path.distinct <= sum(path.types.values()) else ()


def _value_text(content: Any) -> str:
    text = value(short(content) if isinstance(content, str) else content)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[: _VALUE_CHARACTERS - 1]}…"


def _percent(share: float) -> str:
    """Return a share in percent; only exact shares show as 0% and 100%."""
    if 0 < share < 0.01:
        return "<1%"
    return ">99%" if 0.99 < share < 1 else f"{share:.0%}"


def _sample_text(sample: StoredPayload) -> str:
    text = msgspec.json.format(encode(sample.payload), indent=2).decode()
    return text if len(text) <= _SAMPLE_CHARACTERS else f"{text[:_SAMPLE_CHARACTERS]}…"
