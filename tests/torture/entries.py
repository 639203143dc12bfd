"""Invariants of entries: that they end, after how many attempts, when, along which path, and in turn."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from tests.torture.automations import COUNTED, COUNTER, GUARDED
from tests.torture.evidence import Evidence, Findings, Span, Version, overlap, union
from tests.torture.installation import RETRY_DELAYS
from tests.torture.rows import EntryRow, StepRow, VersionRow

MAX_ATTEMPTS = len(RETRY_DELAYS) + 1
_TERMINAL = frozenset({"completed", "exited", "cancelled", "dead"})
_FOR_GOOD = "gone"  # the receiver answered 410
_REFUSED_FOR_GOOD = "(SMTP 5"
_WORTH_RETRYING = frozenset({"refused", "no_answer", "unreachable", "no_email", "attempts_exhausted"})
_STAYS = frozenset({"failed", "waiting"})


def entries_end(run: Evidence) -> Findings:
    """there is one entry per automation and event, and every entry has ended after the drain"""
    attempts = set()
    for entry in run.stored.entries:
        place = entry.automation_id, entry.event_id
        if place in attempts:
            yield f"doubled: event {entry.event_id} is in one automation twice"
        attempts.add(place)
        yield None if entry.state in _TERMINAL else f"entry {entry.id} is {entry.state} ({entry.last_error})"


def attempts_are_bounded(run: Evidence) -> Findings:
    """no step is attempted more often than its retry schedule allows; a dead entry has its reason and no attempt left,
    or a permanent failure
    """
    failures = Counter((step.entry_id, step.node_id) for step in run.stored.steps if step.outcome == "failed")
    for (entry_id, node_id), count in failures.items():
        most = MAX_ATTEMPTS * (1 + run.entry[entry_id].replays) if entry_id in run.entry else 0
        yield f"entry {entry_id} failed {count} times at {node_id}" if count > most else None
    for entry in run.stored.entries:
        if entry.state != "dead":
            yield _overtried(entry)
        elif entry.contact_id not in run.erased:  # an erasure keeps only the first word of the errors
            yield _wrongly_dead(entry)


def _overtried(entry: EntryRow) -> str | None:
    return f"entry {entry.id} was tried {entry.attempts} times" if entry.attempts > MAX_ATTEMPTS else None


def _wrongly_dead(entry: EntryRow) -> str | None:
    name, outcome, error = f"entry {entry.id}", entry.outcome or "", entry.last_error or ""
    if not outcome or not error.startswith(f"{outcome}: "):
        return f"{name} is dead without a reason"
    if outcome == _FOR_GOOD or _REFUSED_FOR_GOOD in error:
        return None
    if outcome not in _WORTH_RETRYING:
        return f"{name} is dead, which nothing explains: {error}"
    late = outcome == "attempts_exhausted"  # a claim after the last attempt only marks the entry as dead
    right = entry.attempts > MAX_ATTEMPTS if late else entry.attempts == MAX_ATTEMPTS
    return None if right else f"{name} is dead after {entry.attempts} attempts: {error}"


def waits_end_in_time(run: Evidence) -> Findings:
    """a delay ends when it is due and a wait with its event: not before, and no later than the faults explain"""
    for entry_id, steps in run.steps.items():
        for begun, ended in pairwise(steps):
            if begun.outcome == "waiting" and ended.outcome in ("waited", "timed_out", "matched"):
                yield _wrong_time(run, run.entry[entry_id], begun, ended)


def _wrong_time(run: Evidence, entry: EntryRow, begun: StepRow, ended: StepRow) -> str | None:
    name, until = f"entry {entry.id} {ended.outcome} at {ended.node_id}", _us(begun.detail["until"])
    due = until
    if ended.outcome == "matched":
        event = run.event.get(ended.detail["eventId"])
        if event is None or event.contact_id != entry.contact_id or not begun.at <= event.received <= until:
            return f"{name} by an event that it could not wait for"
        due = event.committed
    elif ended.at < due:
        return f"{name} {(due - ended.at) / 1e6:.3f} s early"
    if ended.outcome == "timed_out" and (missed := _missed_event(run, entry, begun, ended)):
        return f"lost: {name}, although event {missed} had arrived"
    # The step carries the moment of the timeline; how late it was taken is seen at its commit.
    late = ended.committed - due - run.slack - _excused_us(run, entry.contact_id, (due, ended.committed))
    return f"{name} {(late + run.slack) / 1e6:.1f} s late" if late > 0 else None


def _missed_event(run: Evidence, entry: EntryRow, begun: StepRow, ended: StepRow) -> str | None:
    """Return an event that matched in time and was committed before the wait timed out."""
    until = _us(begun.detail["until"])
    for event in run.by_contact[entry.contact_id, ended.detail["event"]]:
        if begun.at < event.received <= until and event.committed < ended.committed:
            return event.id
    return None


def _excused_us(run: Evidence, contact_id: str, span: Span) -> int:
    """Return the microseconds of a span in which no engine could work, or in which an entry of the contact was held."""
    excuses = run.outages + run.turns.get(contact_id, [])
    near = [excuse for excuse in excuses if excuse[1] > span[0] and excuse[0] < span[1]]
    return sum(ended - began for began, ended in overlap([span], union(near)))


def _us(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1e6)


def paths_match_versions(run: Evidence) -> Findings:
    """an entry runs the version that was live when its event was ingested, along the edges of its graph, to an end"""
    paths = {(version.automation_id, version.version): _path(version) for version in run.stored.versions}
    for entry in run.stored.entries:
        path = paths.get((entry.automation_id, entry.version or 0))
        problem = _wrong_version(run, entry) or _off_the_path(entry, run.steps.get(entry.id, []), path)
        yield f"entry {entry.id} {problem}" if problem else None


class _Path(NamedTuple):
    start: str
    following: dict[tuple[str, str | None], str]


def _path(version: VersionRow) -> _Path:
    edges: list[dict[str, Any]] = version.graph["edges"]
    return _Path(
        version.graph["nodes"][0]["id"], {(edge["source"], edge.get("sourceHandle")): edge["target"] for edge in edges}
    )


def _wrong_version(run: Evidence, entry: EntryRow) -> str | None:
    """Report an entry whose version was never live between the first attempt to send its event and the commit."""
    event, versions = run.event.get(entry.event_id), run.versions.get(entry.automation_id, [])
    sent = None if event is None else run.sent_as(event)
    if event is None or sent is None:
        return "is of no event"
    if not versions:
        return None if entry.version is None else "has a version that was never published"
    began = min((attempt.began for attempt in run.attempts[sent.org, sent.number]), default=event.committed)
    return (
        None
        if entry.version in list(_live_versions(versions, began, event.committed))
        else f"is pinned to version {entry.version}"
    )


def _live_versions(versions: list[Version], since: int, until: int) -> Iterator[int]:
    for version, later in zip(versions, [*versions[1:], None], strict=True):
        if version.committed <= until and (later is None or later.visible >= since):
            yield version.number


def _off_the_path(entry: EntryRow, steps: list[StepRow], path: _Path | None) -> str | None:
    if path is None:
        return "took steps, and its automation has no such version" if steps else None
    here: str | None = path.start
    number, claim = 0, 0
    for step in steps:
        if (step.node_id, step.step) != (here, number) or step.claim < claim:
            return f"was at {step.node_id} in step {step.step}, where {here} in step {number} was next"
        claim = step.claim
        if step.outcome not in _STAYS:
            here, number = path.following.get((step.node_id, step.handle)), number + 1
    if entry.state == "completed" and here is not None:
        return f"is completed, and {here} was next"
    return None


def entries_take_turns(run: Evidence) -> Findings:
    """a message that a tag guards is sent to a contact once, if no attempt fails; a counter counts every entry"""
    contacts = {contact.id: contact for contact in run.stored.contacts if contact.id not in run.erased}
    sent = Counter(step.entry_id for step in run.stored.steps if step.outcome == "sent")
    failed = {step.entry_id for step in run.stored.steps if step.outcome == "failed"}
    for automation in run.automations:
        entries = defaultdict(list)
        for entry in run.list_entries[automation.id]:
            if entry.contact_id in contacts:
                entries[entry.contact_id].append(entry)
        for contact_id, of_contact in entries.items():
            completed = len([entry for entry in of_contact if entry.state == "completed"])
            name = f"contact {contact_id}"
            if automation.rule.name == COUNTED:
                count = int(contacts[contact_id].attributes.get(COUNTER, 0))
                yield None if count == completed else f"{name} has counted {count} of {completed} entries"
            # An entry that waits for its next attempt lets the others pass.
            if automation.rule.name in GUARDED and failed.isdisjoint(entry.id for entry in of_contact):
                times = sum(sent[entry.id] for entry in of_contact)
                right = times == 1 or (times == 0 and not completed)
                yield None if right else f"{name} got the message of {automation.rule.name} {times} times"
