"""`python -m tests.parts --questions 2000 --seed 7`: ask random questions, and print those that have two answers."""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

from api.embedded import EmbeddedPostgres
from api.store.migrate import migrate
from tests.ingest.conftest import Intake
from tests.parts.questions import COUNTED_REPORTS, differences, opened_world
from tests.servers import create_database, database_dsn

QUESTIONS_PER_WORLD = 100


async def ask(dsn: str, folder: Path, seed: int, questions: int) -> int:
    """Ask questions in new worlds; return the number of differences, and of reports without any answer."""
    different = left = 0
    answered: Counter[str] = Counter()
    intake = Intake(dsn)
    await intake.start()
    for number in range(0, questions, QUESTIONS_PER_WORLD):
        world = await opened_world(await intake.organization(), folder, seed + number)
        async for difference in differences(world, min(QUESTIONS_PER_WORLD, questions - number)):
            different += 1
            sys.stdout.write(f"seed {seed + number}: {difference}\n")
        left += world.left
        answered += world.answered
        asked = min(number + QUESTIONS_PER_WORLD, questions)
        sys.stdout.write(f"{asked} questions, {different} differences, {left} left to SQL\n")
        sys.stdout.flush()
    await intake.stop()
    sys.stdout.write(f"{dict(answered)}\n")
    return different + len(COUNTED_REPORTS - set(answered))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="workbench-questions-") as folder, EmbeddedPostgres(Path(folder)) as server:
        create_database(server, "questions")
        dsn, admin_dsn = database_dsn(server.dsn, "questions"), database_dsn(server.admin_dsn, "questions")
        asyncio.run(migrate(dsn, admin_dsn=admin_dsn))
        return asyncio.run(ask(dsn, Path(folder), chosen.seed, chosen.questions)) and 1


if __name__ == "__main__":
    sys.exit(main())
