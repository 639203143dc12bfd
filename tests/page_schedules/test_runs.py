"""Scheduled pages: who may make them, their runs by engines, and what reaches the mail server."""

import asyncio
import email
import email.policy
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from api.channels.email import SmtpMailer
from api.channels.outgoing import Transports
from api.contacts.erase import erase_again
from api.embedded import Server
from api.page_schedules.runs import MAX_PAGE_BYTES, PageServices, plan_due, run_due
from api.query.gateway import Gateway
from api.settings import SmtpServer
from tests.channels.reports import bounce, complaint
from tests.channels.test_email_smtp import MailServer, mail_server
from tests.conftest import clone
from tests.installation import Installation, until
from tests.routes.conftest import SECRET, Org, Service, serving
from tests.segments.conftest import LateClock
from workbench.language.channel import RetryPolicy
from workbench.language.codec import decode
from workbench.language.reports import Retention, report_query, start_of_period
from workbench.sql import statement

SECTION = {"title": "Events", "sql": "SELECT event, count(*) AS events FROM app_events GROUP BY 1 ORDER BY 1"}
PAGE = {"title": "Monday", "sections": [SECTION], "cron": "0 8 * * *", "to": ["Boss@example.com"]}
SCOPES = ("sql:read", "pages:send")
DAY = timedelta(days=1)


class Mailing:
    """An organization with engines that mail its pages."""

    def __init__(self, org: Org, server: MailServer, clock: LateClock) -> None:
        self.org, self.server, self.clock = org, server, clock
        parts = org.service.services
        self.mailer = SmtpMailer(SmtpServer("127.0.0.1", server.port, "never"), "Reports <reports@example.org>")
        gateway = Gateway(parts.system_database, parts.keyring)
        retries = RetryPolicy((60.0, 600.0))
        transports = Transports({"email": self.mailer}, "https://wb.example")
        self.engine = PageServices(parts.system_database, gateway, parts.keyring, transports, retries, clock)

    async def call(self, method: str, path: str = "", body: Any = None, *scopes: str) -> tuple[int, Any]:
        key = await self.org.key("workbench", *(scopes or SCOPES))
        answer = await self.org.call(method, f"/page-schedules{path}", body, authorization=f"Bearer {key}")
        return answer.status_code, decode(answer.content)

    async def schedule(self, **fields: Any) -> str:
        status, made = await self.call("POST", "", PAGE | fields)
        assert status == 201, made
        return str(made["id"])

    async def work(self, engines: int = 1) -> None:
        await asyncio.gather(*(plan_due(self.engine.database, self.clock) for _ in range(engines)))
        await asyncio.gather(*(run_due(self.engine) for _ in range(engines)))

    @property
    def emails(self) -> list[Any]:
        return [email.message_from_bytes(item.content, policy=email.policy.default) for item in self.server.envelopes]

    def answer(self, code: str) -> None:
        """Let the mail server give this answer to every email, and forget those that it refused."""
        self.server.answers = {"data": code}
        self.server.envelopes.clear()

    async def report(self, content: bytes) -> str:
        """Report what a mail server says of an email, as its pipe does; return the outcome."""
        key = await self.org.key("live")
        headers = {"content-type": "message/rfc822", "authorization": f"Bearer {key}"}
        answer = await self.org.service.client.post("/bounces", content=content, headers=headers)
        return str(answer.json()["outcome"])

    async def runs(self, schedule_id: str) -> list[dict[str, Any]]:
        status, answer = await self.call("GET", f"/{schedule_id}/runs")
        assert status == 200
        runs: list[dict[str, Any]] = answer["runs"]
        return runs


@pytest.fixture(scope="module")
async def service(postgres: Server, template: str) -> AsyncIterator[Service]:
    with clone(postgres, template) as dsn:
        async with serving(dsn) as started:
            yield started


@pytest.fixture
async def team(service: Service) -> AsyncIterator[Mailing]:
    clock = LateClock()
    await service.services.system_database.calibrate(clock)
    async with mail_server() as server:
        made = Mailing(await service.organization(), server, clock)
        yield made
        await made.mailer.close()
    await service.rows("DELETE FROM page_schedules")


