"""A checker that cannot fail is worth nothing: a healthy outcome is spoilt on purpose, and the right invariant says so."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import psycopg
import pytest

from tests.torture import stored
from tests.torture.conftest import Tortured
from tests.torture.evidence import Evidence
from tests.torture.invariants import check
from tests.torture.log import ACCEPTED, Answer, Attempt, Log, Sort
from tests.torture.stored import Stored

ORG = "acme"
ONE_EVENT = (
    f"id = (SELECT max(e.id::text)::uuid FROM events e JOIN organizations o ON o.id = e.org_id WHERE o.name = '{ORG}')"
)
ONE_ENTRY = "id = (SELECT max(id::text)::uuid FROM entries)"
ONE_CONTACT = "id = (SELECT max(id::text)::uuid FROM contacts WHERE tags <> '{}' AND attributes ? 'plan')"
ONE_OWNER = "(org_id, kind, value_digest) = (SELECT org_id, kind, value_digest FROM identities LIMIT 1)"
ONE_CONFLICT = "event_id = (SELECT event_id FROM identity_conflicts LIMIT 1)"
UNENTERED = "ALTER TABLE entries DROP CONSTRAINT entries_org_id_automation_id_event_id_key"


def another_event(payload: str = "payload", key: str = "idempotency_key") -> str:
    return f"""
        INSERT INTO events SELECT org_id, gen_random_uuid(), contact_id, event, occurred_at, created_at, {payload}, {key},
                                  wallet_address, email, external_id
        FROM events WHERE {ONE_EVENT}"""


ANOTHER_ENTRY = f"""
    INSERT INTO entries (org_id, id, automation_id, event_id, event_created_at, contact_id, state, due_at, created_at, updated_at)
    SELECT org_id, gen_random_uuid(), automation_id, event_id, event_created_at, contact_id, state, due_at, created_at, updated_at
    FROM entries WHERE {ONE_ENTRY}"""

SPOILT: list[tuple[str, str, list[str]]] = [
    ("V1", "lost", [f"DELETE FROM events WHERE {ONE_EVENT}"]),
    ("V1", "doubled", [another_event()]),
    ("V1", "other payload", [f"UPDATE events SET payload = payload - 'amount' WHERE {ONE_EVENT}"]),
    ("V1", "other identifiers", [f"UPDATE events SET external_id = 'somebody else' WHERE {ONE_EVENT}"]),
    ("V1", "lost", ["DELETE FROM dry_runs WHERE id = (SELECT id FROM dry_runs LIMIT 1)"]),
    ("V3", "never sent", [another_event(payload="jsonb_build_object('n', -5)", key="'another'")]),
    ("V3", "though it was invalid", [another_event(payload="jsonb_build_object('n', INVALID)", key="'another'")]),
    ("V3", "under the key another", [another_event(key="'another'")]),
    ("V4", "has 0 keys", [f"DELETE FROM idempotency_keys WHERE event_id = (SELECT id FROM events WHERE {ONE_EVENT})"]),
    ("V4", "does not exist", [f"DELETE FROM events WHERE {ONE_EVENT}"]),
    ("V4", "no contact", [f"UPDATE events SET contact_id = gen_random_uuid() WHERE {ONE_EVENT}"]),
    ("V5", "0 times", [f"DELETE FROM entries WHERE {ONE_ENTRY}"]),
    ("V5", "does not exist so", [f"UPDATE entries SET contact_id = gen_random_uuid() WHERE {ONE_ENTRY}"]),
    ("V5", "2 times", [UNENTERED, ANOTHER_ENTRY]),
    ("V6", "doubled", [UNENTERED, ANOTHER_ENTRY]),
    ("V6", "is pending", [f"UPDATE entries SET state = 'pending' WHERE {ONE_ENTRY}"]),
    ("V6", "is dead", [f"UPDATE entries SET state = 'dead' WHERE {ONE_ENTRY}"]),
    ("V7", "is on contact", [f"UPDATE events SET contact_id = gen_random_uuid() WHERE {ONE_EVENT}"]),
    ("V7", "identifier", [f"DELETE FROM identities WHERE {ONE_OWNER}"]),
    ("V7", "conflicts", [f"DELETE FROM identity_conflicts WHERE {ONE_CONFLICT}"]),
    ("V7", "contact", [f"UPDATE contacts SET wallet_address = 'stolen' WHERE {ONE_CONTACT}"]),
    ("V8", "contact", [f"UPDATE contacts SET attributes = attributes - 'plan' WHERE {ONE_CONTACT}"]),
    ("V8", "contact", [f'UPDATE contacts SET attributes = attributes || \'{{"plan": "none"}}\' WHERE {ONE_CONTACT}']),
    ("V9", "has the tags []", [f"UPDATE contacts SET tags = '{{}}' WHERE {ONE_CONTACT}"]),
    ("V20", "count of", [f"DELETE FROM events WHERE {ONE_EVENT}"]),
]


@pytest.mark.parametrize(("invariant", "words", "statements"), SPOILT)
async def test_what_is_spoilt_in_the_database_is_seen(
    tortured: Tortured, invariant: str, words: str, statements: list[str]
) -> None:
    evidence = tortured.run.evidence
    invalid = next(each.number for each in evidence.log.sent.values() if (each.org, each.sort) == (ORG, Sort.INVALID))
    rows = await spoilt(tortured, [each.replace("INVALID", str(invalid)) for each in statements])
    assert_seen(msgspec.structs.replace(evidence, stored=rows), invariant, words)


async def spoilt(tortured: Tortured, statements: Iterable[str]) -> Stored:
    """Return what is stored after some statements, which are taken back."""
    installation, sent = tortured.installation, tortured.run.evidence.log.sent
    async with await psycopg.AsyncConnection.connect(installation.postgres.server.admin_dsn) as connection:
        await connection.execute("SET LOCAL search_path = workbench, pg_catalog")
        for statement in statements:
            changed = await connection.execute(statement.encode())
            assert changed.rowcount, "there is nothing of this kind to spoil"
        rows = await stored.read(connection, installation.keyring, sent.values())
        await connection.rollback()
    return rows


def assert_seen(evidence: Evidence, invariant: str, words: str) -> None:
    (verdict,) = [each for each in check(evidence) if each.name == invariant]
    assert [each for each in verdict.violations if words in each]


Forgery = Callable[[Attempt], Attempt]


def answered(answer: Answer) -> Forgery:
    return lambda attempt: msgspec.structs.replace(attempt, answer=answer)


FORGED: list[tuple[str, str, Answer, Forgery]] = [
    ("V1", "before its commit", Answer.NEW, lambda each: msgspec.structs.replace(each, ended=each.began - 10**6)),
    ("V1", "lost", Answer.NEW, lambda each: msgspec.structs.replace(each, key="another")),
    ("V2", "was new 2 times", Answer.DUPLICATE, answered(Answer.NEW)),
    ("V2", "duplicate of nothing", Answer.NEW, answered(Answer.DUPLICATE)),
    ("V3", "no attempt can have stored it", Answer.NEW, answered(Answer.UNSENT)),
    ("answers", "never got an answer", Answer.NEW, answered(Answer.TIMED_OUT)),
    ("answers", "was answered rejected", Answer.NEW, answered(Answer.REJECTED)),
    ("answers", "was answered strange", Answer.NEW, answered(Answer.STRANGE)),
]


@pytest.mark.parametrize(("invariant", "words", "of", "forgery"), FORGED)
def test_what_is_forged_in_the_log_is_seen(
    tortured: Tortured, invariant: str, words: str, of: Answer, forgery: Forgery
) -> None:
    evidence = tortured.run.evidence
    forged = forge(evidence, simple(evidence, of), forgery)
    assert_seen(msgspec.structs.replace(evidence, log=forged), invariant, words)


def simple(evidence: Evidence, answer: Answer) -> Attempt:
    """Return an attempt at a live event with a key of its own, answered so, all other attempts of which were accepted too."""
    for attempt in evidence.log.attempts:
        sent, tries = evidence.log.sent[attempt.org, attempt.number], evidence.attempts[attempt.org, attempt.number]
        live = sent.sort is Sort.LIVE and sent.key is not None
        alone = answer is Answer.DUPLICATE or len(tries) == 1
        if live and alone and attempt.answer is answer and {each.answer for each in tries} <= ACCEPTED:
            return attempt
    raise AssertionError(f"no event was answered {answer}")


def forge(evidence: Evidence, victim: Attempt, forgery: Forgery) -> Log:
    attempts = [forgery(each) if each is victim else each for each in evidence.log.attempts]
    return msgspec.structs.replace(evidence.log, attempts=attempts)


@pytest.mark.parametrize(
    ("invariant", "change"),
    [("V17", {"left": ["advisory lock held by 7"]}), ("calm", {"complaints": ["engine-0 ended by itself"]})],
)
def test_what_processes_leave_behind_is_seen(tortured: Tortured, invariant: str, change: dict[str, Any]) -> None:
    assert_seen(msgspec.structs.replace(tortured.run.evidence, **change), invariant, change.popitem()[1][0])


def test_a_switch_that_is_not_felt_is_seen(tortured: Tortured) -> None:
    evidence = tortured.run.evidence
    forgotten = msgspec.structs.replace(evidence.stored, switches=[])
    assert_seen(msgspec.structs.replace(evidence, stored=forgotten), "V5", "switched 0 times")
