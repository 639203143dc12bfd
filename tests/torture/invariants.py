"""The invariants of a run, under the names that trust.md gives them, and their verdicts: one function per invariant.

The invariants of the engine are in `entries` and `effects`, of what answers say and when they come in `answers`, of
stopped work in `stopped_work`, of pushes in `inboxes`, of confidentiality in `secrecy`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any

import msgspec

from tests.torture.analysts import IN_SEGMENT
from tests.torture.answers import answers_name_what_was_left_out, requests_end
from tests.torture.automations import COUNTER, Automation
from tests.torture.effects import (
    effects_happen_once,
    foreign_wallets_get_nothing,
    leases_are_respected,
    no_other_effects_happen,
)
from tests.torture.entries import (
    attempts_are_bounded,
    entries_end,
    entries_take_turns,
    paths_match_versions,
    waits_end_in_time,
)
from tests.torture.evidence import Evidence, Findings, Switch
from tests.torture.inboxes import inboxes_are_complete
from tests.torture.journeys import (
    JourneyEvidence,
    JourneyFindings,
    closed_addresses_get_nothing,
    digests_have_each_event_once,
    journeys_end,
    journeys_reach_receivers,
    starts_have_one_entry,
    stops_hold,
)
from tests.torture.log import ACCEPTED, UNKNOWN, UNSETTLED, Answer, Attempt, EventKind, SentEvent
from tests.torture.misuse import (
    backups_are_private,
    bombs_are_stopped,
    lifted_limits_are_put_back,
    supervisor_survives,
    terminals_obey_nothing,
    wrong_secrets_are_refused,
)
from tests.torture.oracle import IdentityModel, merged
from tests.torture.rows import DryRow, ErasureRow, EventRow
from tests.torture.secrecy import data_stays_in_its_organization, secrets_do_not_leak
from tests.torture.stopped_work import erased_data_is_removed, revoked_keys_open_nothing, stopped_work_has_no_effects


def answers_are_of_the_contract(run: Evidence) -> Findings:
    """every event got a final answer of the contract; every other request got an expected answer; no request got a 5xx
    other than 503
    """
    for reply in run.log.replies:
        yield f"{reply.org} {reply.strange}" if reply.strange else None
    for sent in run.log.sent.values():
        answers = [attempt.answer for attempt in run.attempts[sent.org, sent.number]]
        final = {answer for answer in answers if answer not in UNSETTLED}
        wanted = ({Answer.REJECTED} if sent.kind is EventKind.INVALID else ACCEPTED) | {Answer.REVOKED}
        if not final:
            yield f"{_name(sent)} never got an answer"
        else:
            yield None if final <= wanted else f"{_name(sent)} was answered {', '.join(final - wanted)}"


def accepted_exists_once(run: Evidence) -> Findings:
    """an accepted event is stored exactly once, as it was sent, before its answer"""
    for sent in run.log.sent.values():
        accepted = [attempt for attempt in run.attempts[sent.org, sent.number] if attempt.answer in ACCEPTED]
        for key in {attempt.key or "" for attempt in accepted}:
            answered = min(attempt.ended for attempt in accepted if attempt.key == key)
            match sent.kind:
                case EventKind.LIVE:
                    yield _stored_once(sent, run.by_key[sent.org, key], answered)
                case EventKind.DRY:
                    yield _counted(_name(sent), len(run.dry_by_key[sent.org, key]))
                case _:
                    pass


def _stored_once(sent: SentEvent, rows: list[EventRow], answered: int) -> str | None:
    if problem := _counted(_name(sent), len(rows)):
        return problem
    (row,) = rows
    as_sent = _fields_sent(sent)
    if different := [field for field, value in _fields_of(row).items() if value != as_sent.get(field, value)]:
        return f"{_name(sent)} is stored with other {', '.join(different)}"
    return None if row.committed <= answered else f"{_name(sent)} was answered before its commit"


def _counted(name: str, number: int) -> str | None:
    return None if number == 1 else f"lost: {name}" if not number else f"doubled: {name} is stored {number} times"


def _fields_sent(sent: SentEvent) -> dict[str, Any]:
    body = sent.body
    fields = {"event": body["event"].lower(), "identifiers": sent.identifiers(), "payload": body["payload"]}
    return fields | ({"occurredAt": datetime.fromisoformat(body["occurredAt"])} if "occurredAt" in body else {})


def _fields_of(row: EventRow) -> dict[str, Any]:
    return {"event": row.event, "identifiers": row.identifiers(), "payload": row.payload, "occurredAt": row.occurred_at}


def answers_agree(run: Evidence) -> Findings:
    """at most one answer says that a key is new, and none after it was accepted; without one, an outcome is unknown"""
    by_key: dict[tuple[str, bool, str], list[Attempt]] = defaultdict(list)
    for sent in run.log.sent.values():
        attempts = run.attempts[sent.org, sent.number]
        for key in {attempt.key for attempt in attempts if attempt.answer in ACCEPTED} | (
            {sent.key} if sent.key else set()
        ):
            own = [attempt for attempt in attempts if sent.once or attempt.key == key]
            by_key[sent.org, sent.kind is EventKind.DRY, key or ""] += own
    for (org, _, key), attempts in by_key.items():
        yield _contradiction(f"{org} {key}", attempts)


def _contradiction(name: str, attempts: list[Attempt]) -> str | None:
    new = [attempt for attempt in attempts if attempt.answer is Answer.NEW]
    accepted = [attempt.ended for attempt in attempts if attempt.answer in ACCEPTED]
    if len(new) > 1:
        return f"doubled: {name} was new {len(new)} times"
    if accepted and not new and not any(attempt.answer in UNKNOWN for attempt in attempts):
        return f"{name} was answered as a duplicate, but was never accepted"
    if new and min(accepted) < new[0].began:
        return f"{name} was new after it had been accepted"
    return None


def no_other_events_are_stored(run: Evidence) -> Findings:
    """every stored event was sent and may be stored: a rejected event, a dry run or a repeat left no row"""
    for row in run.stored.events:
        yield _unsent(run, row, EventKind.LIVE)
    for dry in run.stored.dry_runs:
        yield _unsent(run, dry, EventKind.DRY)
    rows = Counter((row.org, row.payload.get("n", -1)) for row in run.stored.events)
    for (org, number), count in rows.items():
        attempts = run.attempts[org, number]
        most = len([attempt for attempt in attempts if attempt.answer in ACCEPTED | UNKNOWN])
        sent = run.log.sent.get((org, number))
        if sent is not None and count > (1 if sent.once else most):
            yield f"doubled: {_name(sent)} is stored {count} times"


def _unsent(run: Evidence, row: EventRow | DryRow, kind: EventKind) -> str | None:
    sent = run.sent_as(row)
    if sent is None:
        return f"{row.org} {row.key} was never sent"
    if sent.kind is not kind:
        return f"{_name(sent)} is stored, though it was {sent.kind}"
    if sent.key not in (None, row.key):
        return f"{_name(sent)} is stored under the key {row.key}"
    attempts = run.attempts[sent.org, sent.number]
    possible = any(attempt.answer in ACCEPTED | UNKNOWN for attempt in attempts)
    return None if possible else f"{_name(sent)} is stored, and no attempt can have stored it"


def keys_and_contacts_belong_to_events(run: Evidence) -> Findings:
    """every event has exactly one idempotency key and every key one event; the contact of every event exists"""
    keys = Counter((key.org, key.event_id) for key in run.stored.keys)
    contacts = {(contact.org, contact.id) for contact in run.stored.contacts}
    for event in run.stored.events:
        if (event.org, event.contact_id) not in contacts:
            yield f"event {event.id} has no contact"
        count = keys.pop((event.org, event.id), 0)
        yield None if count == 1 else f"event {event.id} has {count} keys"
    for _, event_id in keys:
        yield f"a key is held for event {event_id}, which does not exist"


def entered_once(run: Evidence) -> Findings:
    """an event has one entry in every automation that matched it when it arrived; a dry run has none and reports the
    right count
    """
    entries = Counter((entry.automation_id, entry.event_id, entry.contact_id) for entry in run.stored.entries)
    for event in run.stored.events:
        sent = run.sent_as(event)
        for automation in run.automations:
            if automation.org == event.org and sent is not None and sent.kind is EventKind.LIVE:
                count = entries.pop((automation.id, event.id, event.contact_id), 0)
                right = _entries_wanted(run, automation, sent, event)
                yield None if count in right else f"event {event.id} entered {automation.rule.name} {count} times"
    for _, event_id, _ in entries:
        yield f"an entry has event {event_id}, which is not stored with these values"
    yield from _dry_runs_count_right(run)


def _entries_wanted(run: Evidence, automation: Automation, sent: SentEvent, event: EventRow) -> set[int]:
    if not automation.rule.wants(sent):
        return {0}
    if not automation.rule.is_stopped:
        return {1}
    began = min((attempt.began for attempt in run.attempts[sent.org, sent.number]), default=event.committed)
    return {int(active) for active in _states(run.switches[automation.id], began, event.committed)}


def _states(switches: list[Switch], since: int, until: int) -> Iterator[bool]:
    """Yield the states in which a process may have seen an automation between two moments. Automations start active."""
    state = True
    for switch in switches:
        if switch.committed > until:
            break
        if switch.visible >= since:
            yield state
        state = switch.active
    yield state


def _dry_runs_count_right(run: Evidence) -> Findings:
    for sent in run.log.sent.values():
        if sent.kind is EventKind.DRY:
            wanting = [
                automation.rule
                for automation in run.automations
                if automation.org == sent.org and automation.rule.wants(sent)
            ]
            least = len([rule for rule in wanting if not rule.is_stopped])
            matched = {attempt.matched for attempt in run.attempts[sent.org, sent.number] if attempt.answer in ACCEPTED}
            yield (
                None
                if matched <= set(range(least, len(wanting) + 1))
                else f"{_name(sent)} was answered with {matched} matching automations"
            )


def identity_matches_the_oracle(run: Evidence) -> Findings:
    """events, identifiers and contacts are as the oracle of identity resolution has them, in the order of commits"""
    people: dict[str, IdentityModel] = defaultdict(IdentityModel)
    happened: list[EventRow | ErasureRow] = [*run.stored.events, *run.stored.erasures]
    for row in sorted(happened, key=lambda row: row.committed):
        match row:
            case EventRow():
                yield people[row.org].apply_event(row, run.conflicts[row.id])
            case ErasureRow():
                people[row.org].apply_erasure(row)
    owners = {(owner.org, owner.kind, owner.value): owner.contact_id for owner in run.stored.owners}
    right = {
        (org, *identifier): contact for org, person in people.items() for identifier, contact in person.owners.items()
    }
    yield from _differences("identifier", right, owners)
    contacts = {contact.id: dict(contact.identifiers()) for contact in run.stored.contacts}
    identifiers = {contact: dict(kinds) for person in people.values() for contact, kinds in person.identifiers.items()}
    for contact in set().union(*(person.doubtful for person in people.values())):
        if "email" not in contacts.get(contact, {"email"}):
            del identifiers[contact]["email"]
    yield from _differences("contact", identifiers, contacts)


def attributes_are_merged(run: Evidence) -> Findings:
    """the attributes of every contact are those of its events, merged in the order of commits, and at most a thousand;
    the counter is judged with the turns
    """
    sent = {number: event.body.get("attributes", {}) for number, event in run.log.sent.items()}
    right = merged(run.stored.events, sent)
    for contact in run.stored.contacts:
        attributes = {name: value for name, value in contact.attributes.items() if name != COUNTER}
        good = contact.id in run.erased or right[contact.id].allow(attributes)
        yield None if good else f"contact {contact.id} has {attributes}, not {right[contact.id].possible}"


def nothing_stays_locked(run: Evidence) -> Findings:
    """after the drain no lock is held and no transaction idle"""
    yield None
    yield from run.left


def processes_behave(run: Evidence) -> Findings:
    """no process ended by itself, exited with an error or logged one"""
    yield None
    yield from run.complaints


def counts_are_correct(run: Evidence) -> Findings:
    """the catalog and SQL return the number of stored events; the refreshed segment has exactly the contacts that its
    query selects
    """
    right = Counter((event.org, event.event) for event in run.stored.events)
    for source in (run.counts.catalog, run.counts.app_events):
        counts_by_event = {(org, event): count for org, counts in source.items() for event, count in counts.items()}
        yield from _differences("count of", right, counts_by_event)
    attribute, value = IN_SEGMENT
    named = {
        (contact.org, contact.id): True for contact in run.stored.contacts if contact.attributes.get(attribute) == value
    }
    yield from _differences(
        "member", named, {(org, id_): True for org, ids in run.counts.members.items() for id_ in ids}
    )


def _differences(what: str, right: Mapping[Any, Any], actual: Mapping[Any, Any]) -> Findings:
    for name in {**right, **actual}:
        good = right.get(name) == actual.get(name)
        yield None if good else f"{what} {name} is {actual.get(name)}, not {right.get(name)}"


def _name(sent: SentEvent) -> str:
    return f"{sent.org} {sent.number}"


def _of_journeys(invariant: Callable[[JourneyEvidence], JourneyFindings]) -> Callable[[Evidence], Findings]:
    """Return an invariant of the marketer's organization as one of the whole run."""

    @wraps(invariant)
    def of_run(run: Evidence) -> Findings:
        if run.journeys is not None:
            yield from invariant(run.journeys)

    return of_run


