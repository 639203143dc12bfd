"""Damaged evidence other than events: sockets, canaries, keys, erasures, answers; and the findings of a search."""

from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
import pytest

from api.auth.key_format import KINDS, make
from api.clock import token
from tests.torture.conftest import Tortured
from tests.torture.evidence import Evidence
from tests.torture.listening import SECRET, Ears, canary
from tests.torture.log import Answer, Line, Reply
from tests.torture.rows import ErasureRow, MessageRow, RevokedRow
from tests.torture.searching import in_database, in_text
from tests.torture.test_invariants import assert_seen

LATER_US = 3_600_000_000


def with_log(evidence: Evidence, **changes: Any) -> Evidence:
    return msgspec.structs.replace(evidence, log=msgspec.structs.replace(evidence.log, **changes))


def with_stored(evidence: Evidence, **changes: Any) -> Evidence:
    return msgspec.structs.replace(evidence, stored=msgspec.structs.replace(evidence.stored, **changes))


Forgery = Callable[[Line], Line]


def again(line: Line) -> Line:
    return msgspec.structs.replace(line, pushes=[*line.pushes, line.pushes[-1]])


def early(line: Line) -> Line:
    pushes = [msgspec.structs.replace(push, at=push.at - LATER_US) for push in line.pushes]
    return msgspec.structs.replace(line, pushes=pushes)


def to_another(line: Line) -> Line:
    return msgspec.structs.replace(line, org="globex" if line.org == "acme" else "acme")


def late(line: Line) -> Line:
    return msgspec.structs.replace(line, opened=line.opened + LATER_US)


LINES: list[tuple[str, Forgery]] = [
    ("doubled", again),
    ("before it was stored", early),
    ("whose it is not", to_another),
    ("came again, though", late),
    ("was closed with 1011", lambda line: msgspec.structs.replace(line, code=1011)),
    ("was closed with 4401", lambda line: msgspec.structs.replace(line, code=4401)),
]


@pytest.mark.parametrize(("words", "forgery"), LINES)
def test_a_push_that_should_not_have_come_is_seen(tortured: Tortured, words: str, forgery: Forgery) -> None:
    evidence = tortured.run.evidence
    delivered = {message.id for message in evidence.stored.messages if message.delivered is not None}
    lines = [forgery(line) if is_good(line, delivered) else line for line in evidence.log.lines]
    assert_seen(with_log(evidence, lines=lines), "V16", words)


def is_good(line: Line, delivered: set[str]) -> bool:
    return not line.key and bool(line.pushes) and all(push.id in delivered for push in line.pushes)


def test_a_gap_in_what_came_is_seen(tortured: Tortured) -> None:
    evidence = tortured.run.evidence
    line = next(candidate for candidate in evidence.log.lines if len(candidate.pushes) > 1)
    first = min(line.pushes, key=lambda push: place(evidence, push.id)).id
    left = [push for push in line.pushes if push.id != first]
    messages = [
        msgspec.structs.replace(message, committed=0) if message.id == first else message
        for message in evidence.stored.messages
    ]
    alone = with_stored(
        with_log(evidence, lines=[msgspec.structs.replace(line, pushes=left, acknowledged=[])]), messages=messages
    )
    assert_seen(msgspec.structs.replace(alone, faults=[]), "V16", f"came before {first}")


def place(evidence: Evidence, message_id: str) -> tuple[int, str]:
    (row,) = (message for message in evidence.stored.messages if message.id == message_id)
    return row.created, row.id


def test_what_is_done_for_the_erased_is_seen(tortured: Tortured) -> None:
    evidence = tortured.run.evidence
    erasures = [ErasureRow(contact.org, contact.id, 1, 1) for contact in evidence.stored.contacts]
    forged = with_stored(evidence, erasures=erasures)
    assert_seen(forged, "V15", "after its contact was erased")
    assert_seen(forged, "V15", "left after its contact was erased")
    erased = [msgspec.structs.replace(erasure, ended=0) for erasure in evidence.log.erased]
    pushed = {push.id for line in evidence.log.lines for push in line.pushes}
    erased += [of_contact(erased[0], message) for message in evidence.stored.messages if message.id in pushed]
    assert_seen(with_log(forged, erased=erased), "V15", "was pushed after its contact was erased")


def of_contact(erased: Any, message: MessageRow) -> Any:
    return msgspec.structs.replace(erased, contact_id=message.contact_id)


