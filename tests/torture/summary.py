"""The printed summary of a run."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import get_args

from tests.torture.invariants import Verdict
from tests.torture.log import ACCEPTED, Answer, Attempt
from tests.torture.nemesis import Fault, Kind, Role
from tests.torture.run import Run

WIDEST = 80  # characters of a column

_DATABASE = ("postmaster", "postgres", "backend")


def summary(run: Run, verdicts: list[Verdict]) -> str:
    """Return the summary of a run and its verdicts."""
    return "\n".join(
        [
            *_requests(run),
            *_effects(run),
            *_other_lines(run),
            *_recoveries(run),
            "",
            *_faults(run),
            "",
            *_verdicts(verdicts),
            "",
            _result(verdicts),
        ]
    )


def _requests(run: Run) -> Iterator[str]:
    log, stored = run.evidence.log, run.evidence.stored
    seconds = (run.healed - run.began) / 1e6
    answers = Counter(attempt.answer for attempt in log.attempts)
    slowest = max(
        (attempt.ended - attempt.began for attempt in log.attempts if attempt.answer is not Answer.TIMED_OUT), default=0
    )
    drain = (run.drained - run.healed) / 1e6
    yield f"seed {run.spec.seed}: {seconds:.0f} s of load with faults, {drain:.0f} s until all was done"
    yield f"sent       {len(log.sent):,} events in {len(log.attempts):,} attempts ({len(log.attempts) / seconds:.0f}/s)"
    yield "answers    " + " · ".join(f"{answer} {answers[answer]:,}" for answer in Answer)
    yield f"           the slowest after {slowest / 1e6:.1f} s"
    yield (
        f"stored     {len(stored.events):,} events, {len(stored.contacts):,} contacts, "
        f"{len(stored.owners):,} identifiers, "
        f"{len(stored.conflicts):,} conflicts, {len(stored.entries):,} entries, {len(stored.dry_runs):,} dry runs"
    )


def _effects(run: Run) -> Iterator[str]:
    stored, arrivals = run.evidence.stored, run.evidence.arrivals
    copies = Counter(arrival.id for arrival in arrivals)
    states = _counted(entry.state for entry in stored.entries)
    channels = _counted(message.channel for message in stored.messages)
    statuses = _counted(message.status for message in stored.messages)
    moods = _counted(arrival.reaction for arrival in arrivals)
    yield f"entries    {states}, {len(stored.steps):,} steps, {_replays(run)} replays"
    yield f"messages   {channels} · {statuses}"
    yield f"arrived    {len(arrivals):,} copies of {len(copies):,} messages: {moods}"


def _other_lines(run: Run) -> Iterator[str]:
    log = run.evidence.log
    pushes, acknowledged = (
        sum(len(visit.pushes) for visit in log.visits),
        sum(len(visit.acknowledged) for visit in log.visits),
    )
    statuses = Counter(str(reply.status) if reply.status else "no answer" for reply in log.replies)
    yield f"asked      {len(log.replies):,} times: {_counted(statuses.elements())}"
    yield f"sockets    {len(log.visits):,}, {pushes:,} pushes over them, {acknowledged:,} of them acknowledged"
    yield (
        f"operators  ran {len(log.commands):,} commands, {len(log.attacks):,} attacks on `up`, "
        f"{len(log.bombs):,} bombs, {len(log.lifted):,} limits lifted, {len(log.shown):,} texts shown"
    )
    yield (
        f"stopped    {len(log.erased):,} contacts erased, {len(log.revoked):,} keys revoked, "
        f"{len(log.switched):,} automations "
        f"switched or archived, {len(log.published):,} published"
    )


def _replays(run: Run) -> int:
    return sum(entry.replays for entry in run.evidence.stored.entries)


def _counted(words: Iterable[str]) -> str:
    return " · ".join(f"{word} {count:,}" for word, count in Counter(words).most_common())


def _faults(run: Run) -> list[str]:
    """Return the table of faults: a row per kind, a column per victim."""
    counts = Counter((fault.kind, fault.role) for fault in run.faults)
    roles = [role for role in get_args(Role) if any(counts[kind, role] for kind in get_args(Kind))]
    kinds = [kind for kind in get_args(Kind) if any(counts[kind, role] for role in roles)]
    rows = [
        [kind, *(counts[kind, role] for role in roles), sum(counts[kind, role] for role in roles)] for kind in kinds
    ]
    return table(["fault", *roles, "all"], rows)


def _recoveries(run: Run) -> Iterator[str]:
    """Yield the recovery times: from the restart of a victim until an event was accepted through it."""
    accepted = [attempt for attempt in run.evidence.log.attempts if attempt.answer in ACCEPTED]
    for role in ("api", "postmaster", "postgres", "backend"):
        recoveries = [_recovery(fault, accepted, run.faults) for fault in run.faults if fault.role == role]
        seconds = sorted(recovery for recovery in recoveries if recovery is not None)
        if seconds:
            median, longest = statistics.median(seconds), seconds[-1]
            yield f"{role + ' back':<16} after {median:.2f} s, at most {longest:.2f} s ({len(seconds)} undisturbed)"


def _recovery(fault: Fault, accepted: list[Attempt], faults: list[Fault]) -> float | None:
    """Return the seconds until a request sent after the fault was accepted; None if another fault intervened."""
    through = [attempt for attempt in accepted if fault.role != "api" or attempt.api == fault.victim]
    first = min((attempt.ended for attempt in through if attempt.began >= fault.ended), default=0)
    disturbing = [
        other for other in faults if other is not fault and (other.role in _DATABASE or _same_place(other, fault))
    ]
    disturbed = any(other.began < first and other.ended > fault.ended for other in disturbing)
    return None if disturbed or not first else (first - fault.ended) / 1e6


def _same_place(one: Fault, other: Fault) -> bool:
    return (one.role, one.victim) == (other.role, other.victim)


def _verdicts(verdicts: list[Verdict]) -> list[str]:
    rows: list[list[str | int]] = [
        [verdict.name, verdict.promise, verdict.checked, len(verdict.violations)] for verdict in verdicts
    ]
    return table(["invariant", "promise", "judged", "violations"], rows)


def _result(verdicts: list[Verdict]) -> str:
    violations = [violation for verdict in verdicts for violation in verdict.violations]
    lost, doubled = (
        len([violation for violation in violations if violation.startswith(word)]) for word in ("lost", "doubled")
    )
    return f"{lost:,} lost, {doubled:,} doubled, {len(violations) - lost - doubled:,} other violations"


def table(head: Sequence[str], rows: Sequence[Sequence[str | int]]) -> list[str]:
    """Return the lines of a table. Numbers are right-aligned; a text longer than WIDEST is wrapped."""
    cells = [[_lines(cell) for cell in row] for row in rows]
    widths = [max(map(len, (name, *(line for row in cells for line in row[at])))) for at, name in enumerate(head)]
    numbers = [bool(rows) and isinstance(row, int) for row in (rows[0] if rows else head)]
    places = list(zip(widths, numbers, strict=True))
    printed = [_row(line, places) for row in cells for line in zip_longest(*row, fillvalue="")]
    return [_row(head, places), _row(["-" * width for width in widths], places), *printed]


def _lines(value: str | int) -> list[str]:
    return [f"{value:,}"] if isinstance(value, int) else wrap(value, WIDEST)


def _row(cells: Sequence[str], places: list[tuple[int, bool]]) -> str:
    padded = [
        text.rjust(width) if number else text.ljust(width) for text, (width, number) in zip(cells, places, strict=True)
    ]
    return "  ".join(padded).rstrip()