async def test_a_page_is_mailed_once_however_many_engines_run(team: Mailing) -> None:
    for name in ("deposit", "deposit", "signup"):
        assert (await team.org.post({"event": name, "contact": {"externalId": "u1"}}))[0] == 202
    schedule_id = await team.schedule(to=["boss@example.com", "cfo@example.com"])
    await team.work()
    assert team.emails == []  # not before its time
    team.clock.ahead = 3 * DAY  # two runs were missed
    await team.work(engines=3)
    await team.work(engines=3)
    assert sorted(str(item["To"]) for item in team.emails) == ["boss@example.com", "cfo@example.com"]
    first = team.emails[0]
    assert (first["Subject"], first["List-Unsubscribe-Post"]) == ("Monday", "List-Unsubscribe=One-Click")
    (attached,) = first.iter_attachments()
    page, body = attached.get_content(), first.get_body(("html",)).get_content()
    assert [text.count("<svg") for text in (page, body)] == [1, 0]
    assert ("deposit" in page, "deposit" in body, "2" in first.get_body(("plain",)).get_content()) == (True,) * 3
    (run,) = await team.runs(schedule_id)
    assert (run["state"], run["sent"], run["waiting"], run["failed"], run["error"]) == ("done", 2, 0, 0, None)
    assert (await team.call("GET", f"/{schedule_id}/runs/{run['id']}"))[1]["html"] == page.replace("\r\n", "\n")


async def test_retention_is_mailed_as_a_table_with_a_row_for_each_cohort(team: Mailing) -> None:
    assert (await team.org.post({"event": "signup", "contact": {"externalId": "u1"}}))[0] == 202
    week = Retention(start="signup", every="week", periods=2, since=start_of_period(team.clock.now(), "week", 2))
    query = report_query(week, statement)
    titles = {"number": "week"}
    section = {"title": "Back", "sql": query.text, "params": query.params, "report": True, "titles": titles}
    schedule_id = await team.schedule(sections=[section])
    assert await next_day(team, schedule_id) == ("done", 1, 0, None)
    (sent,) = team.emails
    (attached,) = sent.iter_attachments()
    for text in (attached.get_content(), sent.get_body(("html",)).get_content()):
        rows = [re.findall(r"<t[hd] [^>]*>([^<]*)<", row) for row in text.split("<tr>")[1:]]
        assert (rows[0], rows[1][1:], len(rows)) == (["cohort", "size", "week 0"], ["1", "100.0%*"], 2)


async def test_a_mail_server_that_fails_is_tried_again_after_the_delays_of_emails(team: Mailing) -> None:
    schedule_id = await team.schedule()
    team.answer("451 later")
    outcomes = []
    for ahead in (DAY, DAY + timedelta(seconds=30), DAY + timedelta(seconds=61)):
        team.clock.ahead = ahead
        await team.work()
        (run,) = await team.runs(schedule_id)
        outcomes.append((run["state"], run["waiting"], run["emailError"]))
    assert {outcome[:2] for outcome in outcomes} == {("sending", 1)}
    assert "SMTP 451" in outcomes[-1][2]
    assert len(team.emails) == 2  # not tried again before its time
    team.answer("250 OK")
    team.clock.ahead = DAY + timedelta(seconds=700)
    await team.work()
    (run,) = await team.runs(schedule_id)
    assert (run["state"], run["sent"], len(team.emails)) == ("done", 1, 1)
    team.answer("550 no")
    team.clock.ahead = 2 * DAY
    await team.work()
    assert [(item["state"], item["failed"]) for item in await team.runs(schedule_id)] == [("failed", 1), ("done", 0)]


async def next_day(team: Mailing, schedule_id: str) -> tuple[str, int, int, str | None]:
    """Return what became of the run of the next day."""
    team.clock.ahead += DAY
    await team.work()
    run = (await team.runs(schedule_id))[0]
    return run["state"], run["sent"], run["failed"], run["emailError"]


CLOSED = ("failed", 0, 1, "the address gets no more emails: it bounced, or its owner unsubscribed")


