"""`workbench bounce < REPORT`: record the report of a mail server about an email (a bounce or a complaint).

A mail server calls it for each email to the return path. The exit code is 0 also for an email that is not a report, so
that the server does not bounce it, and 75 (EX_TEMPFAIL) if the database is unavailable, so that the server tries again.
"""

import argparse
import os
import sys

from api.channels.bounce import MAX_REPORT_BYTES, read_bounce
from api.cli.database import run_with_keyring
from api.cli.errors import add_database, note
from api.clock import Clock
from api.contacts.bounces import BounceOutcome, record_bounce
from api.crypto import Keyring
from api.settings import Settings
from api.store.database import Database, DatabaseUnavailableError, TransactionConflictError


def add_options(parser: argparse.ArgumentParser) -> None:
    add_database(parser)
    parser.set_defaults(run=run)


def run(_: argparse.Namespace, settings: Settings) -> int:
    try:
        outcome = run_with_keyring(settings, _record, sys.stdin.buffer.read(MAX_REPORT_BYTES))
    except (DatabaseUnavailableError, TransactionConflictError) as error:
        note(f"try again later: {error}")
        return os.EX_TEMPFAIL
    note(outcome)
    return 0


async def _record(dsn: str, keyring: Keyring, raw: bytes) -> BounceOutcome:
    bounce = read_bounce(keyring, raw)
    if bounce is None:
        return "unknown"
    database, clock = Database(dsn), Clock()
    await database.open()
    try:
        await database.calibrate(clock)
        return await record_bounce(database, keyring, clock, bounce)
    finally:
        await database.close()
