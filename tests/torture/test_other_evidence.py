"""Damaged evidence other than events: sockets, canaries, keys, erasures, answers; and the findings of a search."""

from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
import pytest

from api.auth.key_format import KINDS, make
from api.clock import token
from tests.torture.conftest import FinishedRun
from tests.torture.evidence import Evidence
from tests.torture.invariants import judge
from tests.torture.leaks import SECRET, LeakDetector, canary
from tests.torture.log import PROBE, Answer, Reply, SocketVisit
from tests.torture.nemesis import Fault
from tests.torture.rows import ErasureRow, MessageRow, RevokedRow
from tests.torture.secret_search import in_database, in_text
from tests.torture.test_invariants import assert_seen

LATER_US = 3_600_000_000


def with_log(evidence: Evidence, **changes: Any) -> Evidence:
    return msgspec.structs.replace(evidence, log=msgspec.structs.replace(evidence.log, **changes))


def with_stored(evidence: Evidence, **changes: Any) -> Evidence:
    return msgspec.structs.replace(evidence, stored=msgspec.structs.replace(evidence.stored, **changes))


Forgery = Callable[[SocketVisit], SocketVisit]


def pushed_twice(visit: SocketVisit) -> SocketVisit:
    return msgspec.structs.replace(visit, pushes=[*visit.pushes, visit.pushes[-1]])


def pushed_early(visit: SocketVisit) -> SocketVisit:
    pushes = [msgspec.structs.replace(push, at=push.at - LATER_US) for push in visit.pushes]
    return msgspec.structs.replace(visit, pushes=pushes)


def of_another_org(visit: SocketVisit) -> SocketVisit:
    return msgspec.structs.replace(visit, org="globex" if visit.org == "acme" else "acme")


def late(visit: SocketVisit) -> SocketVisit:
    return msgspec.structs.replace(visit, opened=visit.opened + LATER_US)


LINES: list[tuple[str, Forgery]] = [
    ("doubled", pushed_twice),
    ("before it was stored", pushed_early),
    ("but was for another", of_another_org),
    ("was pushed again, although", late),
    ("was closed with 1011", lambda visit: msgspec.structs.replace(visit, code=1011)),
    ("was closed with 4401", lambda visit: msgspec.structs.replace(visit, code=4401)),
]


@pytest.mark.parametrize(("words", "forgery"), LINES)
def test_a_wrong_push_is_detected(finished_run: FinishedRun, words: str, forgery: Forgery) -> None:
    evidence = finished_run.run.evidence
    delivered = {message.id for message in evidence.stored.messages if message.delivered is not None}
    visits = [forgery(visit) if is_good(visit, delivered) else visit for visit in evidence.log.visits]
    assert_seen(with_log(evidence, visits=visits), "V16", words)


def is_good(visit: SocketVisit, delivered: set[str]) -> bool:
    return not visit.key and bool(visit.pushes) and all(push.id in delivered for push in visit.pushes)


def test_a_gap_in_the_pushes_is_detected(finished_run: FinishedRun) -> None:
    evidence = finished_run.run.evidence
    visit = next(candidate for candidate in evidence.log.visits if len(candidate.pushes) > 1)
    first = min(visit.pushes, key=lambda push: position(evidence, push.id)).id
    left = [push for push in visit.pushes if push.id != first]
    pushed = {push.id for push in visit.pushes}
    messages = [
        msgspec.structs.replace(message, committed=0) if message.id == first else message
        for message in evidence.stored.messages
        if message.id in pushed
    ]
    alone = with_stored(
        with_log(evidence, visits=[msgspec.structs.replace(visit, pushes=left, acknowledged=[])]),
        messages=messages,
        erasures=[],
    )
    assert_seen(msgspec.structs.replace(alone, faults=[]), "V16", f"was sent before {first}")


def position(evidence: Evidence, message_id: str) -> tuple[int, str]:
    (row,) = (message for message in evidence.stored.messages if message.id == message_id)
    return row.created, row.id


def test_work_for_erased_contacts_is_detected(finished_run: FinishedRun) -> None:
    evidence = finished_run.run.evidence
    erasures = [ErasureRow(contact.org, contact.id, 1, 1) for contact in evidence.stored.contacts]
    forged = with_stored(evidence, erasures=erasures)
    assert_seen(forged, "V15", "after its contact was erased")
    assert_seen(forged, "V15", "left after its contact was erased")
    erased = [msgspec.structs.replace(erasure, ended=0) for erasure in evidence.log.erased]
    pushed = {push.id for visit in evidence.log.visits for push in visit.pushes}
    erased += [of_contact(erased[0], message) for message in evidence.stored.messages if message.id in pushed]
    assert_seen(with_log(forged, erased=erased), "V15", "was pushed after its contact was erased")


def of_contact(erased: Any, message: MessageRow) -> Any:
    return msgspec.structs.replace(erased, contact_id=message.contact_id)


def test_a_key_accepted_for_too_long_or_too_short_is_detected(finished_run: FinishedRun) -> None:
    evidence = finished_run.run.evidence
    assert {attempt.answer for attempt in evidence.log.attempts if attempt.temporary_key} >= {
        Answer.NEW,
        Answer.REVOKED,
    }
    temporary_keys = {
        *(attempt.temporary_key for attempt in evidence.log.attempts),
        *(visit.key for visit in evidence.log.visits),
    }
    revoked = [RevokedRow(key_id, 1) for key_id in temporary_keys]
    assert_seen(with_stored(evidence, revoked=revoked), "C16", "was accepted")
    # In a short run, perhaps no wallet with a temporary key gets a push.
    key_id = next(filter(None, temporary_keys))
    with_key = [msgspec.structs.replace(visit, key=key_id) for visit in evidence.log.visits]
    pushed = with_stored(with_log(evidence, visits=with_key), revoked=revoked)
    assert_seen(pushed, "C16", "had a push after its key was revoked")
    assert_seen(with_stored(evidence, revoked=[]), "C16", "was refused with a valid key")


