"""Invariants of stopped work: inactive automations, erased contacts and revoked keys have no further effects."""

from tests.torture.effects import CLOCK_US, covers
from tests.torture.evidence import NEVER, Evidence, Findings, Span
from tests.torture.log import ACCEPTED, Answer, Attempt, SocketVisit
from tests.torture.rows import EntryRow, MessageRow

PROMISED_US = 5_000_000  # until every process rejects a revoked key
_PUSHED_US = 2_000_000  # until a push that was on its way has arrived


def stopped_work_has_no_effects(run: Evidence) -> Findings:
    """an entry that was claimed while its automation was inactive or archived, or after its contact was erased, takes
    no step and sends nothing
    """
    yield from _effects_after_erasure(run)
    for automation in run.automations:
        if automation.rule.is_stopped:
            rests = _inactive_spans(run, automation.id)
            for entry in run.list_entries[automation.id]:
                for step in run.steps.get(entry.id, ()):
                    claimed = run.by_token[entry.id, step.claim].claimed
                    stopped = any(began < claimed < ended for began, ended in rests)
                    yield f"entry {entry.id} {step.outcome} at {step.node_id} while stopped" if stopped else None


def _inactive_spans(run: Evidence, automation_id: str) -> list[Span]:
    """Return the spans in which every process knew that an automation was inactive."""
    switches = run.switches.get(automation_id, [])
    ends = [*(switch.committed for switch in switches[1:]), NEVER]
    return [(switch.visible, end) for switch, end in zip(switches, ends, strict=False) if not switch.active]


def _effects_after_erasure(run: Evidence) -> Findings:
    """Yield the effects for erased contacts: under a claim after the erasure, or over a socket more than a moment after
    it.
    """
    answered = {erasure.contact_id: erasure.ended for erasure in run.log.erased}
    pushed = {push.id: push.at for visit in run.log.visits for push in visit.pushes}
    for entry in run.stored.entries:
        if (erased := run.erased.get(entry.contact_id)) is not None:
            yield _step_after_erasure(run, entry, erased)
    for message in run.stored.messages:
        if (erased := run.erased.get(message.contact_id)) is not None:
            yield _message_after_erasure(run, message, erased)
            answered_at, at = answered.get(message.contact_id, NEVER), pushed.get(message.id, 0)
            late = at - answered_at - run.frozen_us((answered_at, at))
            yield f"message {message.id} was pushed after its contact was erased" if late > _PUSHED_US else None


def _step_after_erasure(run: Evidence, entry: EntryRow, erased: int) -> str | None:
    for step in run.steps.get(entry.id, ()):
        lease = run.by_token.get((entry.id, step.claim))
        if lease is not None and lease.claimed > erased:
            return f"entry {entry.id} {step.outcome} at {step.node_id} after its contact was erased"
    return None


def _message_after_erasure(run: Evidence, message: MessageRow, erased: int) -> str | None:
    before = [lease for lease in run.leases.get(message.entry_id, []) if lease.claimed < erased]
    fine = all(any(covers(run, message, lease, copy.at) for lease in before) for copy in run.copies.get(message.id, []))
    return None if fine else f"message {message.id} left after its contact was erased"


def erased_data_is_removed(run: Evidence) -> Findings:
    """nothing remains of an erased contact, its events, messages and entries except their ids"""
    for _ in run.erased:
        yield None
    for erasure in run.log.erased:
        yield (
            None if erasure.contact_id in run.erased else f"contact {erasure.contact_id} was to be erased, and was not"
        )
    for each_left in run.stored.remnants:
        yield f"kept: {each_left}"


def revoked_keys_open_nothing(run: Evidence) -> Findings:
    """a key is valid until it is revoked; five seconds later no event is accepted with it, and a socket that it opened
    gets no push
    """
    for attempt in run.log.attempts:
        if attempt.temporary_key:
            yield _wrongly_answered(run, attempt)
    for visit in run.log.visits:
        if visit.key:
            yield _pushed_on(run, visit)


def _wrongly_answered(run: Evidence, attempt: Attempt) -> str | None:
    name, revoked = f"{attempt.org} {attempt.number}", run.revoked.get(attempt.temporary_key, NEVER)
    if attempt.answer is Answer.REVOKED and attempt.ended + CLOCK_US < revoked:
        return f"{name} was refused with a valid key"
    late = attempt.began - revoked - PROMISED_US - run.frozen_us((revoked, attempt.began))
    if attempt.answer in ACCEPTED and late > CLOCK_US:
        return f"{name} was accepted {(attempt.began - revoked) / 1e6:.1f} s after its key was revoked"
    return None


def _pushed_on(run: Evidence, visit: SocketVisit) -> str | None:
    revoked = run.revoked.get(visit.key, NEVER)
    last = max((push.at for push in visit.pushes), default=0)
    late = last - revoked - PROMISED_US - run.frozen_us((revoked, last))
    return f"{visit.org} {visit.wallet} had a push after its key was revoked" if late > _PUSHED_US else None
