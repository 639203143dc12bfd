"""The invariants of the marketer's organization find what is planted in good evidence."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.torture.journeys import (
    CHAT,
    DIGEST,
    DOMAIN,
    LETTER,
    MINUTELY,
    ORG,
    PATIENT,
    SEGMENT_JOINED,
    JourneyBroadcast,
    JourneyClaim,
    JourneyEntry,
    JourneyEvent,
    JourneyEvidence,
    JourneyFindings,
    JourneyLog,
    JourneyMessage,
    JourneyStart,
    JourneyStep,
    Notice,
    StopSpan,
    belongs_here,
    closed_addresses_get_nothing,
    digests_have_each_event_once,
    journeys_end,
    journeys_reach_receivers,
    starts_have_one_entry,
    stops_hold,
)
from tests.torture.sinks import Delivery, Reaction

S = 1_000_000
BROADCAST, RUN = "0" * 24, "1" * 24


def entry(name: str, automation: str, event_id: str, joined: str | None = None) -> JourneyEntry:
    state, outcome = ("completed", "completed") if joined is None else ("cancelled", "joined")
    return JourneyEntry(name, automation, event_id, "ann", state, outcome, joined)


def message(name: str, automation: str, channel: str, body: str | None = None) -> JourneyMessage:
    return JourneyMessage(name, automation, name, "ann", channel, "sent", body)


def arrived(name: str, channel: str, target: str, at: int) -> Delivery:
    return Delivery(channel, name, at, target, b"", Reaction.NORMAL)


def good_run() -> JourneyEvidence:
    """Return a run in which Ann got a letter, a digest of two notes, two later messages and a chat message."""
    log = JourneyLog(
        notes={1, 2},
        chats={3},
        bounced=[Notice("ann", 50 * S, 51 * S)],
        declined=[Notice("bob", 50 * S, 51 * S)],
        stops=[StopSpan(60 * S, 70 * S)],
    )
    entries = [
        entry("letter", LETTER, BROADCAST + "01"),
        entry("entered", SEGMENT_JOINED, "entered"),
        entry("minutely", MINUTELY, RUN + "01"),
        entry("digest", DIGEST, "note1"),
        entry("joined", DIGEST, "note2", "digest"),
        entry("patient1", PATIENT, "note1"),
        entry("patient2", PATIENT, "note2"),
        entry("chat", CHAT, "chat3"),
    ]
    starts = [
        JourneyStart(BROADCAST + "01", "ann", "broadcast", LETTER),
        JourneyStart("entered", "ann", "segment_entered", None),
        JourneyStart(RUN + "01", "ann", "schedule", MINUTELY),
    ]
    broadcasts = [
        JourneyBroadcast(BROADCAST + "00", LETTER, "done", 1, 1, False, 0),
        JourneyBroadcast(RUN + "00", MINUTELY, "done", 1, 1, True, 0),
    ]
    events = [
        JourneyEvent("note1", "note", "ann", {"n": 1}),
        JourneyEvent("note2", "note", "ann", {"n": 2}),
        JourneyEvent("chat3", "chat", "ann", {"n": 3}),
        JourneyEvent("click", "link.clicked", "ann", {"messageId": "letter"}),
    ]
    messages = [
        message("letter", LETTER, "email"),
        message("digest", DIGEST, "webhook", '{"ns": "1 2 "}'),
        message("patient1", PATIENT, "webhook", "{}"),
        message("patient2", PATIENT, "webhook", "{}"),
        message("chat", CHAT, "connection", "{}"),
    ]
    arrivals = [
        arrived("letter", "email", f"ann@{DOMAIN}", 10 * S),
        *(arrived(name, "webhook", f"/{ORG}/hook", 10 * S) for name in ("digest", "patient1", "patient2")),
        arrived("chat", "webhook", f"/{ORG}/chat", 10 * S),
    ]
    steps = [JourneyStep(item.id, "s0", "send_webhook", "sent", 9 * S, 11 * S) for item in messages]
    claims = [JourneyClaim(item.id, 9 * S) for item in messages]
    return JourneyEvidence(log, entries, starts, broadcasts, events, messages, steps, claims, arrivals)


INVARIANTS: list[Callable[[JourneyEvidence], JourneyFindings]] = [
    starts_have_one_entry,
    closed_addresses_get_nothing,
    stops_hold,
    digests_have_each_event_once,
    journeys_reach_receivers,
    journeys_end,
]


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_a_good_run_violates_nothing(invariant: Callable[[JourneyEvidence], JourneyFindings]) -> None:
    findings = list(invariant(good_run()))
    assert findings
    assert [finding for finding in findings if finding is not None] == []


def without(field: str, name: str) -> Callable[[JourneyEvidence], None]:
    def remove(run: JourneyEvidence) -> None:
        setattr(run, field, [row for row in getattr(run, field) if row.id != name])

    return remove


def changed(field: str, name: str, **values: Any) -> Callable[[JourneyEvidence], None]:
    def change(run: JourneyEvidence) -> None:
        rows = [msgspec.structs.replace(row, **values) if row.id == name else row for row in getattr(run, field)]
        setattr(run, field, rows)

    return change


def with_more(field: str, *rows: Any) -> Callable[[JourneyEvidence], None]:
    return lambda run: setattr(run, field, [*getattr(run, field), *rows])


def leaves_again(name: str, target: str, *, claimed: int, at: int) -> Callable[[JourneyEvidence], None]:
    def leave(run: JourneyEvidence) -> None:
        run.claims.append(JourneyClaim(name, claimed))
        run.arrivals.append(arrived(name, "email", target, at))

    return leave


PLANTED: list[tuple[Callable[[JourneyEvidence], JourneyFindings], str, Callable[[JourneyEvidence], None]]] = [
    (starts_have_one_entry, "has 0 entries", without("entries", "letter")),
    (starts_have_one_entry, "has 0 entries", without("entries", "entered")),
    (starts_have_one_entry, "has 2 entries", with_more("entries", entry("again", LETTER, BROADCAST + "01"))),
    (
        starts_have_one_entry,
        "doubled: broadcast",
        with_more("starts", JourneyStart(BROADCAST + "02", "ann", "broadcast", LETTER)),
    ),
    (starts_have_one_entry, "are (2, 1, 1)", changed("broadcasts", BROADCAST + "00", recipients=2)),
    (starts_have_one_entry, "is running", changed("broadcasts", BROADCAST + "00", state="running")),
    (
        starts_have_one_entry,
        "ran 2 times",
        with_more("broadcasts", JourneyBroadcast("2" * 26, MINUTELY, "stopped", 0, 0, True, 0)),
    ),
    (
        closed_addresses_get_nothing,
        "left to an address that was closed",
        leaves_again("letter", f"ann@{DOMAIN}", claimed=52 * S, at=53 * S),
    ),
    (
        closed_addresses_get_nothing,
        "left to an address that was closed",
        lambda run: run.log.declined.append(Notice("ann", 7 * S, 8 * S)),
    ),
    (
        stops_hold,
        "tagged at s0 during a stop",
        with_more("steps", JourneyStep("minutely", "s0", "add_tag", "tagged", 59 * S, 61 * S)),
    ),
    (
        stops_hold,
        "sent at s0 during a stop",
        with_more("steps", JourneyStep("chat", "s0", "send_via", "sent", 61 * S, 62 * S)),
    ),
    (stops_hold, "left during a stop", leaves_again("letter", f"ann@{DOMAIN}", claimed=61 * S, at=62 * S)),
    (digests_have_each_event_once, "has [1], not [1, 2]", changed("messages", "digest", body='{"ns": "1 "}')),
    (digests_have_each_event_once, "event 2 is in 0 digests", changed("messages", "digest", body='{"ns": "1 "}')),
    (digests_have_each_event_once, "has [1, 1, 2]", changed("messages", "digest", body='{"ns": "1 1 2 "}')),
    (
        digests_have_each_event_once,
        "event 2 is in 2 digests",
        with_more("messages", msgspec.structs.replace(message("other", DIGEST, "webhook"), body='{"ns": "2 "}')),
    ),
    (journeys_reach_receivers, f"event 3 has 0 messages of {CHAT}", without("messages", "chat")),
    (journeys_reach_receivers, f"event 2 has 0 messages of {PATIENT}", without("messages", "patient2")),
    (journeys_reach_receivers, "lost: message chat", without("arrivals", "chat")),
    (
        journeys_reach_receivers,
        "doubled: message letter",
        leaves_again("letter", f"ann@{DOMAIN}", claimed=12 * S, at=13 * S),
    ),
    (journeys_reach_receivers, "is queued in the end", changed("messages", "chat", status="queued")),
    (journeys_reach_receivers, "was taken, and is failed", changed("messages", "chat", status="failed")),
    (journeys_reach_receivers, "of an email to another contact", changed("events", "click", contact_id="bob")),
    (journeys_end, "is waiting", changed("entries", "chat", state="waiting")),
    (journeys_end, "POST /stop: 500", lambda run: run.log.strange.append("POST /stop: 500")),
]


@pytest.mark.parametrize(("invariant", "words", "plant"), PLANTED)
def test_a_planted_violation_is_found(
    invariant: Callable[[JourneyEvidence], JourneyFindings], words: str, plant: Callable[[JourneyEvidence], None]
) -> None:
    run = good_run()
    plant(run)
    violations = [finding for finding in invariant(run) if finding is not None]
    assert [violation for violation in violations if words in violation], violations


def test_a_message_that_was_under_way_may_arrive_after_a_bounce_and_during_a_stop() -> None:
    run = good_run()
    leaves_again("letter", f"ann@{DOMAIN}", claimed=49 * S, at=52 * S)(run)
    leaves_again("chat", f"/{ORG}/chat", claimed=59 * S, at=62 * S)(run)
    run.steps.append(JourneyStep("chat", "s0", "send_via", "sent", 59 * S, 63 * S))
    found = [finding for invariant in (closed_addresses_get_nothing, stops_hold) for finding in invariant(run)]
    assert [finding for finding in found if finding is not None] == []


def test_deliveries_of_the_campaigns_are_recognised_by_their_targets() -> None:
    targets = [f"/{ORG}/hook", f"p1@{DOMAIN}", "/acme/7", "person1@example.com"]
    assert [belongs_here(arrived("m", "email", target, 0)) for target in targets] == [True, True, False, False]