@pytest.mark.parametrize(
    ("status", "first", "second"),
    [
        ("5.1.1", "suppressed", CLOSED),
        ("5.2.2", "recorded", ("done", 1, 0, None)),  # a full mailbox is about this email only
        ("4.2.2", "unknown", ("done", 1, 0, None)),
    ],
)
async def test_a_bounce_is_shown_with_the_run_and_may_close_the_address(
    team: Mailing, status: str, first: str, second: tuple[Any, ...]
) -> None:
    schedule_id = await team.schedule()
    assert await next_day(team, schedule_id) == ("done", 1, 0, None)
    content = team.server.envelopes[0].content
    assert [await team.report(bounce(content, status)), await team.report(bounce(content, status))] == [first, first]
    (run,) = await team.runs(schedule_id)
    error = None if first == "unknown" else f"the mail server of the address returned it ({status})"
    state = "done" if error is None else "failed"
    assert (run["state"], run["sent"] + run["failed"], run["emailError"]) == (state, 1, error)
    assert await next_day(team, schedule_id) == second


async def test_a_report_that_names_the_email_of_another_address_does_not_fail_it(team: Mailing) -> None:
    schedule_id = await team.schedule(to=["a@example.com", "b@example.com"])
    await next_day(team, schedule_id)
    forged = team.server.envelopes[0].content.replace(b".1@example.org", b".2@example.org")
    assert await team.report(bounce(forged)) == "suppressed"  # of the address whose token it has
    (run,) = await team.runs(schedule_id)
    assert (run["sent"], run["failed"]) == (2, 0)


async def test_a_complaint_and_an_unsubscription_close_the_address_for_pages(team: Mailing) -> None:
    schedule_id = await team.schedule(to=["a@example.com", "b@example.com"])
    assert (await next_day(team, schedule_id))[:2] == ("done", 2)
    contents = [item.content for item in team.server.envelopes]
    assert await team.report(complaint(contents[0])) == "suppressed"
    url = str(team.emails[1]["List-Unsubscribe"]).strip("<>").removeprefix("https://wb.example/api/v1")
    assert (await team.org.service.client.post(url)).status_code == 200
    assert [item["sent"] for item in await team.runs(schedule_id)] == [2]
    assert (await next_day(team, schedule_id))[:3] == ("failed", 0, 2)
    assert len(team.emails) == 2


async def test_an_address_that_the_mail_server_does_not_know_gets_one_email_and_others_are_tried_each_day(
    team: Mailing,
) -> None:
    schedule_id = await team.schedule()
    team.server.answers = {"rcpt": "550 5.7.1 not today"}
    assert await next_day(team, schedule_id) == ("failed", 0, 1, "rejected by the receiver (SMTP 550)")
    team.server.answers = {"rcpt": "550 5.1.1 no such user"}
    gone = "the address or endpoint no longer exists (SMTP 550 5.1.1)"
    assert await next_day(team, schedule_id) == ("failed", 0, 1, gone)
    assert await next_day(team, schedule_id) == CLOSED
    assert await team.org.rows("cause", "suppressions", "cause") == [("bounced",)]


@pytest.mark.parametrize(("answer", "counts"), [("250 OK", ("done", 1, 0, 0)), ("550 no", ("failed", 0, 0, 1))])
async def test_an_engine_that_is_killed_before_it_records_an_email_leaves_it_unknown_until_it_is_sent_again(
    team: Mailing, tmp_path: Path, answer: str, counts: tuple[Any, ...]
) -> None:
    schedule_id = await team.schedule()
    await team.org.service.rows("UPDATE page_schedules SET next_at = now() WHERE org_id = %s", team.org.id)
    installation = Installation(team.org.service.dsn, tmp_path)
    team.answer("hang")  # the email has arrived, and its acceptance has not
    engine = installation.start_engine(
        WORKBENCH_SECRET=SECRET,
        WORKBENCH_SMTP_URL=f"smtp://127.0.0.1:{team.server.port}",
        WORKBENCH_EMAIL_FROM="Reports <reports@example.org>",
    )
    await asyncio.to_thread(until, lambda: bool(team.server.envelopes), "the email arrives", 60)
    engine.kill()
    engine.wait()
    (run,) = await team.runs(schedule_id)
    doubt = "no response: the message may have arrived"
    assert (run["state"], run["sent"], run["waiting"], run["emailError"]) == ("sending", 0, 1, doubt)
    team.server.answers = {"data": answer}
    team.clock.ahead = timedelta(minutes=6)  # its lease has ended
    await team.work()
    (run,) = await team.runs(schedule_id)
    assert (run["state"], run["sent"], run["failed"], run["unknown"]) == counts
    assert len({str(item["Message-ID"]) for item in team.emails}) == 1
    assert len(team.emails) == 2


