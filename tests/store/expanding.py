"""What a migration may do while code of the version before is at work: the forms that are allowed, and nothing else."""

import re
from collections.abc import Iterator

from api.store.migrations import Migration

_CONSTANT = r"(?:'[^']*'(?:::\w+(?:\[\])?)?|-?\d+(?:\.\d+)?|true|false|NULL)"
_TYPE = r"(?:text|smallint|integer|bigint|numeric|double precision|boolean|uuid|bytea|jsonb|timestamptz)(?:\[\])?"
_COLUMN = rf"ADD COLUMN (?:IF NOT EXISTS )?\w+ {_TYPE}(?: (?:NOT NULL )?DEFAULT {_CONSTANT}(?: NOT NULL)?)?"
_CHECK = r"ADD CONSTRAINT \w+ (?:CHECK|FOREIGN KEY) .* NOT VALID"
_ALLOWED = (
    r"CREATE SCHEMA \w+",
    r"CREATE TABLE (?:IF NOT EXISTS )?[\w.]+ \(.*",
    rf"ALTER TABLE [\w.]+ (?:{_COLUMN}(?:, )?)+",
    rf"ALTER TABLE [\w.]+ {_CHECK}",
    r"ALTER TABLE [\w.]+ VALIDATE CONSTRAINT \w+",
    r"ALTER TABLE [\w.]+ ENABLE ROW LEVEL SECURITY",
    rf"ALTER TABLE [\w.]+ ALTER COLUMN \w+ SET DEFAULT {_CONSTANT}",
    r"ALTER TABLE [\w.]+ ALTER COLUMN \w+ DROP NOT NULL",
    r"CREATE (?:OR REPLACE )?VIEW [\w.]+ .*",  # Postgres itself lets a view that is replaced only grow at its end
    r"CREATE FUNCTION .*",
    r"CREATE POLICY .*",
    r"GRANT .*",
    r"COMMENT ON .*",
    r"INSERT INTO .*",
)
_OUTSIDE = (r"DROP INDEX CONCURRENTLY IF EXISTS [\w.]+", r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY \w+ ON .*")


def refused(migration: Migration) -> list[str]:
    """Return the statements of a migration that may disturb code of the version before."""
    if migration.needs is not None:
        return []
    found = list(_statements(migration.text))
    if not migration.in_transaction:
        return [each for each in found if not _is(each, _OUTSIDE)] + _without_a_second_try(found)
    own = {name for each in found for name in re.findall(r"^CREATE TABLE (?:IF NOT EXISTS )?([\w.]+)", each)}
    return [each for each in found if not _is(each, _ALLOWED) and not _on_own_table(each, own)]


def _statements(text: str) -> Iterator[str]:
    """Give statements in one line each; what stands between `$$` belongs to its statement."""
    text = re.sub(r"--[^\n]*", "", text)
    text = re.sub(r"\$\$.*?\$\$", "$$", text, flags=re.DOTALL)
    for each in text.split(";"):
        if statement := " ".join(each.split()):
            yield statement


def _is(statement: str, forms: tuple[str, ...]) -> bool:
    return any(re.fullmatch(form, statement, re.IGNORECASE) for form in forms)


def _on_own_table(statement: str, own: set[str]) -> bool:
    """Tell whether this is an index on a table that is made by the same migration."""
    on = re.match(r"CREATE (?:UNIQUE )?INDEX (?:\w+ )?ON ([\w.]+) ", statement, re.IGNORECASE)
    return on is not None and on[1] in own


def _without_a_second_try(statements: list[str]) -> list[str]:
    """Return indexes that a second try would not build: the first one leaves a broken index of that name."""
    dropped = {each.split()[-1].split(".")[-1] for each in statements if each.upper().startswith("DROP INDEX")}
    created = [
        (each, re.search(r"CONCURRENTLY (\w+)", each)) for each in statements if each.upper().startswith("CREATE")
    ]
    return [each for each, name in created if name is None or name[1] not in dropped]