INVARIANTS: dict[str, Callable[[Evidence], Findings]] = {
    "V1": accepted_exists_once,
    "V2": answers_agree,
    "V3": no_other_events_are_stored,
    "V4": keys_and_contacts_belong_to_events,
    "V5": entered_once,
    "V6": entries_end,
    "V7": identity_matches_the_oracle,
    "V8": attributes_are_merged,
    "V9": effects_happen_once,
    "V10": no_other_effects_happen,
    "V11": leases_are_respected,
    "V12": attempts_are_bounded,
    "V13": waits_end_in_time,
    "V14": paths_match_versions,
    "V15": stopped_work_has_no_effects,
    "V16": inboxes_are_complete,
    "V17": nothing_stays_locked,
    "V18": data_stays_in_its_organization,
    "V19": secrets_do_not_leak,
    "V20": counts_are_correct,
    "V21": entries_take_turns,
    "V22": answers_name_what_was_left_out,
    "V23": foreign_wallets_get_nothing,
    "V24": requests_end,
    "V25": supervisor_survives,
    "V26": terminals_obey_nothing,
    "V27": _of_journeys(starts_have_one_entry),
    "V28": _of_journeys(closed_addresses_get_nothing),
    "V29": _of_journeys(stops_hold),
    "V30": _of_journeys(digests_have_each_event_once),
    "V31": _of_journeys(journeys_reach_receivers),
    "V32": _of_journeys(journeys_end),
    "B22": backups_are_private,
    "C16": revoked_keys_open_nothing,
    "F14": wrong_secrets_are_refused,
    "L10": bombs_are_stopped,
    "L11": lifted_limits_are_put_back,
    "O4": erased_data_is_removed,
    "answers": answers_are_of_the_contract,
    "processes": processes_behave,
}


class Verdict(msgspec.Struct, frozen=True):
    """The result of one invariant.

    An invariant that had nothing to check proves nothing, so that is a violation, too.
    """

    name: str
    promise: str
    checked: int
    violations: list[str]


def check(run: Evidence) -> list[Verdict]:
    """Return the verdict on every invariant."""
    return [judge(name, run) for name in INVARIANTS]


def judge(name: str, run: Evidence) -> Verdict:
    """Return the verdict on one invariant."""
    invariant = INVARIANTS[name]
    findings = list(invariant(run))
    violations = [finding for finding in findings if finding is not None] if findings else ["nothing was checked"]
    return Verdict(name, " ".join((invariant.__doc__ or "").split()), len(findings), violations)