async def test_a_page_that_is_too_large_says_so_in_its_place(team: Mailing) -> None:
    # Two bytes for each character: fewer characters than the limit, more bytes.
    wide = {
        "title": "Wide",
        "sql": f"SELECT repeat('é', 4000) AS text FROM generate_series(1, {MAX_PAGE_BYTES // 7000})",
    }
    schedule_id = await team.schedule(sections=[wide])
    assert await next_day(team, schedule_id) == ("done", 1, 0, None)
    (run,) = await team.runs(schedule_id)
    assert run["error"] == "the page is larger than 4,000,000 bytes; select fewer rows or shorter texts"
    page = (await team.call("GET", f"/{schedule_id}/runs/{run['id']}"))[1]["html"]
    assert ("larger than 4,000,000 bytes" in page, len(page) < 10_000) == (True, True)
    assert len(team.server.envelopes[0].content) < 20_000


async def test_times_of_a_schedule_follow_the_clocks_of_its_zone(team: Mailing) -> None:
    schedule_id = await team.schedule(cron="30 2 * * *", timezone="Europe/Zurich")
    zone, times = ZoneInfo("Europe/Zurich"), []
    # In 2027 02:30 does not exist on 28 March, and comes twice on 31 October.
    for month, day in ((3, 27), (10, 30)):
        start = datetime(2027, month, day, 12, tzinfo=zone)
        await team.org.service.rows(
            "UPDATE page_schedules SET next_at = %s WHERE org_id = %s", start.replace(hour=2, minute=30), team.org.id
        )
        for noon in range(3):
            moment = (start + timedelta(days=noon)).astimezone(UTC)
            team.clock.ahead += moment - team.clock.now()
            await team.work()
        times += [run["at"] for run in reversed(await team.runs(schedule_id))][-3:]
    assert [datetime.fromisoformat(time).astimezone(UTC).strftime("%d %H:%M") for time in times] == [
        *("27 01:30", "28 01:30", "29 00:30"),
        *("30 00:30", "31 00:30", "01 01:30"),
    ]


async def test_a_query_that_fails_is_a_sentence_on_the_page(team: Mailing) -> None:
    wrong = {"title": "Wrong", "sql": "SELECT nothing FROM app_events"}
    schedule_id = await team.schedule(sections=[wrong, SECTION])
    team.clock.ahead = DAY
    await team.work()
    (run,) = await team.runs(schedule_id)
    assert (run["state"], run["error"]) == ("done", 'Wrong: column "nothing" does not exist (character 8)')
    page = (await team.call("GET", f"/{schedule_id}/runs/{run['id']}"))[1]["html"]
    assert "column &#34;nothing&#34; does not exist" in page
    assert "Events</h2>" in page


async def test_a_page_sees_its_organization_alone_and_masks_addresses_and_writes_nothing(team: Mailing) -> None:
    other = await team.org.service.organization()
    for org, name in ((team.org, "ada"), (other, "eve")):
        assert (await org.post({"event": "x", "contact": {"email": f"{name}@example.com"}}))[0] == 202
    sections = [
        {"title": "All", "sql": "SELECT email FROM contacts"},
        {"title": "One", "sql": "SELECT id FROM contacts WHERE email = :who", "params": {"who": "ada@example.com"}},
        {"title": "Write", "sql": "DELETE FROM contacts"},
    ]
    key = await team.org.key("workbench", *SCOPES, "pii:read")
    made = await team.org.call("POST", "/page-schedules", PAGE | {"sections": sections}, authorization=f"Bearer {key}")
    assert made.json()["sections"][1]["params"] == {"who": "ada@example.com"}
    stored = await team.org.service.rows("SELECT sections::text, recipients FROM page_schedules")
    assert "ada@" not in str(stored)
    assert "oss@" not in str(stored)
    team.clock.ahead = DAY
    await team.work()
    (run,) = await team.runs(made.json()["id"])
    assert run["error"].startswith("Write: ")
    page = (await team.call("GET", f"/{made.json()['id']}/runs/{run['id']}"))[1]["html"]
    assert ("a•••@example.com" in page, "ada@" in page, "e•••@" in page) == (True, False, False)
    assert [len(await org.rows("id", "contacts")) for org in (team.org, other)] == [1, 1]
    ((contact_id,),) = await team.org.rows("id", "contacts")
    assert page.count(str(contact_id)) == 1


