"""Invariants of misuse: wrong secrets, a supervisor under attack, backups, bombs, lifted limits, and hostile texts."""

from tests.torture.answers import BOMB_PROMISED_US
from tests.torture.evidence import Evidence, Findings, Span, overlap
from tests.torture.operators import BACKUP, PULLED, REFUSED_START
from tests.torture.terminals import CSV, DISPLAY

PUT_BACK_US = 1_000_000
MOST_BYTES = 2_500_000_000  # a query may have 1 GB; docs/sql.md states by how much one function call can exceed it
_OF_ITS_OWN = {"metrics"}  # a process that starts before its database counts until it can compare the secret
_MAY_READ = 0o700  # the owner, and nobody else


def wrong_secrets_are_refused(run: Evidence) -> Findings:
    """a process that is started with a missing, short, empty, foreign or unreadable secret ends with exit code 1 and a
    sentence, and makes no file
    """
    for command in run.log.commands:
        if command.name.startswith(REFUSED_START):
            is_said = any(line.startswith("workbench: ") for line in command.output.splitlines())
            made = ", ".join(command.files.keys() - _OF_ITS_OWN)
            good = command.code == 1 and is_said and not made
            yield (
                None if good else f"{command.name} ended with {command.code} and made [{made}]: {command.output[-300:]}"
            )


def supervisor_survives(run: Evidence) -> Findings:
    """`up` says which process cannot be started or cannot write its log, tries again until it runs, and keeps the
    others running
    """
    for attack in run.log.attacks:
        name = f"{attack.victim} of up was killed while {attack.name}"
        yield (
            None
            if f"{attack.victim} {attack.expected_output}" in attack.output
            else f"{name}, and it said {attack.output!a}"
        )
        yield None if attack.is_restarted else f"{name}, and was not restarted"
        good = attack.others_ran_on and set(attack.statuses) <= {200}
        yield None if good else f"{name}, and the others did not keep running: {sorted(set(attack.statuses))}"


def backups_are_private(run: Evidence) -> Findings:
    """a backup has two files, which only their owner can read, also if it failed; without faults it is complete"""
    backups = [command for command in run.log.commands if command.name == BACKUP]
    for backup in backups:
        open_ones = [f"{file} {mode:o}" for file, mode in backup.files.items() if mode & ~_MAY_READ]
        yield f"a backup has {', '.join(open_ones)}" if open_ones else None
    if backups:
        last = backups[-1]
        yield None if last.code == 0 and len(last.files) == 3 else f"the last backup failed: {last.output[-300:]}"


def bombs_are_stopped(run: Evidence) -> Findings:
    """a query that would not end, or would take all memory, is stopped after its time or at its memory"""
    for bomb in run.log.bombs:
        span = bomb.began, bomb.ended
        took = bomb.ended - bomb.began - _us(overlap([span], run.outages))
        is_late = took > BOMB_PROMISED_US + run.slack
        # A process that is killed or frozen watches no query.
        is_watched = not any(overlap([span], spans) for spans in run.api_outages.values())
        is_large = is_watched and bomb.peak > MOST_BYTES
        name = f"the {bomb.name} query of {bomb.org}"
        yield f"{name} ended after {took / 1e6:.1f} s at {bomb.peak / 1e9:.1f} GB" if is_late or is_large else None
    for name in {bomb.name for bomb in run.log.bombs}:
        statuses = {bomb.status for bomb in run.log.bombs if bomb.name == name}
        yield None if statuses & {400, 408} else f"the {name} query was never stopped, it was answered {statuses}"


def lifted_limits_are_put_back(run: Evidence) -> Findings:
    """a limit that a direct login removes for its later sessions is put back within a second"""
    for lifted in run.log.lifted:
        span = lifted.began, lifted.ended
        late = lifted.ended - lifted.began - PUT_BACK_US - run.slack - _us(overlap([span], run.outages))
        good = lifted.ended and late <= 0
        yield None if good else f"the login of {lifted.org} has kept its limits lifted since {lifted.began}"


def _us(spans: list[Span]) -> int:
    return sum(ended - began for began, ended in spans)


def terminals_obey_nothing(run: Evidence) -> Findings:
    """no display, output of a command, log or pulled file has a control or format character or a traceback, and no cell
    of CSV for spreadsheets begins a formula; hostile texts are in what was searched
    """
    for text in run.log.shown:
        yield None
        for wrong in text.wrong:
            yield f"{text.place} has {wrong}"
    if run.log.shown:
        for place in (DISPLAY, CSV, PULLED):
            quoted = any(text.quotes and text.place.startswith(place) for text in run.log.shown)
            yield None if quoted else f"no {place} has a hostile text, so {place} proves nothing"