def test_a_key_that_is_taken_too_long_or_not_long_enough_is_seen(tortured: Tortured) -> None:
    evidence = tortured.run.evidence
    assert {attempt.answer for attempt in evidence.log.attempts if attempt.lent} >= {Answer.NEW, Answer.REVOKED}
    lent = {*(attempt.lent for attempt in evidence.log.attempts), *(line.key for line in evidence.log.lines)}
    early = [RevokedRow(key_id, 1) for key_id in lent]
    assert_seen(with_stored(evidence, revoked=early), "C16", "was accepted")
    assert_seen(with_stored(evidence, revoked=early), "C16", "had a push after its key was revoked")
    assert_seen(with_stored(evidence, revoked=[]), "C16", "was refused with a key that was good")


def test_an_unexpected_answer_is_reported(tortured: Tortured) -> None:
    evidence = tortured.run.evidence
    strange = Reply("acme", "pages", 0, 1, 500, "GET /usage: 500 oh")
    assert_seen(with_log(evidence, replies=[*evidence.log.replies, strange]), "answers", "GET /usage: 500 oh")


@pytest.mark.parametrize("way", ["SQL", "socket", "events"])
def test_a_canary_of_another_organization_is_reported(tortured: Tortured, way: str) -> None:
    ears = Ears()
    ears.listen("acme", way, f"… {canary('globex')} …")
    assert_seen(with_log(tortured.run.evidence, ears=ears), "V18", f"acme heard by {way} the canary of globex")


@pytest.mark.parametrize("channel", ["webhook", "email"])
def test_a_canary_that_arrives_at_another_receiver_is_reported(tortured: Tortured, channel: str) -> None:
    evidence = tortured.run.evidence
    victim = next(
        arrival
        for arrival in evidence.arrivals
        if arrival.channel == channel and canary("acme").encode() in arrival.body
    )
    spoken = victim.body.replace(canary("acme").encode(), canary("globex").encode())
    arrivals = [
        msgspec.structs.replace(arrival, body=spoken) if arrival is victim else arrival for arrival in evidence.arrivals
    ]
    assert_seen(msgspec.structs.replace(evidence, arrivals=arrivals), "V18", "speaks for {'globex'}")


def test_a_channel_without_responses_is_reported(tortured: Tortured) -> None:
    assert_seen(with_log(tortured.run.evidence, ears=Ears()), "V18", "acme never heard its own canary by SQL")


KEYS = [make(kind, "acme", token(32)) for kind in KINDS]


SECRETS = dict(zip(KINDS, KEYS, strict=True)) | {  # named, so that the test ids are equal in every xdist worker
    "webhook": "whsec_" + "a" * 32,
    "root": SECRET,
    "address": "Person12@Example.com",
    "value": canary("acme"),
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_secret_in_a_log_or_a_refusal_is_seen(tortured: Tortured, secret: str) -> None:
    evidence, line = tortured.run.evidence, f'{{"word": "oops", "reason": "{secret}"}}'
    searched = [in_text("api-0.log", line)]
    assert_seen(msgspec.structs.replace(evidence, searched=searched), "V19", "in api-0.log: ")
    ears = Ears()
    ears.listen_to_refusal("acme", "events", line)
    assert_seen(with_log(evidence, ears=ears), "V19", "acme was told by refusal of events: ")


def test_the_token_of_a_session_in_a_log_and_an_address_in_an_answer_are_seen() -> None:
    assert in_text("a", "token=abc", ["abc"]).leaks == ["the token abc…"]
    ears = Ears()
    ears.listen("acme", "SQL", "person3@example.com")
    assert [overheard.what for overheard in ears.leaked] == ["person3@example.com"]


LEAKS = [
    ("contacts.external_id", f"UPDATE contacts SET external_id = '{KEYS[0]}'"),
    ("contacts.attributes", 'UPDATE contacts SET attributes = \'{"mail": "Person7@example.com"}\''),
    ("entries.last_error", f"UPDATE entries SET last_error = 'refused: {canary('acme')}'"),
    ("webhook_secrets.secret", f"UPDATE webhook_secrets SET secret = 'whsec_{'a' * 32}'"),
]


@pytest.mark.parametrize(("place", "statement"), LEAKS, ids=[place for place, _ in LEAKS])
async def test_what_stands_in_clear_in_the_database_is_found(tortured: Tortured, place: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(tortured.installation.postgres.server.admin_dsn) as connection:
        await connection.execute("SET LOCAL search_path = workbench, pg_catalog")
        await connection.execute(statement.encode())
        leaking = [searched.place for searched in await in_database(connection) if searched.leaks]
        await connection.rollback()
    assert leaking == [place]


def test_all_that_was_written_is_searched(tortured: Tortured) -> None:
    places = {searched.place for searched in tortured.run.evidence.searched}
    assert places >= {"api-0.log", "engine-0.log", "postgres.log", "metrics", "events.payload"}