async def test_values_of_a_query_move_with_the_run(team: Mailing) -> None:
    section = {
        "title": "Week",
        "sql": "SELECT CAST(:since AS text) AS since, CAST(:week AS text) AS week",
        "params": {"since": "x", "week": "y"},
        "relative": [{"name": "since", "seconds": 86_400}, {"name": "week", "every": "week", "periods": 1}],
    }
    schedule_id = await team.schedule(sections=[section], timezone="Europe/Zurich")
    team.clock.ahead = DAY
    await team.work()
    (run,) = await team.runs(schedule_id)
    at = datetime.fromisoformat(run["at"])
    page = (await team.call("GET", f"/{schedule_id}/runs/{run['id']}"))[1]["html"]
    assert (at - DAY).astimezone(UTC).isoformat() in page
    monday = (at - timedelta(days=at.weekday(), weeks=1)).replace(hour=0)
    assert monday.astimezone(UTC).isoformat() in page


async def test_an_erasure_deletes_kept_pages_and_one_that_was_not_mailed_is_made_again(team: Mailing) -> None:
    assert (await team.org.post({"event": "x", "contact": {"externalId": "secret-name"}}))[0] == 202
    section = {"title": "Names", "sql": "SELECT external_id, id FROM contacts"}
    schedule_id = await team.schedule(sections=[section])
    team.answer("451 later")
    team.clock.ahead = DAY
    await team.work()
    ((contact_id,),) = await team.org.rows("id", "contacts")
    key = await team.org.key("workbench", "contacts:erase", "contacts:read")
    erased = await team.org.call("DELETE", f"/contacts/{contact_id}", authorization=f"Bearer {key}")
    assert erased.status_code == 200, erased.text
    (run,) = await team.runs(schedule_id)
    assert (run["state"], run["kept"]) == ("planned", False)
    await erase_again(team.engine.database, team.clock.now())
    team.answer("250 OK")
    team.clock.ahead = DAY + timedelta(seconds=100)
    await team.work()
    (run,) = await team.runs(schedule_id)
    assert (run["state"], run["sent"]) == ("done", 1)
    assert "secret-name" not in str(team.emails[0])


@pytest.mark.parametrize("column", ["revoked_at", "expires_at"])
async def test_a_revoked_or_rolled_key_mails_nothing_any_more(team: Mailing, column: str) -> None:
    await team.schedule()
    await team.org.service.rows(f"UPDATE api_keys SET {column} = now() WHERE org_id = %s", team.org.id)
    team.clock.ahead = DAY
    await team.work()
    rows = await team.org.rows("state, error", "page_runs")
    reason = "the key that made the schedule was revoked or has expired; schedule it again"
    assert (rows, team.emails) == ([("failed", reason)], [])


async def test_a_run_that_fails_unexpectedly_is_tried_five_times_and_then_says_why(team: Mailing) -> None:
    schedule_id = await team.schedule()
    await team.org.service.rows("UPDATE page_schedules SET sections = '[{}]' WHERE org_id = %s", team.org.id)
    states = []
    for number in range(6):
        team.clock.ahead = DAY + timedelta(seconds=31 * number)
        await team.work()
        (run,) = await team.runs(schedule_id)
        states.append(run["state"])
        assert run["error"] == "internal error: ValidationError"
    assert states == ["planned"] * 5 + ["failed"]


