"""Lists the statements that an expanding migration may contain; all others are refused."""

import re
from collections.abc import Iterator

from api.store.database import Migration

_CONSTANT = r"(?:'[^']*'(?:::\w+(?:\[\])?)?|-?\d+(?:\.\d+)?|true|false|NULL)"
_TYPE = r"(?:text|smallint|integer|bigint|numeric|double precision|boolean|uuid|bytea|jsonb|timestamptz)(?:\[\])?"
# Rows that exist get a constant without being written again, and so they do the moment of the migration (`now()`).
_COLUMN = rf"ADD COLUMN (?:IF NOT EXISTS )?\w+ {_TYPE}(?: (?:NOT NULL )?DEFAULT (?:{_CONSTANT}|now\(\))(?: NOT NULL)?)?"
_CHECK = r"ADD CONSTRAINT \w+ (?:CHECK|FOREIGN KEY) .* NOT VALID"
_ALLOWED = (
    r"CREATE SCHEMA \w+",
    r"CREATE TABLE (?:IF NOT EXISTS )?[\w.]+ \(.*",
    rf"ALTER TABLE [\w.]+ (?:{_COLUMN}(?:, )?)+",
    rf"ALTER TABLE [\w.]+ {_CHECK}",
    r"ALTER TABLE [\w.]+ VALIDATE CONSTRAINT \w+",
    r"CREATE TABLE [\w.]+ PARTITION OF [\w.]+ DEFAULT",
    r"ALTER TABLE [\w.]+ ENABLE ROW LEVEL SECURITY",
    r"CREATE SEQUENCE [\w.]+",
    rf"ALTER TABLE [\w.]+ ALTER COLUMN \w+ SET DEFAULT (?:{_CONSTANT}|nextval\('[\w.]+'\))",
    r"ALTER TABLE [\w.]+ ALTER COLUMN \w+ DROP NOT NULL",
    r"CREATE (?:OR REPLACE )?VIEW [\w.]+ .*",  # a replacement can only add columns at the end
    r"CREATE INDEX \w+ ON ONLY [\w.]+ .*",  # of a partitioned table, whose partitions get it during traffic
    r"CREATE (?:OR REPLACE )?FUNCTION .*",
    r"CREATE POLICY .*",
    r"GRANT .*",
    r"COMMENT ON .*",
    r"INSERT INTO .*",
)
_OUTSIDE = (r"DROP INDEX CONCURRENTLY IF EXISTS [\w.]+", r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY \w+ ON .*")


def refused(migration: Migration) -> list[str]:
    """Return the statements of a migration that may break code of the previous version."""
    if migration.needs is not None:
        return []
    statements = list(_statements(migration.text))
    if not migration.in_transaction:
        return [text for text in statements if not _is(text, _OUTSIDE)] + _not_repeatable(statements)
    own = {name for text in statements for name in re.findall(r"^CREATE TABLE (?:IF NOT EXISTS )?([\w.]+)", text)}
    return [text for text in statements if not _is(text, _ALLOWED) and not _on_own_table(text, own)]


def _statements(text: str) -> Iterator[str]:
    """Yield statements in one line each; text between `$$`, or of an atomic function, belongs to its statement."""
    text = re.sub(r"--[^\n]*", "", text)
    text = re.sub(r"\$\$.*?\$\$|BEGIN ATOMIC.*?\nEND", "$$", text, flags=re.DOTALL)
    for part in text.split(";"):
        if statement := " ".join(part.split()):
            yield statement


def _is(statement: str, forms: tuple[str, ...]) -> bool:
    return any(re.fullmatch(form, statement, re.IGNORECASE) for form in forms)


def _on_own_table(statement: str, own: set[str]) -> bool:
    """Return whether this is an index on a table that the same migration creates."""
    on = re.match(r"CREATE (?:UNIQUE )?INDEX (?:\w+ )?ON ([\w.]+) ", statement, re.IGNORECASE)
    return on is not None and on[1] in own


def _not_repeatable(statements: list[str]) -> list[str]:
    """Return indexes that a second attempt would not build, after the first one left an invalid index of that name."""
    dropped = {text.split()[-1].split(".")[-1] for text in statements if text.upper().startswith("DROP INDEX")}
    created = [
        (text, re.search(r"CONCURRENTLY (\w+)", text)) for text in statements if text.upper().startswith("CREATE")
    ]
    return [text for text, name in created if name is None or name[1] not in dropped]
