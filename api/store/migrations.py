"""What migrations there are, and which code works on what they leave behind.

Every migration expands: it only adds, so that code of the version before goes on working (`tests/store/test_migrations.py` holds each to
that). What is no longer used is taken away by one that contracts, which begins with the line

    -- contract: needs 0007_name

Code that knows 0007_name works without what is taken away. It is applied only when it is asked for. A line `-- outside a transaction` is
for indexes that are built beside the traffic: such a file's statements run one by one.
"""

import hashlib
import re
from collections.abc import Mapping
from functools import cache

import msgspec

from api.store.statements import sql_folder

_NEEDS = re.compile(r"^-- contract: needs (\w+)$", re.MULTILINE)
_OUTSIDE = re.compile(r"^-- outside a transaction$", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True):
    """One file of `sql/migrations`. `needs`: of one that contracts, the migration that code has to know."""

    name: str
    text: str
    needs: str | None
    in_transaction: bool

    @property
    def digest(self) -> str:
        """What tells an edited file from the one that was applied."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def statements(self) -> list[str]:
        """The statements one by one, without comments; none of them may hold a semicolon."""
        lines = [line for line in self.text.splitlines() if not line.lstrip().startswith("--")]
        return [each for each in map(str.strip, "\n".join(lines).split(";")) if each]


class Standing(msgspec.Struct, frozen=True):
    """How code and database stand to each other: names of migrations.

    `missing`: those that the code needs and the database has not. `contracts`: those that may follow when no older code runs.
    `beyond`: those after which this code does not work.
    """

    missing: list[str]
    contracts: list[str]
    beyond: list[str]


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations of this code in the order in which they apply."""
    return tuple(
        read(path.stem, path.read_text("utf-8")) for path in sorted((sql_folder() / "migrations").glob("[0-9]*.sql"))
    )


def read(name: str, text: str) -> Migration:
    """Return what a file says."""
    needs = _NEEDS.search(text)
    return Migration(name, text, None if needs is None else needs[1], _OUTSIDE.search(text) is None)


def newest() -> str:
    """Return the newest migration that this code knows, by which databases tell older code from newer."""
    return migrations()[-1].name


def standing(applied: Mapping[str, str | None]) -> Standing:
    """Return how this code stands to a database with these migrations, each with what it needs."""
    ours = {migration.name for migration in migrations()}
    waiting = [migration for migration in migrations() if migration.name not in applied]
    return Standing(
        [migration.name for migration in waiting if migration.needs is None],
        [migration.name for migration in waiting if migration.needs is not None],
        sorted(name for name, needs in applied.items() if name not in ours and needs is not None and needs not in ours),
    )
