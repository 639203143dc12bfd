"""Schedules of pages: the right to create one, the limits of its content, and its JSON.

A schedule sends data out of the organization, to addresses that its author chooses, so it needs a scope of its own
(`pages:send`) next to `sql:read`, and every schedule is in the audit log. Its queries run as those of any analyst, and
the page shows masked addresses, whatever the scopes of its author: an inbox is no place for the addresses of contacts
(docs/decisions/0090-mailed-pages.md).
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from api.automations.automations import Author, Refusal, invalid, record, unknown
from api.channels.mime import is_header_value
from api.clock import uuid7
from api.crypto import EmailDisplay, OrgKeys
from api.query.gateway import Sql
from api.segments.definition import address_problems, open_params, read_params, seal_params
from api.store import page_schedules as store
from api.store.access import find_timezone
from api.store.database import Database
from api.store.page_schedules import PageScheduleRow
from workbench.language.body import Body, Name
from workbench.language.codec import Json, decode, encode
from workbench.language.cron import Cron, read_cron
from workbench.language.event import normalize_email
from workbench.language.local_time import NOT_A_ZONE, find_zone, time_zone
from workbench.language.page import MAX_SECTIONS, RelativeTime
from workbench.language.problem import Problem
from workbench.language.responses import PageRunView, PageScheduleView, PageSectionView

MAX_SCHEDULES = 100  # of an organization
MAX_RECIPIENTS = 20
MAX_RELATIVE = 10  # values of a query that move with the time of the run


class RelativeValue(RelativeTime, frozen=True, kw_only=True):
    """A value of a query that moves with each run."""

    name: str


class ScheduledSection(msgspec.Struct, frozen=True):
    """A section of a page: the result of `sql` with `params`, under a title.

    `relative`: times among the parameters that are computed for each run. `report`: whether `sql` is the query of a
    built-in report, so that its columns get headings and units. `titles`: headings of this report, by column.
    """

    title: Name
    sql: Sql
    params: Json = None
    relative: Annotated[tuple[RelativeValue, ...], Meta(max_length=MAX_RELATIVE)] = ()
    report: bool = False
    titles: dict[str, str] = msgspec.field(default_factory=dict)

    def problems(self) -> Iterator[Problem]:
        yield from address_problems(self.sql)
        checked = read_params(self.params, "params")
        if isinstance(checked, tuple):
            yield from checked
        for index, value in enumerate(self.relative):
            if not isinstance(self.params, dict) or value.name not in self.params:
                yield Problem(f"relative[{index}].name", "is not a value of the query")


def _read_recipients(addresses: Any, path: str) -> Any:
    if not isinstance(addresses, list) or not 1 <= len(addresses) <= MAX_RECIPIENTS:
        return (Problem(path, f"must be an array of 1 to {MAX_RECIPIENTS} email addresses"),)
    normal = [normalize_email(address) if isinstance(address, str) else None for address in addresses]
    wrong = [index for index, address in enumerate(normal) if address is None or not address.isascii()]
    return tuple(Problem(f"{path}[{index}]", "must be an email address") for index in wrong) or [*dict.fromkeys(normal)]


def _read_zone(value: Any, path: str) -> Any:
    return value if find_zone(value) is not None else (Problem(path, NOT_A_ZONE),)


def _read_times(value: Any, path: str) -> Any:
    cron = read_cron(value, time_zone()) if isinstance(value, str) else "must be a cron expression"
    if isinstance(cron, Cron):
        return value if len(cron.minutes) == 1 else (Problem(path, "runs more often than once an hour"),)
    return (Problem(path, cron),)


_RECIPIENTS_SCHEMA = {
    "type": "array",
    "items": {"type": "string", "format": "email"},
    "minItems": 1,
    "maxItems": MAX_RECIPIENTS,
}


class PageScheduleBody(Body, frozen=True):
    """A page to make at the times of `cron` and to mail `to` people.

    `timezone`: by default that of the organization.
    """

    title: Name
    sections: Annotated[tuple[ScheduledSection, ...], Meta(min_length=1, max_length=MAX_SECTIONS)]
    cron: Annotated[str, Meta(examples=["0 8 * * mon"], extra={"read": _read_times})]
    to: Annotated[list[str], Meta(extra={"read": _read_recipients, "schema": _RECIPIENTS_SCHEMA})]
    timezone: Annotated[str, Meta(extra={"read": _read_zone})] | None = None

    def conflicts(self) -> Iterator[Problem]:
        if not is_header_value(self.title):
            yield Problem("title", "must be one line, and not an encoded word: it is the subject of the emails")
        for index, section in enumerate(self.sections):
            for problem in section.problems():
                yield Problem(f"sections[{index}].{problem.field}", problem.reason)


async def create(
    database: Database, keys: OrgKeys, author: Author, body: PageScheduleBody
) -> PageScheduleRow | Refusal:
    """Store a schedule. Its first run is the first time of `cron` from now on."""
    async with database.transaction() as tx:
        zone = body.timezone or await find_timezone(tx, author.org_id) or "UTC"
        cron = read_cron(body.cron, time_zone(zone))
        assert isinstance(cron, Cron)
        if await store.count_page_schedules(tx, author.org_id) >= MAX_SCHEDULES:
            return invalid((Problem("", f"an organization has at most {MAX_SCHEDULES} scheduled pages"),))
        sections = [msgspec.structs.replace(item, params=seal_params(item.params, keys)) for item in body.sections]
        row = PageScheduleRow(
            org_id=author.org_id,
            id=uuid7(author.now_us),
            title=body.title,
            sections=encode(sections),
            recipients=tuple(keys.seal_email(address) for address in body.to),
            cron=body.cron,
            timezone=zone,
            next_at=next(cron.times_after(author.now), None),
            created_at=author.now,
            created_by=author.key_id,
        )
        await store.insert_page_schedule(tx, row)
        detail = {"title": row.title, "cron": row.cron, "timezone": zone, "recipients": len(row.recipients)}
        await record(tx, author, "page_schedule.create", row.id, detail)
    return row


async def delete(database: Database, author: Author, schedule_id: str) -> str | Refusal:
    """Delete a schedule with its runs and return its id. Emails of a run that is being sent now may still leave."""
    async with database.transaction() as tx:
        title = await store.delete_page_schedule(tx, author.org_id, schedule_id)
        if title is None:
            return unknown("page schedule")
        await record(tx, author, "page_schedule.delete", schedule_id, {"title": title})
    return schedule_id


def read_sections(sections: bytes) -> list[ScheduledSection]:
    """Return stored sections."""
    return msgspec.convert(decode(sections), list[ScheduledSection])


def schedule_view(row: PageScheduleRow, last_run: PageRunView | None, show: EmailDisplay) -> PageScheduleView:
    sections = tuple(
        PageSectionView(item.title, item.sql, open_params(item.params, show)) for item in read_sections(row.sections)
    )
    recipients = tuple(map(show, row.recipients))
    return PageScheduleView(
        *(row.id, row.title, sections, recipients, row.cron, row.timezone, row.next_at, row.created_at, row.created_by),
        last_run,
    )
