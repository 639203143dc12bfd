"""The invariant of what answers name."""

from collections.abc import Iterator

from tests.torture.evidence import Evidence, Findings
from tests.torture.log import ACCEPTED, Answer, EventKind, SentEvent
from tests.torture.traffic import MISSPELT


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