def test_an_unexpected_answer_is_reported(finished_run: FinishedRun) -> None:
    evidence = finished_run.run.evidence
    strange = Reply("acme", "pages", 0, 1, 500, "GET /usage: 500 oh")
    assert_seen(with_log(evidence, replies=[*evidence.log.replies, strange]), "answers", "GET /usage: 500 oh")


@pytest.mark.parametrize(("way", "seconds"), [("pages", 7), (PROBE, 4)])
def test_a_late_answer_is_reported(finished_run: FinishedRun, way: str, seconds: int) -> None:
    evidence = msgspec.structs.replace(finished_run.run.evidence, slack=1_000_000)
    late = Reply("acme", way, 0, seconds * 1_000_000, 503, api=1)
    assert_seen(with_log(evidence, replies=[late]), "V24", f"acme {way} ended after {seconds}.0 s")
    frozen = msgspec.structs.replace(evidence, faults=[Fault("api", "freeze", 1, 0, 3_000_000)])
    assert judge("V24", with_log(frozen, attempts=[], replies=[late])).violations == []


@pytest.mark.parametrize("way", ["SQL", "socket", "events"])
def test_a_canary_of_another_organization_is_reported(finished_run: FinishedRun, way: str) -> None:
    leak_detector = LeakDetector()
    leak_detector.check_response("acme", way, f"… {canary('globex')} …")
    assert_seen(
        with_log(finished_run.run.evidence, leak_detector=leak_detector),
        "V18",
        f"a response of {way} to acme has the canary of globex",
    )


@pytest.mark.parametrize("channel", ["webhook", "email"])
def test_a_canary_that_arrives_at_another_receiver_is_reported(finished_run: FinishedRun, channel: str) -> None:
    evidence = finished_run.run.evidence
    victim = next(
        arrival
        for arrival in evidence.arrivals
        if arrival.channel == channel and canary("acme").encode() in arrival.body
    )
    body = victim.body.replace(canary("acme").encode(), canary("globex").encode())
    arrivals = [
        msgspec.structs.replace(arrival, body=body) if arrival is victim else arrival for arrival in evidence.arrivals
    ]
    assert_seen(msgspec.structs.replace(evidence, arrivals=arrivals), "V18", "has the canary of {'globex'}")


def test_a_channel_without_responses_is_reported(finished_run: FinishedRun) -> None:
    assert_seen(
        with_log(finished_run.run.evidence, leak_detector=LeakDetector()),
        "V18",
        "acme never received its own canary through SQL",
    )


KEYS = [make(kind, "acme", token(32)) for kind in KINDS]


SECRETS = dict(zip(KINDS, KEYS, strict=True)) | {  # named, so that the test ids are equal in every xdist worker
    "webhook": "whsec_" + "a" * 32,
    "root": SECRET,
    "address": "Person12@Example.com",
    "value": canary("acme"),
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_secret_in_a_log_or_a_refusal_is_detected(finished_run: FinishedRun, secret: str) -> None:
    evidence, line = finished_run.run.evidence, f'{{"word": "oops", "reason": "{secret}"}}'
    searched = [in_text("api-0.log", line)]
    assert_seen(msgspec.structs.replace(evidence, searched=searched), "V19", "in api-0.log: ")
    leak_detector = LeakDetector()
    leak_detector.check_rejection("acme", "events", line)
    assert_seen(with_log(evidence, leak_detector=leak_detector), "V19", "a response of events (refused) to acme has ")


def test_a_session_token_in_a_log_and_an_address_in_an_answer_are_detected() -> None:
    assert in_text("a", "token=abc", ["abc"]).leaks == ["the token abc…"]
    leak_detector = LeakDetector()
    leak_detector.check_response("acme", "SQL", "person3@example.com")
    assert [leak.what for leak in leak_detector.leaked] == ["person3@example.com"]


LEAKS = [
    ("contacts.external_id", f"UPDATE contacts SET external_id = '{KEYS[0]}'"),
    ("contacts.attributes", 'UPDATE contacts SET attributes = \'{"mail": "Person7@example.com"}\''),
    ("entries.last_error", f"UPDATE entries SET last_error = 'refused: {canary('acme')}'"),
    ("webhook_secrets.secret", f"UPDATE webhook_secrets SET secret = 'whsec_{'a' * 32}'"),
]


@pytest.mark.parametrize(("place", "statement"), LEAKS, ids=[place for place, _ in LEAKS])
async def test_unencrypted_values_in_the_database_are_detected(
    finished_run: FinishedRun, place: str, statement: str
) -> None:
    async with await psycopg.AsyncConnection.connect(finished_run.installation.postgres.server.admin_dsn) as connection:
        await connection.execute("SET LOCAL search_path = workbench, pg_catalog")
        await connection.execute(statement.encode())
        leaking = [searched.place for searched in await in_database(connection) if searched.leaks]
        await connection.rollback()
    assert leaking == [place]


def test_every_output_is_searched(finished_run: FinishedRun) -> None:
    places = {searched.place for searched in finished_run.run.evidence.searched}
    assert places >= {"api-0.log", "engine-0.log", "postgres.log", "metrics", "events.payload"}
