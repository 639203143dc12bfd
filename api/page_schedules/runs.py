"""Runs of scheduled pages: planned once, made as an analyst of the organization, and mailed.

An engine plans a run by moving its schedule on, in one statement, so of several engines one plans it. A run that was
missed is made late, and only the last one of several. A claim on a run is a lease with a number: what an engine writes
after its lease has ended has no effect. An attempt to send an email is recorded before it is made, as one that may
arrive, and again with its outcome. An engine that is killed in between sends it again, as all emails are, with the same
Message-ID; if that fails, the outcome is unknown.

Rendering a page and composing its email take up to a second of CPU, so they run in threads.

A query that fails is a sentence on the page, and the rest of the page is made. A mail server that fails is tried again
after the delays of all emails.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain, takewhile
from typing import Any

import msgspec

from api.channels.email import EMAILS
from api.channels.outcome import Attachment, Delivery, Failed, Outcome, Retry, Sent, Unknown
from api.channels.outgoing import Transports
from api.clock import Clock, to_us, uuid7
from api.crypto import INDEX, EmailDisplay, Keyring
from api.jobs import every, one_by_one
from api.page_schedules.schedules import ScheduledSection, read_sections
from api.query.formats import JsonText
from api.query.gateway import QUERY_FAILURES, AnalystQuery, Gateway, describe_failure
from api.segments.definition import open_params
from api.store import page_schedules as store
from api.store.analyst import TooManyQueriesError
from api.store.database import Database, DatabaseUnavailableError, Transaction
from api.store.page_schedules import ClaimedPageRun, DueSchedule, PageEmail
from api.store.query import run as execute
from workbench.language.channel import EMAIL, RetryPolicy
from workbench.language.codec import decode
from workbench.language.cron import Cron, read_cron
from workbench.language.decision import DELIVERY_ERRORS
from workbench.language.local_time import time_zone
from workbench.language.page import PageSection, page_html, row_limit
from workbench.language.responses import PageRunState

POLL_INTERVAL_S = 2.0
WORKERS = 3  # per engine, so that a slow query or mail server does not hold up the pages of other organizations
LEASE = timedelta(minutes=5)
SECTION_TIMEOUT_S = 60.0
RETRY_DELAY = timedelta(seconds=30)  # after a lack of slots or of a database
ERASURE_DELAY = timedelta(minutes=3)  # after an erasure, longer than its contacts keep a page from being stored
ERASURE_PATIENCE = timedelta(hours=6)  # after the time of a run; a try that a later erasure ends counts
MAX_TRIES = 5  # of a run, if an error of ours, a crash or a late erasure ends them
MAX_PAGE_BYTES = 4_000_000

_log = logging.getLogger("workbench.pages")


class PageServices(msgspec.Struct, frozen=True):
    """The services that runs use: queries of analysts, a sender of emails, and the schedule of retries."""

    database: Database
    gateway: Gateway
    keyring: Keyring
    transports: Transports
    retries: RetryPolicy
    clock: Clock


async def keep_mailing(services: PageServices) -> None:
    await asyncio.gather(
        every(POLL_INTERVAL_S, "plan_pages", lambda: plan_due(services.database, services.clock)),
        *(every(POLL_INTERVAL_S, "mail_pages", lambda: run_due(services)) for _ in range(WORKERS)),
    )


async def plan_due(database: Database, clock: Clock) -> None:
    """Plan the runs that are due."""
    now = clock.now()
    async with database.transaction() as tx:
        due = await store.list_due_schedules(tx, now)

    async def plan(row: DueSchedule) -> None:
        cron = await asyncio.to_thread(read_cron, row.cron, time_zone(row.timezone))
        assert isinstance(cron, Cron)
        # Of several runs that were missed, only the last one counts.
        times = chain([row.next_at], cron.times_after(row.next_at))
        at = deque(takewhile(lambda time: time <= now, times), maxlen=1)[0]
        next_at, run_id = next(cron.times_after(now), None), uuid7(to_us(now))
        async with database.transaction() as tx:
            await store.plan_page_run(tx, row.org_id, row.id, row.next_at, at, next_at, run_id, now)

    await one_by_one("plan_pages", due, plan)


async def run_due(services: PageServices) -> None:
    """Make and mail the pages that are due."""
    async with services.database.transaction() as tx:
        due = await store.find_due_page_runs(tx, services.clock.now())

    async def continue_run(key: tuple[int, str]) -> None:
        now = services.clock.now()
        async with services.database.transaction() as tx:
            run = await store.claim_page_run(tx, *key, now, now + LEASE)
        if run is not None:
            await _continue(services, run)

    await one_by_one("mail_pages", due, continue_run)


async def _continue(services: PageServices, run: ClaimedPageRun) -> None:
    if run.key_ended:
        error = "the key that made the schedule was revoked or has expired; schedule it again"
        await _settle(services, run, "failed", error=error)
        return
    if run.tries > MAX_TRIES:
        # The error of the last try stays; an engine that was killed has left none.
        await _settle(services, run, "failed", error=run.error or f"{MAX_TRIES} engines ended while they made the page")
        return
    try:
        if run.html is None:
            made_run = await _make(services, run)
            if made_run is None:
                return
            run = made_run
        await _mail(services, run)
    except DatabaseUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001  a bug of ours: not repeated for ever, and not unseen
        _log.exception("page_failed", extra={"org_id": run.org_id, "run_id": run.id})
        state: PageRunState = "planned" if run.html is None else "sending"
        await _settle(
            services,
            run,
            state,
            services.clock.now() + RETRY_DELAY,
            f"internal error: {type(error).__name__}",
            again=True,
        )


# --- Making the page


async def _make(services: PageServices, run: ClaimedPageRun) -> ClaimedPageRun | None:
    """Run the queries and store the page; None if the claim was lost, or all of it has to be repeated later."""
    made_at = services.clock.now()
    sections = []
    for section in read_sections(run.sections):
        try:
            sections.append(await _result(services, run, section))
        except (TooManyQueriesError, DatabaseUnavailableError) as error:
            _log.info("page_delayed", extra={"org_id": run.org_id, "run_id": run.id, "reason": type(error).__name__})
            await _settle(services, run, "planned", services.clock.now() + RETRY_DELAY)
            return None
        if not await _keep_claim(services, run):
            return None
    html, email_html, failure = await asyncio.to_thread(_render, run.title, sections, made_at)
    async with services.database.transaction() as tx:
        is_stored = await store.store_page(tx, run.org_id, run.id, run.claim, html, email_html, made_at, failure)
        if is_stored:
            await store.add_page_emails(tx, run.org_id, run.id, len(run.recipients))
    if not is_stored:
        reason = "a contact was erased while the page was made"
        now = services.clock.now()
        await _settle(services, run, "planned", now + ERASURE_DELAY, reason, again=now > run.at + ERASURE_PATIENCE)
        return None
    return msgspec.structs.replace(run, state="sending", html=html, email_html=email_html, made_at=made_at)


def _render(title: str, sections: list[PageSection], made_at: datetime) -> tuple[str, str, str | None]:
    """Return the page, the page without charts, and what is wrong with it."""
    failure = "; ".join(f"{section.title}: {section.error}" for section in sections if section.error) or None
    html, email_html = page_html(title, sections, made_at), page_html(title, sections, made_at, charts=False)
    if len(html.encode()) > MAX_PAGE_BYTES:
        failure = f"the page is larger than {MAX_PAGE_BYTES:,} bytes; select fewer rows or shorter texts"
        html = email_html = page_html(title, [PageSection(title=title, error=failure)], made_at)
    return html, email_html, failure


async def _result(services: PageServices, run: ClaimedPageRun, section: ScheduledSection) -> PageSection:
    """Return the result of a section, or its error. Raises TooManyQueriesError or DatabaseUnavailableError."""
    keys = services.keyring.of(run.org_id)
    # In clear, because the gateway seals what is an address; the values of the result are masked.
    params = open_params(section.params, EmailDisplay(keys, clear=True))
    if isinstance(params, dict):
        params = params | {value.name: value.before(run.at).isoformat() for value in section.relative}
    query = AnalystQuery(run.org_id, section.sql, params, clear_emails=False)
    try:
        async with asyncio.timeout(SECTION_TIMEOUT_S), services.gateway.run(query) as result:
            limit = row_limit([column.name for column in result.columns], report=section.report)
            writer, text, count = JsonText(result.columns), b"", 0
            async for batch in result.batches():
                text += await asyncio.to_thread(writer.batch, batch.rows, result.visible_columns(batch))
                count += batch.rows
                if count > limit or len(text) > MAX_PAGE_BYTES:
                    break
            columns, rows = await asyncio.to_thread(_read_rows, text + writer.end(), limit)
            watermark = result.watermark
    except TimeoutError:
        error = f"the query took longer than {SECTION_TIMEOUT_S:g} s"
        return PageSection(title=section.title, error=error, query_hash=query.hash)
    except TooManyQueriesError:
        raise
    except QUERY_FAILURES as failure:
        return PageSection(title=section.title, error=describe_failure(failure), query_hash=query.hash)
    return PageSection(
        title=section.title,
        columns=columns,
        rows=rows,
        complete=count <= limit,
        report=section.report,
        titles=section.titles,
        query_hash=query.hash,
        watermark=watermark,
    )


def _read_rows(text: bytes, limit: int) -> tuple[tuple[str, ...], list[list[Any]]]:
    """Return the columns and the first `limit` rows of a result."""
    body = decode(text)
    types = [column["type"] for column in body["columns"]]
    rows = [[_value(cell, kind) for cell, kind in zip(row, types, strict=True)] for row in body["rows"][:limit]]
    return tuple(column["name"] for column in body["columns"]), rows


def _value(cell: Any, kind: str) -> Any:
    if isinstance(cell, str) and kind.startswith(("timestamp", "date")):
        with suppress(ValueError):  # infinity, or a date BC
            return datetime.fromisoformat(cell)
    return cell


# --- Mailing it


async def _mail(services: PageServices, run: ClaimedPageRun) -> None:
    """Send the emails that wait, one after the other, and settle the run."""
    async with services.database.transaction() as tx:
        emails = await store.list_page_emails(tx, run.org_id, run.id)
    delays = services.retries.delays(EMAIL)
    results = []
    for email in emails:
        result = email if email.state != "waiting" else await _send(services, run, email, len(delays))
        if result is None:
            return
        results.append(result)
    waiting = [email.attempts for email in results if email.state == "waiting"]
    if waiting:
        delay = delays[max(min(waiting) - 1, 0)] if delays else RETRY_DELAY.total_seconds()
        await _settle(services, run, "sending", services.clock.now() + timedelta(seconds=delay))
    else:
        await _settle(services, run, "done" if any(email.state == "sent" for email in results) else "failed")


async def _send(services: PageServices, run: ClaimedPageRun, email: PageEmail, max_retries: int) -> PageEmail | None:
    """Send an email once and record it; return it as it is afterwards, or None if the claim was lost."""
    keys, now = services.keyring.of(run.org_id), services.clock.now()
    address = keys.open_email(run.recipients[email.number - 1])
    address_digests = keys.digests(EMAILS.address.index, address)
    begun = msgspec.structs.replace(email, attempts=email.attempts + 1, in_doubt=True)
    async with services.database.transaction() as tx:
        if not await store.keep_page_claim(tx, run.org_id, run.id, run.claim, now, now + LEASE):
            return None
        if await EMAILS.find_closed(tx, run.org_id, [address_digests[:INDEX]]):
            closed = msgspec.structs.replace(email, state="failed")
            reason = "the address gets no more emails: it bounced, or its owner unsubscribed"
            return closed if await _record(tx, run, closed, reason) else None
        if not await _record(tx, run, begun, DELIVERY_ERRORS["no_answer"]):
            return None
    lease_end = now + LEASE / 2
    outcome = await services.transports.send(
        EMAIL.name,
        services.database,
        services.keyring,
        _delivery(run, email, address),
        services.clock,
        lambda: services.clock.now() < lease_end,
    )
    result, error = _after_attempt(email, outcome, max_retries)
    async with services.database.transaction() as tx:
        if isinstance(outcome, Failed) and outcome.reason == "gone" and EMAILS.close is not None:
            await execute(tx, EMAILS.close(run.org_id, address_digests, address, services.clock.now()))
        return result if await _record(tx, run, result, error) else None


def _delivery(run: ClaimedPageRun, email: PageEmail, address: str) -> Delivery:
    assert run.made_at is not None
    assert run.html is not None
    assert run.email_html is not None
    return Delivery(
        run.org_id,
        f"{run.id}.{email.number}",
        run.made_at,
        address,
        run.title,
        run.email_html,
        html=True,
        attachment=Attachment(f"page-{run.at:%Y-%m-%d}.html", run.html),
    )


def _after_attempt(email: PageEmail, outcome: Outcome, max_retries: int) -> tuple[PageEmail, str | None]:
    """Return the email after an attempt, and the error. `in_doubt` stays set: an earlier attempt may have arrived."""
    if isinstance(outcome, Sent):
        return PageEmail(email.number, "sent", email.attempts + 1, in_doubt=False), None
    error = DELIVERY_ERRORS[outcome.reason] + (f" ({outcome.detail})" if outcome.detail else "")
    attempts = email.attempts + (0 if outcome == Retry("busy") else 1)
    ends = isinstance(outcome, Failed) or attempts > max_retries
    in_doubt = email.in_doubt or isinstance(outcome, Unknown)
    return PageEmail(email.number, "failed" if ends else "waiting", attempts, in_doubt), error


async def _record(tx: Transaction, run: ClaimedPageRun, email: PageEmail, error: str | None) -> bool:
    """Store an email; False if the claim was lost."""
    return await store.record_page_email(
        tx, run.org_id, run.id, run.claim, email.number, email.state, email.attempts, email.in_doubt, error
    )


async def _keep_claim(services: PageServices, run: ClaimedPageRun) -> bool:
    now = services.clock.now()
    async with services.database.transaction() as tx:
        return await store.keep_page_claim(tx, run.org_id, run.id, run.claim, now, now + LEASE)


async def _settle(
    services: PageServices,
    run: ClaimedPageRun,
    state: PageRunState,
    due_at: datetime | None = None,
    error: str | None = None,
    *,
    again: bool = False,
) -> None:
    """End the claim. `again`: it counts as a try that failed."""
    async with services.database.transaction() as tx:
        await store.settle_page_run(tx, run.org_id, run.id, run.claim, state, due_at, error, again)
