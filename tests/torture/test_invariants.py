"""The checker can fail: every test damages the evidence of a good run and expects the violation of one invariant."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import psycopg
import pytest

from tests.torture import stored
from tests.torture.automations import COUNTER, GUARDED
from tests.torture.conftest import FinishedRun
from tests.torture.evidence import Evidence
from tests.torture.invariants import INVARIANTS, judge
from tests.torture.journeys import ORG as JOURNEYS
from tests.torture.log import ACCEPTED, Answer, Attempt, EventKind, Log
from tests.torture.rows import ServiceCounts, StoredRows, SwitchRow
from tests.torture.sinks import Delivery, Reaction

ORG = "acme"
HOUR_US = 3_600_000_000
# The marketer's rows are in no evidence of the other organizations.
OF_LOAD = f"org_id <> (SELECT id FROM organizations WHERE name = '{JOURNEYS}')"
NOT_ERASED = f"contact_id IN (SELECT id FROM contacts WHERE erased_at IS NULL AND {OF_LOAD})"
OF_ORG = f"org_id = (SELECT id FROM organizations WHERE name = '{ORG}')"
# An event with a key that its sender chose: a derived key is checked by nothing but its event.
ONE_EVENT = f"""id = (
    SELECT max(id::text)::uuid FROM events
    WHERE {OF_ORG} AND {NOT_ERASED} AND NOT starts_with(idempotency_key, 'd1_'))"""
# Its contact is known from an earlier event: the only event of a contact can be on any new one.
LATER_EVENT = f"""id = (
    SELECT max(id::text)::uuid FROM events e
    WHERE {OF_ORG} AND {NOT_ERASED} AND EXISTS (
        SELECT FROM events earlier
        WHERE earlier.org_id = e.org_id AND earlier.external_id = e.external_id AND earlier.created_at < e.created_at
    ))"""
ONE_ENTRY = f"id = (SELECT max(id::text)::uuid FROM entries WHERE {NOT_ERASED})"
ONE_CONTACT = "id = (SELECT max(id::text)::uuid FROM contacts WHERE tags <> '{}' AND attributes ? 'plan')"
ONE_OWNER = (
    f"(org_id, kind, value_digest) = (SELECT org_id, kind, value_digest FROM identities WHERE {OF_LOAD} LIMIT 1)"
)
ONE_CONFLICT = "event_id = (SELECT event_id FROM identity_conflicts LIMIT 1)"
ONE_HOOK = f"""id = (
    SELECT max(id::text)::uuid FROM messages
    WHERE {OF_LOAD} AND channel = 'webhook' AND status = 'sent' AND body IS NOT NULL)"""
ONE_INAPP = "id = (SELECT max(id::text)::uuid FROM messages WHERE channel = 'inapp' AND body IS NOT NULL)"
ITS_ENTRY = f"(SELECT entry_id FROM messages WHERE {ONE_HOOK})"
ONE_PUSH = "id = (SELECT max(id::text)::uuid FROM messages WHERE status = 'delivered' AND wallet_address IS NOT NULL)"
ONE_UNREAD = """id = (
    SELECT max(id::text)::uuid FROM messages
    WHERE channel = 'inapp' AND status = 'sent' AND wallet_address IS NOT NULL)"""
UNREAD = "SET status = 'sent', delivered_at = NULL"
READ = "SET status = 'delivered', delivered_at = now()"
ONE_PRO = "id = (SELECT max(id::text)::uuid FROM contacts WHERE attributes ->> 'plan' = 'pro')"
ONE_COUNTED = f"id = (SELECT max(id::text)::uuid FROM contacts WHERE attributes ? '{COUNTER}')"
ONE_UNDELIVERABLE = f"""(entry_id, node_id) = (
    SELECT entry_id, s.node_id FROM entry_steps s JOIN entries e ON e.id = s.entry_id
    WHERE s.outcome = 'undeliverable' AND {NOT_ERASED} LIMIT 1)"""
OF_ERASED = "contact_id = (SELECT max(id::text)::uuid FROM contacts WHERE erased_at IS NOT NULL)"
UNENTERED = "ALTER TABLE entries DROP CONSTRAINT entries_org_id_automation_id_event_id_key"


def one_step(outcome: str) -> str:
    return f"ctid = (SELECT max(ctid) FROM entry_steps WHERE {OF_LOAD} AND outcome = '{outcome}')"


OVERDUE = f"""
    UPDATE entry_steps SET detail = detail || '{{"until": "2020-01-01T00:00:00Z"}}'
    WHERE outcome = 'waiting'
        AND (entry_id, node_id) IN (SELECT entry_id, node_id FROM entry_steps WHERE {one_step("waited")})"""


def one_guarded_step(outcome: str) -> str:
    """Return the condition for a step of an entry that sent its message, or (branched) did not send it again."""
    return f"""ctid = (
        SELECT max(s.ctid)
        FROM entry_steps s JOIN entries e ON e.id = s.entry_id JOIN automations a ON a.id = e.automation_id
        WHERE a.name = '{GUARDED[0]}' AND s.outcome = '{outcome}'
            AND e.contact_id IN (SELECT id FROM contacts WHERE erased_at IS NULL)
            AND ('{outcome}' <> 'branched' OR s.handle = 'true'))"""


def dead_of(outcome: str) -> str:
    reason = f"outcome = '{outcome}', last_error = '{outcome}: it was so'"
    return f"UPDATE entries SET state = 'dead', attempts = 1, {reason} WHERE {ONE_ENTRY}"


def another_event(payload: str = "payload", key: str = "idempotency_key") -> str:
    return f"""
        INSERT INTO events SELECT
        org_id, gen_random_uuid(), contact_id, event, occurred_at, created_at, {payload}, {key},
                                  wallet_address, email, external_id
        FROM events WHERE {ONE_EVENT}"""


ANOTHER_ENTRY = f"""
    INSERT INTO entries (
        org_id, id, automation_id, event_id, event_created_at, contact_id, state, due_at, created_at, updated_at)
    SELECT org_id, gen_random_uuid(), automation_id, event_id, event_created_at, contact_id, state,
           due_at, created_at, updated_at
    FROM entries WHERE {ONE_ENTRY}"""

FAILURES = f"""
    INSERT INTO entry_steps (org_id, entry_id, claim, step, attempt, node_id, kind, outcome, at)
    SELECT org_id, id, 1000 + number, 0, number, 't', 'app_event', 'failed', updated_at
    FROM entries, generate_series(1, 99) AS number WHERE {ONE_ENTRY}"""
CUT_SHORT = "(SELECT entry_id FROM entry_steps WHERE outcome = 'tagged' AND node_id = 'y2' ORDER BY entry_id LIMIT 1)"
CUT = f"DELETE FROM entry_steps WHERE node_id = 'y2' AND entry_id = {CUT_SHORT}"

SPOILT: list[tuple[str, str, list[str]]] = [
    ("V1", "lost", [f"DELETE FROM events WHERE {ONE_EVENT}"]),
    ("V1", "doubled", [another_event()]),
    ("V1", "other payload", [f"UPDATE events SET payload = payload - 'canary' WHERE {ONE_EVENT}"]),
    ("V1", "other identifiers", [f"UPDATE events SET external_id = 'somebody else' WHERE {ONE_EVENT}"]),
    ("V1", "lost", ["DELETE FROM dry_runs WHERE id = (SELECT id FROM dry_runs LIMIT 1)"]),
    ("V3", "never sent", [another_event(payload="jsonb_build_object('n', -5)", key="'another'")]),
    ("V3", "though it was invalid", [another_event(payload="jsonb_build_object('n', INVALID)", key="'another'")]),
    ("V3", "under the key another", [another_event(key="'another'")]),
    ("V4", "has 0 keys", [f"DELETE FROM idempotency_keys WHERE event_id = (SELECT id FROM events WHERE {ONE_EVENT})"]),
    ("V4", "does not exist", [f"DELETE FROM events WHERE {ONE_EVENT}"]),
    ("V4", "no contact", [f"UPDATE events SET contact_id = gen_random_uuid() WHERE {ONE_EVENT}"]),
    ("V5", "0 times", [f"DELETE FROM entries WHERE {ONE_ENTRY}"]),
    ("V5", "is not stored with these values", [f"UPDATE entries SET contact_id = gen_random_uuid() WHERE {ONE_ENTRY}"]),
    ("V5", "2 times", [UNENTERED, ANOTHER_ENTRY]),
    ("V6", "doubled", [UNENTERED, ANOTHER_ENTRY]),
    ("V6", "is pending", [f"UPDATE entries SET state = 'pending' WHERE {ONE_ENTRY}"]),
    ("V7", "is on contact", [f"UPDATE events SET contact_id = gen_random_uuid() WHERE {LATER_EVENT}"]),
    ("V7", "identifier", [f"DELETE FROM identities WHERE {ONE_OWNER}"]),
    ("V7", "conflicts", [f"DELETE FROM identity_conflicts WHERE {ONE_CONFLICT}"]),
    ("V7", "contact", [f"UPDATE contacts SET wallet_address = 'stolen' WHERE {ONE_CONTACT}"]),
    ("V8", "contact", [f"UPDATE contacts SET attributes = attributes - 'plan' WHERE {ONE_CONTACT}"]),
    ("V8", "contact", [f'UPDATE contacts SET attributes = attributes || \'{{"plan": "none"}}\' WHERE {ONE_CONTACT}']),
    ("V9", "has the tags []", [f"UPDATE contacts SET tags = '{{}}' WHERE {ONE_CONTACT}"]),
    ("V9", "is queued in the end", [f"UPDATE messages SET status = 'queued' WHERE {ONE_HOOK}"]),
    ("V9", "1 steps say that it was sent", [f"UPDATE messages SET status = 'failed' WHERE {ONE_HOOK}"]),
    ("V9", "there is no message", [f"DELETE FROM messages WHERE {ONE_INAPP}"]),
    ("V9", "is not about", [f"UPDATE messages SET subject = 'About nothing' WHERE {ONE_INAPP}"]),
    ("V9", "did not leave as it is stored", [f"UPDATE messages SET body = body || ' ' WHERE {ONE_HOOK}"]),
    ("V10", "has no row", [f"DELETE FROM messages WHERE {ONE_HOOK}"]),
    ("V10", "is of no live event", [f"UPDATE entries SET event_id = gen_random_uuid() WHERE id = {ITS_ENTRY}"]),
    ("V10", "never published", [f"UPDATE entries SET automation_version = NULL WHERE id = {ITS_ENTRY}"]),
    ("V10", "never claimed", [f"DELETE FROM torture.leases WHERE entry_id = {ITS_ENTRY}"]),
    ("V11", "outside of lease", [f"UPDATE entry_steps SET claim = claim + 1 WHERE {one_step('tagged')}"]),
    ("V11", "was claimed as", ["DELETE FROM torture.leases WHERE until IS NULL"]),
    ("V12", "dead without a reason", [f"UPDATE entries SET state = 'dead', last_error = NULL WHERE {ONE_ENTRY}"]),
    ("V12", "which nothing explains", [dead_of("internal_error")]),
    ("V12", "is dead after 1 attempts", [dead_of("no_answer")]),
    ("V12", "was tried 9 times", [f"UPDATE entries SET attempts = 9, state = 'completed' WHERE {ONE_ENTRY}"]),
    ("V12", "failed 99 times", [FAILURES]),
    ("V13", "s early", [f"UPDATE entry_steps SET at = at - interval '1 hour' WHERE {one_step('waited')}"]),
    ("V13", "s late", [OVERDUE]),
    (
        "V13",
        "could not wait for",
        [f'UPDATE entry_steps SET detail = \'{{"eventId": "?"}}\' WHERE {one_step("matched")}'],
    ),
    (
        "V13",
        "lost",
        [f"UPDATE entry_steps SET outcome = 'timed_out', at = at + interval '6s' WHERE {one_step('matched')}"],
    ),
    ("V14", "is pinned to version 99", [f"UPDATE entries SET automation_version = 99 WHERE id = {ITS_ENTRY}"]),
    ("V14", "was next", [f"UPDATE entry_steps SET node_id = 'elsewhere' WHERE {one_step('waited')}"]),
    ("V14", "is completed, and", [f"UPDATE entries SET state = 'completed' WHERE id = {CUT_SHORT}", CUT]),
    ("V14", "was never published", ["UPDATE entries SET automation_version = 1 WHERE automation_version IS NULL"]),
    ("V16", "lost", [f"UPDATE messages {UNREAD} WHERE {ONE_PUSH}"]),
    ("V16", "but was not acknowledged", [f"UPDATE messages {READ} WHERE {ONE_UNREAD}"]),
    ("V16", "is sent, and delivered", [f"UPDATE messages SET status = 'sent' WHERE {ONE_PUSH}"]),
    ("V16", "but was for another", [f"UPDATE messages SET wallet_address = '0xthief' WHERE {ONE_PUSH}"]),
    ("V16", "is not what is stored", [f"UPDATE messages SET subject = 'About nothing' WHERE {ONE_PUSH}"]),
    ("O4", "kept: event", [f"UPDATE events SET payload = '{{\"n\": 1}}' WHERE {OF_ERASED}"]),
    ("O4", "kept: error of entry", [f"UPDATE entries SET last_error = 'refused: by Ann' WHERE {OF_ERASED}"]),
    ("O4", "kept: contact", ["UPDATE contacts SET tags = '{vip}' WHERE erased_at IS NOT NULL"]),
    ("O4", "was to be erased", ["DELETE FROM torture.erasures"]),
    ("V21", "has counted 99", [f"UPDATE contacts SET attributes = '{{\"{COUNTER}\": 99}}' WHERE {ONE_COUNTED}"]),
    (
        "V21",
        f"got the message of {GUARDED[0]} 0 times",
        [f"UPDATE entry_steps SET outcome = 'tagged' WHERE {one_guarded_step('sent')}"],
    ),
    (
        "V21",
        f"got the message of {GUARDED[0]} 2 times",
        [f"UPDATE entry_steps SET outcome = 'sent' WHERE {one_guarded_step('branched')}"],
    ),
    ("V23", "was undeliverable and is sent", [f"UPDATE messages SET status = 'sent' WHERE {ONE_UNDELIVERABLE}"]),
    ("V23", "was sent and is", [f"UPDATE entry_steps SET outcome = 'sent' WHERE {ONE_UNDELIVERABLE}"]),
    ("V20", "member", [f"UPDATE contacts SET attributes = '{{}}' WHERE {ONE_PRO}"]),
    ("V20", "count of", [f"DELETE FROM events WHERE {ONE_EVENT}"]),
]


@pytest.mark.parametrize(("invariant", "words", "statements"), SPOILT)
async def test_changed_rows_are_detected(
    finished_run: FinishedRun, invariant: str, words: str, statements: list[str]
) -> None:
    evidence = finished_run.run.evidence
    invalid = next(
        event.number for event in evidence.log.sent.values() if (event.org, event.kind) == (ORG, EventKind.INVALID)
    )
    rows = await rows_after(finished_run, [statement.replace("INVALID", str(invalid)) for statement in statements])
    assert_seen(msgspec.structs.replace(evidence, stored=rows), invariant, words)


async def rows_after(finished_run: FinishedRun, statements: Iterable[str]) -> StoredRows:
    """Return the stored rows after some statements, which are rolled back."""
    installation, sent = finished_run.installation, finished_run.run.evidence.log.sent
    async with await psycopg.AsyncConnection.connect(installation.postgres.server.admin_dsn) as connection:
        await connection.execute("SET LOCAL search_path = workbench, pg_catalog")
        for statement in statements:
            changed = await connection.execute(statement.encode())
            assert changed.rowcount, "there is nothing of this kind to spoil"
        rows = await stored.read(connection, installation.keyring, sent.values())
        await connection.rollback()
    return rows


def assert_seen(evidence: Evidence, invariant: str, words: str) -> None:
    violations = judge(invariant, evidence).violations
    assert [violation for violation in violations if words in violation], violations[:5]


Forgery = Callable[[Attempt], Attempt]


def answered(answer: Answer) -> Forgery:
    return lambda attempt: msgspec.structs.replace(attempt, answer=answer)


FORGED: list[tuple[str, str, Answer, Forgery]] = [
    ("V1", "before its commit", Answer.NEW, lambda each: msgspec.structs.replace(each, ended=each.began - 10**6)),
    ("V1", "lost", Answer.NEW, lambda each: msgspec.structs.replace(each, key="another")),
    ("V2", "was new 2 times", Answer.DUPLICATE, answered(Answer.NEW)),
    ("V2", "but was never accepted", Answer.NEW, answered(Answer.DUPLICATE)),
    ("V3", "no attempt can have stored it", Answer.NEW, answered(Answer.UNSENT)),
    ("V22", "was answered with ('x',)", Answer.NEW, lambda each: msgspec.structs.replace(each, warnings=("x",))),
    ("V24", "ended after 3600.", Answer.NEW, lambda each: msgspec.structs.replace(each, began=0, ended=HOUR_US)),
    (
        "V24",
        "of a half-closed client got no answer",
        Answer.NEW,
        lambda each: msgspec.structs.replace(each, answer=Answer.BROKEN, half_closed=True, began=0, ended=1),
    ),
    ("answers", "never got an answer", Answer.NEW, answered(Answer.TIMED_OUT)),
    ("answers", "was answered rejected", Answer.NEW, answered(Answer.REJECTED)),
    ("answers", "was answered strange", Answer.NEW, answered(Answer.STRANGE)),
]


@pytest.mark.parametrize(("invariant", "words", "of", "forgery"), FORGED)
def test_a_forged_log_is_detected(
    finished_run: FinishedRun, invariant: str, words: str, of: Answer, forgery: Forgery
) -> None:
    evidence = finished_run.run.evidence
    forged = forge(evidence, simple(evidence, of), forgery)
    assert_seen(msgspec.structs.replace(evidence, log=forged), invariant, words)


def simple(evidence: Evidence, answer: Answer) -> Attempt:
    """Return an attempt with this answer; its event is live, has its own key, is of a contact that was not erased, and
    all attempts of it were accepted.
    """
    senders = Counter((sent.org, sent.key) for sent in evidence.log.sent.values())
    for attempt in evidence.log.attempts:
        sent, tries = evidence.log.sent[attempt.org, attempt.number], evidence.attempts[attempt.org, attempt.number]
        live = sent.kind is EventKind.LIVE and sent.key is not None and senders[sent.org, sent.key] == 1
        alone = answer is Answer.DUPLICATE or len(tries) == 1
        contacts = {event.contact_id for event in evidence.by_key[attempt.org, attempt.key or ""]}
        if (
            live
            and alone
            and contacts.isdisjoint(evidence.erased)
            and attempt.answer is answer
            and {try_.answer for try_ in tries} <= ACCEPTED
        ):
            return attempt
    raise AssertionError(f"no event was answered {answer}")


def forge(evidence: Evidence, victim: Attempt, forgery: Forgery) -> Log:
    attempts = [forgery(attempt) if attempt is victim else attempt for attempt in evidence.log.attempts]
    return msgspec.structs.replace(evidence.log, attempts=attempts)


Copies = Callable[[Delivery], list[Delivery]]


def later(copy: Delivery, by: int) -> Delivery:
    return msgspec.structs.replace(copy, at=copy.at + by)


STRAYED: list[tuple[str, str, Copies]] = [
    ("V9", "no receiver accepted it", lambda copy: []),
    ("V9", "no receiver accepted it", lambda copy: [msgspec.structs.replace(copy, reaction=Reaction.REFUSING)]),
    ("V9", "doubled", lambda copy: [copy, later(copy, HOUR_US)]),
    ("V9", "copies of message", lambda copy: [copy, msgspec.structs.replace(copy, body=b"{}")]),
    ("V10", "has no row", lambda copy: [msgspec.structs.replace(copy, id="00000000-0000-0000-0000-000000000000")]),
    ("V10", "left before its row", lambda copy: [later(copy, -HOUR_US)]),
    ("V11", "without a lease of its own", lambda copy: [later(copy, HOUR_US)]),
    ("V11", "without a lease of its own", lambda copy: [copy, copy]),
]


@pytest.mark.parametrize(("invariant", "words", "copies"), STRAYED)
def test_changed_deliveries_are_detected(finished_run: FinishedRun, invariant: str, words: str, copies: Copies) -> None:
    evidence = finished_run.run.evidence
    sent = {message.id for message in evidence.stored.messages if message.status == "sent"}
    lone = next(copy for message_id, (copy, *rest) in evidence.copies.items() if message_id in sent and not rest)
    arrivals = [arrival for copy in evidence.arrivals for arrival in (copies(copy) if copy is lone else [copy])]
    assert_seen(msgspec.structs.replace(evidence, arrivals=arrivals), invariant, words)


def test_an_accepted_message_recorded_as_failed_is_detected(finished_run: FinishedRun) -> None:
    evidence = finished_run.run.evidence
    failed = {message.id for message in evidence.stored.messages if message.status == "failed"}
    arrivals = [
        msgspec.structs.replace(arrival, reaction=Reaction.SILENT) if arrival.id in failed else arrival
        for arrival in evidence.arrivals
    ]
    assert_seen(msgspec.structs.replace(evidence, arrivals=arrivals), "V9", "was taken, and is failed")


def test_a_step_of_stopped_work_is_detected(finished_run: FinishedRun) -> None:
    evidence = finished_run.run.evidence
    stopped = [SwitchRow(automation.org, automation.id, False, 0) for automation in evidence.automations]
    stored = msgspec.structs.replace(evidence.stored, switches=stopped)
    assert_seen(msgspec.structs.replace(evidence, stored=stored), "V15", "while stopped")


@pytest.mark.parametrize("invariant", sorted(INVARIANTS.keys() - {"processes", "V17"}))
def test_an_invariant_that_checks_nothing_is_violated(finished_run: FinishedRun, invariant: str) -> None:
    nothing = StoredRows(*([] for _ in StoredRows.__struct_fields__))
    empty = msgspec.structs.replace(
        finished_run.run.evidence,
        log=Log(),
        stored=nothing,
        counts=ServiceCounts({}, {}, {}),
        automations=[],
        arrivals=[],
        searched=[],
        journeys=None,
    )
    assert_seen(empty, invariant, "nothing was checked")


@pytest.mark.parametrize(
    ("invariant", "change"),
    [("V17", {"left": ["advisory lock held by 7"]}), ("processes", {"complaints": ["engine-0 ended by itself"]})],
)
def test_open_locks_and_ended_processes_are_detected(
    finished_run: FinishedRun, invariant: str, change: dict[str, Any]
) -> None:
    assert_seen(msgspec.structs.replace(finished_run.run.evidence, **change), invariant, change.popitem()[1][0])


def test_a_switch_without_effect_is_detected(finished_run: FinishedRun) -> None:
    evidence = finished_run.run.evidence
    forgotten = msgspec.structs.replace(evidence.stored, switches=[])
    assert_seen(msgspec.structs.replace(evidence, stored=forgotten), "V5", "switched 0 times")
