"""`sql/schema.sql` equals the result of the migrations, and follows the rules that let the same code run on Citus."""

import re
from collections.abc import Iterator

import psycopg

from api.store.database import load, sql_folder

_CATALOG = """
    SELECT 'column', c.relname || '.' || a.attname,
           format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' ' || a.attidentity::text
           || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE n.nspname IN ('workbench', 'analyst', 'analyst_direct', 'analyst_past', 'analyst_changed') AND a.attnum > 0
          AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'v') AND c.relname !~ '^(events|contact_changes)_[0-9]'
    UNION ALL
    SELECT 'table', c.relname,
           c.relkind::text || ' ' || c.relrowsecurity || ' ' || coalesce(array_to_string(c.reloptions, ','), '')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname IN ('workbench', 'analyst', 'analyst_direct', 'analyst_past', 'analyst_changed')
          AND c.relkind IN ('r', 'p', 'v') AND c.relname !~ '^(events|contact_changes)_[0-9]'
    UNION ALL
    SELECT 'index', tablename, indexdef FROM pg_indexes
    WHERE schemaname = 'workbench' AND tablename !~ '^(events|contact_changes)_[0-9]'
    UNION ALL
    SELECT 'constraint', r.relname || '.' || conname, pg_get_constraintdef(o.oid)
    FROM pg_constraint o JOIN pg_class r ON r.oid = conrelid
    WHERE connamespace = 'workbench'::regnamespace AND r.relname !~ '^(events|contact_changes)_[0-9]'
    UNION ALL
    SELECT 'view', schemaname || '.' || viewname, definition FROM pg_views WHERE schemaname ~ '^analyst'
    UNION ALL
    SELECT 'function', pronamespace::regnamespace || '.' || proname, pg_get_functiondef(oid) FROM pg_proc
    WHERE pronamespace::regnamespace::text IN ('workbench', 'analyst', 'analyst_direct')
    ORDER BY 1, 2, 3
"""


def catalog(dsn: str) -> list[tuple[str, str, str]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(_CATALOG).fetchall()


def test_the_migrations_build_the_schema(database_url: str) -> None:
    migrated = catalog(database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute("DROP SCHEMA workbench CASCADE")
        connection.execute("DROP SCHEMA IF EXISTS analyst, analyst_direct, analyst_past, analyst_changed CASCADE")
        connection.execute((sql_folder() / "schema.sql").read_bytes())
        for script in ("row_security.sql", "triggers.sql"):
            connection.execute((sql_folder() / script).read_bytes())
    assert catalog(database_url) == migrated


def test_every_key_of_tenant_data_begins_with_the_organization(database_url: str) -> None:
    keys = {
        name: definition
        for kind, name, definition in catalog(database_url)
        if kind == "constraint" and definition.startswith(("PRIMARY KEY", "UNIQUE", "FOREIGN KEY"))
    }
    exceptions = {name for name, definition in keys.items() if not definition.split("(")[1].startswith("org_id")}
    assert exceptions == {
        "organizations.organizations_pkey",  # the table of organizations itself
        "organizations.organizations_name_key",
        "api_keys.api_keys_key_hash_key",  # a key is looked up before its organization is known
        "engines.engines_pkey",  # processes, not tenants
        "chains.chains_pkey",  # belongs to no organization
        "chain_blocks.chain_blocks_pkey",
        "clusters.clusters_pkey",  # servers, not tenants
        "channels.channels_pkey",  # of the database
        "root_secrets.root_secrets_pkey",
    }


def statements() -> dict[str, str]:
    files = sorted((sql_folder() / "queries").glob("*.sql"))
    return {f"{file.stem}.{name}": body for file in files for name, body in load(file.stem).items()}


_FORBIDDEN = {
    r"\bMERGE\s+INTO\b": "MERGE",
    r"\bCREATE\s+TRIGGER\b": "a trigger",
    r"DO UPDATE SET[^;]*\bnow\(\)": "now() in DO UPDATE",
}


def test_no_statement_has_a_form_that_citus_refuses() -> None:
    forbidden = {
        (name, word)
        for name, body in statements().items()
        for form, word in _FORBIDDEN.items()
        if re.search(form, body, re.IGNORECASE)
    }
    assert forbidden == set()


def test_rows_of_a_query_are_inserted_in_a_way_that_row_level_security_allows_on_citus() -> None:
    """Citus writes them by COPY, which row-level security refuses, unless the statement has one of these words."""
    unprotected = {
        (name, part)
        for name, body in statements().items()
        for part in inserts(body)
        if "VALUES" not in part and not re.search(r"\b(RETURNING|ON CONFLICT)\b", part)
    }
    assert {
        part for _, part in unprotected if re.match(f"(workbench.)?({'|'.join(tenant_tables())})\\b", part)
    } == set()


def inserts(body: str) -> Iterator[str]:
    """Yield each INSERT of a statement, from its table to the end of the statement or of its parentheses."""
    for begun in re.finditer("INSERT INTO ", body):
        depth = 0
        for at, letter in enumerate(body[begun.end() :]):
            depth += (letter == "(") - (letter == ")")
            if depth < 0:
                yield body[begun.end() : begun.end() + at]
                break
        else:
            yield body[begun.end() :]


def test_rows_are_locked_only_within_one_organization() -> None:
    locking = {name: body for name, body in statements().items() if re.search(r"FOR (NO KEY )?UPDATE", body)}
    assert locking
    assert {name for name, body in locking.items() if "org_id = %(org_id)s" not in body} == set()


def tenant_tables() -> set[str]:
    schema = (sql_folder() / "schema.sql").read_text()
    tables = re.findall(r"CREATE TABLE workbench\.(\w+) \((.*?)^\)", schema, re.DOTALL | re.MULTILINE)
    return {name for name, columns in tables if re.search(r"^    org_id ", columns, re.MULTILINE)}


def test_every_statement_on_tenant_data_names_the_organization() -> None:
    tables = "|".join(tenant_tables())
    on_tenant_data = re.compile(rf"\b(?:FROM|JOIN|INTO|UPDATE)\s+(?:workbench\.)?(?:{tables})\b")
    reaching = {name for name, body in statements().items() if on_tenant_data.search(body)}
    assert {"events.add_events", "entries.claim_entries", "access.find_keys"} <= reaching
    of_no_organization = {
        "citus.register_cluster",  # reads one number, once after the database has moved
        "parts.keep_folder",  # renews the lease of a folder, whichever organizations have their parts in it
    }
    assert {name for name in reaching if "org_id" not in statements()[name]} == of_no_organization