async def test_a_page_from_before_an_erasure_by_an_older_process_is_neither_shown_nor_mailed(team: Mailing) -> None:
    schedule_id = await team.schedule()
    assert (await team.org.post({"event": "x", "contact": {"externalId": "u1"}}))[0] == 202
    team.answer("451 later")
    team.clock.ahead = DAY
    await team.work()
    await team.org.service.rows("UPDATE page_runs SET email_html = 'old', html = 'old' WHERE org_id = %s", team.org.id)
    (run,) = await team.runs(schedule_id)
    assert (await team.call("GET", f"/{schedule_id}/runs/{run['id']}"))[1] == {"html": "old"}
    statement = "UPDATE contacts SET erased_at = now() + interval '1 day' WHERE org_id = %s"
    await team.org.service.rows(statement, team.org.id)
    assert (await team.call("GET", f"/{schedule_id}/runs/{run['id']}"))[0] == 404
    team.answer("250 OK")
    team.clock.ahead = DAY + timedelta(seconds=61)
    await team.work()  # the contact may still be in what the queries see
    assert (await team.runs(schedule_id))[0]["error"] == "a contact was erased while the page was made"
    team.clock.ahead = DAY + timedelta(seconds=300)
    await team.work()
    (run,) = await team.runs(schedule_id)
    assert (run["state"], len(team.emails), "old" in str(team.emails[0])) == ("done", 1, False)


async def test_erasures_delay_a_page_for_six_hours_before_the_run_fails(team: Mailing) -> None:
    schedule_id = await team.schedule(cron="0 8 1 1 *")
    assert (await team.org.post({"event": "x", "contact": {"externalId": "u1"}}))[0] == 202
    planned_at = (await team.org.rows("next_at", "page_schedules"))[0][0]
    states = []
    for minutes in [*range(1, 33, 4), *range(361, 385, 4)]:
        team.clock.ahead = planned_at + timedelta(minutes=minutes) - LateClock().now()
        erasure = "UPDATE contacts SET erased_at = %s WHERE org_id = %s"
        await team.org.service.rows(erasure, team.clock.now(), team.org.id)
        await team.work()
        states.append((await team.runs(schedule_id))[0]["state"])
    assert states == ["planned"] * 13 + ["failed"]


@pytest.mark.parametrize(
    ("scopes", "status"),
    [(("sql:read",), 403), (("pages:send",), 403), (("sql:read", "automations:publish", "keys:admin"), 403)],
)
async def test_mailing_needs_both_scopes(team: Mailing, scopes: tuple[str, ...], status: int) -> None:
    assert (await team.call("POST", "", PAGE, *scopes))[0] == status


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cron": "* * * * *"}, "cron: runs more often than once an hour"),
        ({"title": "=?utf-8?q?=41?="}, "title: must be one line, and not an encoded word"),
        ({"to": ["x"]}, "to[0]: must be an email address"),
        ({"to": []}, "to: must be an array of 1 to 20 email addresses"),
        ({"timezone": "Mars"}, "timezone: must be the name of a time zone, like Europe/Zurich"),
        (
            {"sections": [SECTION | {"relative": [{"name": "a"}]}]},
            "sections[0].relative[0].name: is not a value of the query",
        ),
        ({"sections": [{"title": "A", "sql": "SELECT 'a@b.example'"}]}, "sections[0].sql: contains an email address"),
    ],
)
async def test_a_page_that_cannot_be_mailed_is_refused(team: Mailing, fields: dict[str, Any], error: str) -> None:
    status, answer = await team.call("POST", "", PAGE | fields)
    assert (status, answer["error"][: len(error)]) == (400, error)


async def test_schedules_are_listed_masked_audited_and_deleted_and_other_organizations_have_none(team: Mailing) -> None:
    schedule_id = await team.schedule()
    other = Mailing(await team.org.service.organization(), team.server, team.clock)
    assert (await other.call("GET"))[1] == {"schedules": []}
    assert (await other.call("DELETE", f"/{schedule_id}"))[0] == 404
    (shown,) = (await team.call("GET"))[1]["schedules"]
    assert (shown["recipients"], shown["timezone"], shown["lastRun"]) == (["b•••@example.com"], "UTC", None)
    assert (await team.call("DELETE", f"/{schedule_id}"))[1] == {"id": schedule_id}
    assert (await team.call("GET"))[1] == {"schedules": []}
    actions = await team.org.rows("action, detail", "audit_log")
    detail = {"title": "Monday", "cron": "0 8 * * *", "timezone": "UTC", "recipients": 1}
    assert actions == [("page_schedule.create", detail), ("page_schedule.delete", {"title": "Monday"})]
