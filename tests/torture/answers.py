"""Invariants of answers: what they name, and that they come, whatever is frozen."""

from collections.abc import Iterator

from tests.torture.evidence import Evidence, Findings, Span, overlap
from tests.torture.log import ACCEPTED, BOMB, PROBE, Answer, Attempt, EventKind, SentEvent
from tests.torture.traffic import MISSPELT

PROMISED_US = 5_000_000
PROBE_PROMISED_US = 2_000_000
BOMB_PROMISED_US = 15_000_000  # an analyst's query that waits for others and is then stopped


def answers_name_what_was_left_out(run: Evidence) -> Findings:
    """the answer to an accepted event names its misspelt fields, the first answer also the attributes for which the
    contact has no room, and no others
    """
    attributes = {contact.id: contact.attributes for contact in run.stored.contacts if contact.id not in run.erased}
    for attempt in run.log.attempts:
        if attempt.answer not in ACCEPTED:
            continue
        sent = run.log.sent[attempt.org, attempt.number]
        wanted = [
            f"{field}: unknown field, did you mean {MISSPELT[field]}?" for field in sent.body if field in MISSPELT
        ]
        if attempt.answer is Answer.NEW and sent.kind is EventKind.LIVE:
            contacts = [event.contact_id for event in run.by_key[attempt.org, attempt.key or ""]]
            if len(contacts) != 1 or contacts[0] not in attributes:
                continue  # erased
            wanted += _without_room(sent, attributes[contacts[0]])
        named = set(attempt.warnings) == set(wanted)
        yield None if named else f"{attempt.org} {attempt.number} was answered with {attempt.warnings}, not {wanted}"


def _without_room(sent: SentEvent, stored: dict[str, object]) -> Iterator[str]:
    for name in sent.body.get("attributes", {}):
        if name not in stored:
            yield f"attributes.{name}: left out: a contact has at most 1,000 attributes"


def requests_end(run: Evidence) -> Findings:
    """every request ends within 5 seconds, a query that would not end within 15, and /readyz within 2, also while
    Postgres is down or frozen; a client that ends its side of the connection gets its answer
    """
    for attempt in run.log.attempts:
        name = f"event {attempt.org} {attempt.number}"
        yield _late(run, name, attempt.api, (attempt.began, attempt.ended), PROMISED_US) or _unanswered(run, attempt)
    for reply in run.log.replies:
        promised = {PROBE: PROBE_PROMISED_US, BOMB: BOMB_PROMISED_US}.get(reply.way, PROMISED_US)
        yield _late(run, f"{reply.org} {reply.way}", reply.api, (reply.began, reply.ended), promised)


def _late(run: Evidence, name: str, api: int | None, span: Span, promised: int) -> str | None:
    """Report a request that took too long while its API process worked."""
    took, allowed = span[1] - span[0], promised + run.slack
    if took > allowed:
        took -= sum(ended - began for began, ended in overlap([span], run.api_outages[api]))
    return f"{name} ended after {took / 1e6:.1f} s" if took > allowed else None


def _unanswered(run: Evidence, attempt: Attempt) -> str | None:
    is_broken = attempt.half_closed and attempt.answer is Answer.BROKEN
    if is_broken and not overlap([(attempt.began, attempt.ended)], run.api_outages[attempt.api]):
        return f"event {attempt.org} {attempt.number} of a half-closed client got no answer"
    return None
