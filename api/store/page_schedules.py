"""Schedules of pages, their runs, and the emails of a run."""

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from api.store.database import Transaction
from api.store.query import Json, RowCount, Uuid, query
from workbench.language.responses import PageRunState, PageRunView

_RETENTION = timedelta(days=90)

PageEmailState = Literal["waiting", "sent", "failed"]


class PageScheduleRow(msgspec.Struct, frozen=True):
    """A schedule as stored. The emails of `recipients` and in `sections` are sealed."""

    org_id: int
    id: Uuid
    title: str
    sections: Json
    recipients: tuple[str, ...]
    cron: str
    timezone: str
    next_at: datetime | None
    created_at: datetime
    created_by: Uuid


@query
async def insert_page_schedule(tx: Transaction, row: PageScheduleRow) -> None: ...


@query
async def count_page_schedules(tx: Transaction, org_id: int) -> int: ...


@query
async def list_page_schedules(tx: Transaction, org_id: int) -> list[PageScheduleRow]: ...


@query
async def find_page_schedule(tx: Transaction, org_id: int, schedule_id: Uuid) -> PageScheduleRow | None: ...


@query
async def delete_page_schedule(tx: Transaction, org_id: int, schedule_id: Uuid) -> str | None:
    """Delete a schedule with its runs; return its title, or None if there is none."""


@query
async def list_page_runs(tx: Transaction, org_id: int, schedule_id: Uuid, limit: int) -> list[PageRunView]: ...


@query
async def find_page(tx: Transaction, org_id: int, schedule_id: Uuid, run_id: Uuid) -> str | None: ...


# --- Runs


class DueSchedule(msgspec.Struct, frozen=True):
    """A schedule with a run to plan at `next_at`."""

    org_id: int
    id: Uuid
    cron: str
    timezone: str
    next_at: datetime


@query
async def list_due_schedules(tx: Transaction, now: datetime) -> list[DueSchedule]: ...


@query
async def plan_page_run(
    tx: Transaction,
    org_id: int,
    schedule_id: Uuid,
    planned_at: datetime,
    at: datetime,
    next_at: datetime | None,
    run_id: Uuid,
    now: datetime,
) -> bool:
    """Plan the run at `at` in place of that at `planned_at`; False if another process has done that."""


class ClaimedPageRun(msgspec.Struct, frozen=True):
    """A run with its schedule. `claim`: the number of the lease, without which nothing of the run is written.

    `tries`: claims, with this one, since one ended in order. `key_ended`: the key of the schedule makes no more pages.
    """

    org_id: int
    id: Uuid
    at: datetime
    state: PageRunState
    claim: int
    tries: int
    error: str | None
    made_at: datetime | None
    html: str | None
    email_html: str | None
    title: str
    sections: Json
    recipients: tuple[str, ...]
    created_by: Uuid
    key_ended: bool


@query
async def find_due_page_runs(tx: Transaction, now: datetime) -> list[tuple[int, str]]:
    """Return (organization, run) pairs that are due."""


@query
async def claim_page_run(
    tx: Transaction, org_id: int, run_id: Uuid, now: datetime, lease: datetime
) -> ClaimedPageRun | None: ...


@query
async def keep_page_claim(
    tx: Transaction, org_id: int, run_id: Uuid, claim: int, now: datetime, lease: datetime
) -> bool: ...


@query
async def store_page(
    tx: Transaction,
    org_id: int,
    run_id: Uuid,
    claim: int,
    html: str,
    email_html: str,
    made_at: datetime,
    error: str | None,
) -> bool:
    """Store the page of a run; False if the claim has ended, or a contact was erased since `made_at`."""


@query
async def add_page_emails(tx: Transaction, org_id: int, run_id: Uuid, recipients: int) -> None: ...


class PageEmail(msgspec.Struct, frozen=True):
    """The email to recipient `number` (from 1) of a run. `in_doubt`: an attempt may have arrived, without an answer."""

    number: int
    state: PageEmailState
    attempts: int
    in_doubt: bool


@query
async def list_page_emails(tx: Transaction, org_id: int, run_id: Uuid) -> list[PageEmail]: ...


@query
async def record_page_email(
    tx: Transaction,
    org_id: int,
    run_id: Uuid,
    claim: int,
    number: int,
    state: PageEmailState,
    attempts: int,
    in_doubt: bool,
    error: str | None,
) -> bool: ...


@query
async def find_page_recipient(tx: Transaction, org_id: int, run_id: Uuid, number: int) -> str | None: ...


@query
async def fail_page_email(tx: Transaction, org_id: int, run_id: Uuid, number: int, error: str) -> None:
    """Record that an email of a run, which was sent, did not arrive."""


@query
async def settle_page_run(
    tx: Transaction,
    org_id: int,
    run_id: Uuid,
    claim: int,
    state: PageRunState,
    due_at: datetime | None,
    error: str | None,
    again: bool,
) -> None: ...


@query
async def delete_old_pages(
    tx: Transaction, org_id: int, now: datetime, limit: int, retention: timedelta = _RETENTION
) -> RowCount:
    """Delete runs that ended and were planned more than `retention` ago."""
