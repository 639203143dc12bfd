"""An organization's analyst sees its own rows, whatever the statement, and acts on nothing (docs/trust.md, group L)."""

import asyncio
import json
import re
import sys
from urllib.parse import urlsplit

import psycopg
import pytest

from api.auth import keys
from api.crypto import Keyring
from api.store.database import Database
from api.store.sql_roles import ReaderError, Readers
from tests.servers import database_dsn

CANARIES = {
    "app_events": "event",
    "contacts": "external_id",
    "merged_contacts": "external_id",
    "contact_changes": "field",
    "contacts_at(now())": "external_id",
    "onchain_events": "contract",
    "messages": "body",
    "message_outcomes": "reason",
    "automations": "name",
    "automation_entries": "outcome",
    "entry_steps": "outcome",
    "entry_moves": "to_node_id",
    "dead_letters": "automation",
    "segment_members": "segment",
    "segments": "name",
    "segment_sizes": "segment",
    "broadcasts": "segment",
    "consents": "topic",
    "declined_topics": "topic",
    "suppressions": "cause",
    "rejected_events": "event",
}


@pytest.mark.parametrize(("table", "column"), CANARIES.items())
async def test_each_organization_sees_only_its_own_rows(service, table, column):
    statement = f"SELECT {column} FROM {table}"
    assert await service.ann.rows(statement) == [["canary_a"]]
    assert await service.ben.rows(statement) == [["canary_b"]]


async def test_joins_aggregates_and_common_tables_work(service):
    statement = """
        WITH named AS (SELECT event, contact_id FROM app_events)
        SELECT c.external_id, count(*), max(s.segment) FROM named
        JOIN contacts c ON c.id = contact_id LEFT JOIN segment_members s USING (contact_id) GROUP BY 1;  -- one row
    """
    assert await service.ann.rows(statement) == [["canary_a", 1, "canary_a"]]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT address_digest FROM suppressions",
        "SELECT value_digest FROM identities",
        "SELECT (s).address_digest FROM (SELECT s FROM suppressions s) t",
        "SELECT * FROM suppressions JOIN workbench.identities USING (contact_id)",
    ],
)
async def test_analysts_cannot_read_the_indexes_of_addresses(service, statement):
    assert (await service.ann.post(statement)).status_code == 400


async def test_a_suppression_has_no_column_but_those_of_its_contact(service):
    ((row,),) = await service.ann.rows("SELECT row_to_json(s)::text FROM suppressions s")
    assert list(json.loads(row)) == ["channel", "contact_id", "cause", "created_at"]


async def test_a_cast_to_the_name_of_a_role_cannot_be_forbidden(service, postgres, keyring):
    """If this fails, Postgres has learnt to check the right: revoke it, and delete the passage in docs/security.md."""
    await service.ann.rows("SELECT 1")
    await service.ben.rows("SELECT 1")
    reader, other = (keyring.reader_role(analyst.org_id) for analyst in (service.ann, service.ben))
    with psycopg.connect(database_dsn(postgres.admin_dsn, urlsplit(service.dsn).path[1:])) as admin:
        (number,) = admin.execute("SELECT oid FROM pg_roles WHERE rolname = %s", (other,)).fetchone()
        admin.execute("REVOKE EXECUTE ON FUNCTION regroleout(regrole), regrolein(cstring) FROM PUBLIC")
        admin.execute("REVOKE USAGE ON TYPE regrole FROM PUBLIC")
        admin.execute(f"SET LOCAL ROLE {reader}")
        (name,) = admin.execute(f"SELECT {number}::oid::regrole::text").fetchone()
        admin.rollback()
    assert name == other


ESCAPES = {
    # L2: taking another role
    "SELECT set_config('role', 'workbench', false)": ("42501", "permission denied for function set_config"),
    "WITH s AS (SELECT set_config('row_security', 'off', false)) SELECT * FROM s": (
        "42501",
        "permission denied for function set_config",
    ),
    "SELECT query_to_xml('select 1', true, true, '')": ("42501", "permission denied for function query_to_xml"),
    "SET ROLE workbench": ("42601", 'syntax error at or near "SET"'),
    "SET LOCAL role = workbench": ("42601", 'syntax error at or near "SET"'),
    "RESET ROLE": ("42601", 'syntax error at or near "RESET"'),
    "SET SESSION AUTHORIZATION postgres": ("42601", 'syntax error at or near "SET"'),
    "SET row_security = off": ("42601", 'syntax error at or near "SET"'),
    # L3: more than one statement, or control of the transaction
    "COMMIT; DROP TABLE workbench.contacts": ("42601", 'syntax error at or near "COMMIT"'),
    "SELECT 1; SELECT 2": ("42601", "cannot insert multiple commands into a prepared statement"),
    "SELECT 1; COMMIT": ("42601", "cannot insert multiple commands into a prepared statement"),
    "BEGIN": ("42601", 'syntax error at or near "BEGIN"'),
    "SET TRANSACTION READ WRITE": ("42601", 'syntax error at or near "SET"'),
    "WITH HOLD FOR SELECT 1": ("42601", 'syntax error at or near "FOR"'),
    # L4: statements other than SELECT
    "INSERT INTO contacts (id) VALUES (gen_random_uuid())": ("42601", 'syntax error at or near "INSERT"'),
    "UPDATE contacts SET email = ''": ("42601", 'syntax error at or near "UPDATE"'),
    "DELETE FROM contacts": ("42601", 'syntax error at or near "DELETE"'),
    "MERGE INTO contacts c USING contacts d ON true WHEN MATCHED THEN DELETE": (
        "42601",
        'syntax error at or near "MERGE"',
    ),
    "WITH gone AS (DELETE FROM contacts RETURNING id) SELECT * FROM gone": (
        "0A000",
        "DECLARE CURSOR must not contain data-modifying statements in WITH",
    ),
    "SELECT * INTO loot FROM contacts": ("42601", "SELECT ... INTO is not allowed here"),
    # Refused because the role has no right to write, or on Postgres 16 because the transaction is read-only.
    "SELECT * FROM contacts FOR UPDATE": ("42501 25006", None),
    "COPY contacts TO STDOUT": ("42601", 'syntax error at or near "COPY"'),
    "DO 'BEGIN END'": ("42601", 'syntax error at or near "DO"'),
    "CALL nothing()": ("42601", 'syntax error at or near "CALL"'),
    "LOCK TABLE contacts": ("42601", 'syntax error at or near "LOCK"'),
    "NOTIFY wake": ("42601", 'syntax error at or near "NOTIFY"'),
    "LISTEN wake": ("42601", 'syntax error at or near "LISTEN"'),
    "PREPARE p AS SELECT 1": ("42601", 'syntax error at or near "PREPARE"'),
    "DECLARE c CURSOR FOR SELECT 1": ("42601", 'syntax error at or near "DECLARE"'),
    # L8: estimates depend on the rows of other organizations
    "EXPLAIN SELECT * FROM contacts": ("42601", 'syntax error at or near "EXPLAIN"'),
    # L5: functions with side effects
    "SELECT pg_read_file('/etc/passwd')": ("42501", "permission denied for function pg_read_file"),
    "SELECT lo_import('/etc/passwd')": ("42501", "permission denied for function lo_import"),
    "SELECT lo_from_bytea(0, 'x')": ("42501", "permission denied for function lo_from_bytea"),
    "SELECT lo_create(0)": ("42501", "permission denied for function lo_create"),
    "SELECT dblink('', '')": ("42883", "function dblink(unknown, unknown) does not exist"),
    "SELECT pg_notify('a', 'b')": ("42501", "permission denied for function pg_notify"),
    "SELECT pg_advisory_lock(1)": ("42501", "permission denied for function pg_advisory_lock"),
    "SELECT pg_try_advisory_xact_lock(1)": ("42501", "permission denied for function pg_try_advisory_xact_lock"),
    "SELECT pg_sleep(1)": ("42501", "permission denied for function pg_sleep"),
    "SELECT pg_terminate_backend(1)": ("42501", "permission denied for function pg_terminate_backend"),
    "SELECT pg_cancel_backend(1)": ("42501", "permission denied for function pg_cancel_backend"),
    "SELECT nextval('x')": ("42P01", 'relation "x" does not exist'),
    "SELECT nextval('workbench.organizations_id_seq')": ("42501", "permission denied for schema workbench"),
    "SELECT currval('workbench.organizations_id_seq')": ("42501", "permission denied for schema workbench"),
    "SELECT lastval()": ("42501", "permission denied for function lastval"),
    "SELECT txid_current()": ("42501", "permission denied for function txid_current"),
    "SELECT pg_current_xact_id()": ("42501", "permission denied for function pg_current_xact_id"),
    "SELECT pg_export_snapshot()": ("42501", "permission denied for function pg_export_snapshot"),
    "SELECT pg_logical_emit_message(false, 'a', 'b')": (
        "42501",
        "permission denied for function pg_logical_emit_message",
    ),
    "SELECT pg_get_userbyid(10)": ("42501", "permission denied for function pg_get_userbyid"),
    "SELECT pg_relation_size(1)": ("42501", "permission denied for function pg_relation_size"),
    "SELECT ts_stat('select 1')": ("42501", "permission denied for function ts_stat"),
    # L13: what has no form in an answer
    "SELECT convert_from('\\xff', 'UTF8')": ("22021", 'invalid byte sequence for encoding "UTF8": 0xff'),
    "SELECT chr(0)": ("54000", "null character not permitted"),
    "SELECT " + ", ".join(["1"] * 1665): ("54011", "target lists can have at most 1664 entries"),
    # L6: system catalogs
    "SELECT * FROM pg_stats": ("42501", "permission denied for view pg_stats"),
    "SELECT reltuples FROM pg_class": ("42501", "permission denied for table pg_class"),
    "SELECT rolname FROM pg_roles": ("42501", "permission denied for view pg_roles"),
    "SELECT query FROM pg_stat_activity": ("42501", "permission denied for view pg_stat_activity"),
    "SELECT * FROM pg_policies": ("42501", "permission denied for view pg_policies"),
    "SELECT * FROM pg_settings": ("42501", "permission denied for view pg_settings"),
    "SELECT * FROM information_schema.tables": ("42501", "permission denied for schema information_schema"),
    "SELECT * FROM workbench.contacts": ("42501", "permission denied for schema workbench"),
    "SELECT * FROM workbench.organizations": ("42501", "permission denied for schema workbench"),
    "SELECT * FROM workbench.events_other": ("42501", "permission denied for schema workbench"),
    "SELECT * FROM public.workbench_migrations": ("42501", "permission denied for schema public"),
    # L11
    "set statement_timeout = 0": ("42601", 'syntax error at or near "set"'),
    "SELECT set_config('statement_timeout', '0', false)": ("42501", "permission denied for function set_config"),
    # L17: other spellings
    "SELECT pg_catalog.set_config('role', 'x', false)": ("42501", "permission denied for function set_config"),
    "SELECT \"set_config\"('role', 'x', false)": ("42501", "permission denied for function set_config"),
    "SELECT U&\"set\\005fconfig\"('role', 'x', false)": ("42501", "permission denied for function set_config"),
    "SELECT 'workbench.api_keys'::regclass": ("42501", "permission denied for schema workbench"),
    "SELECT table_to_xml('contacts'::regclass, true, true, '')": (
        "42501",
        "permission denied for function table_to_xml",
    ),
    "SELECT 1 OPERATOR(pg_catalog.+) pg_advisory_lock(1)": ("42883", None),
    "SELECT (set_config('role', 'x', false)).*": ("42809", None),
    "SELECT (pg_stat_file('postgresql.conf')).*": ("42501", "permission denied for function pg_stat_file"),
    "SELECT * FROM ROWS FROM (pg_ls_dir('.'), pg_stat_get_activity(NULL)) f": ("42501", None),
    "SELECT 'set_config'::regproc(1)": ("42601", None),
    "SELECT 'contacts'::information_schema.sql_identifier": (
        "42501",
        "permission denied for schema information_schema",
    ),
}


@pytest.mark.parametrize("statement", ESCAPES)
async def test_an_escape_is_refused_by_postgres(service, statement):
    sqlstate, reason = ESCAPES[statement]
    response = await service.ann.post(statement)
    assert response.status_code == 400
    body = response.json()
    assert body["sqlstate"] in sqlstate.split(), body
    assert reason is None or body["error"] == f"sql: {reason}"
    assert body["field"] == "sql"
    assert "canary_b" not in response.text


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT (c).* FROM (SELECT c FROM contacts c) s",
        "SELECT 1 OPERATOR(pg_catalog.+) 1, * FROM app_events",
        "SELECT *, 'contacts'::regclass FROM contacts",
        "TABLE contacts",
        "SELECT *, current_user, session_user FROM messages",
        "SELECT row_to_json(s) FROM segment_members s",
        "SELECT * FROM contacts WHERE external_id::text = 'canary_b' OR 1 / (length(external_id) - 8) > 100 OR true",
    ],
)
async def test_no_spelling_shows_another_organizations_row(service, statement):
    response = await service.ann.post(statement)
    assert "canary_b" not in response.text


async def test_the_name_of_a_role_reveals_nothing(service):
    ((name,),) = await service.ann.rows("SELECT current_user::text")
    assert re.fullmatch("wb_reader_[0-9a-f]{20}", name)


async def test_dry_runs_are_no_events(service, keyring):
    live = await keys.create(service.dsn, keyring, "a", "live")
    event = {"event": "canary_dry", "contact": {"externalId": "canary_dry"}, "test": True}
    answered = await service.ann.client.post("/api/v1/events", json=event, headers={"Authorization": f"Bearer {live}"})
    assert answered.json()["dryRun"] is True
    for table in CANARIES:
        assert "canary_dry" not in (await service.ann.post(f"SELECT row_to_json(t)::text FROM {table} t")).text


async def test_a_leaky_expression_meets_no_row_of_another_organization(service):
    statement = "SELECT external_id FROM contacts WHERE 1 / (ascii(right(external_id, 1)) - ascii('b')) < 100"
    assert await service.ann.rows(statement) == [["canary_a"]]


async def test_the_application_keeps_the_rights_that_analysts_lost(service):
    with psycopg.connect(service.dsn, autocommit=True) as connection:
        kept = "SELECT set_config('application_name', 'x', false), pg_advisory_xact_lock(1), pg_notify('a', 'b')"
        assert connection.execute(kept).fetchone() == ("x", "", "")
        assert connection.execute("SELECT count(*) > 0 FROM pg_stat_activity").fetchone() == (True,)
        assert connection.execute("SELECT count(*) > 0 FROM information_schema.tables").fetchone() == (True,)


async def test_a_reader_has_few_connections_and_a_limit_for_temporary_files(service, keyring):
    await service.ann.rows("SELECT 1")
    with psycopg.connect(service.dsn) as connection:
        statement = "SELECT rolcanlogin, rolsuper, rolconnlimit, rolconfig FROM pg_roles WHERE rolname = %s"
        row = connection.execute(statement, (keyring.reader_role(service.ann.org_id),)).fetchone()
    assert row is not None
    assert row[:3] == (True, False, 4)
    assert "temp_file_limit=512MB" in row[3]


_PROVIDE = """
import asyncio, sys
from api.crypto import Keyring
from api.store.database import Database
from api.store.sql_roles import Readers
async def main(dsn, secret, org_id):
    database = Database(dsn)
    await database.open()
    print((await Readers(database, Keyring(secret)).of(int(org_id))).role)
    await database.close()
asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_create_the_same_reader_concurrently(database_url):
    keyring = Keyring(f"secret of {database_url}")  # roles belong to the server: one that no other test has made

    async def provide() -> bytes:
        arguments = (sys.executable, "-c", _PROVIDE, database_url, f"secret of {database_url}", "7")
        process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return out

    role = keyring.reader_role(7)
    assert await asyncio.gather(provide(), provide()) == [role.encode() + b"\n"] * 2
    with psycopg.connect(database_url) as connection:
        policies = connection.execute("SELECT qual FROM pg_policies WHERE policyname = %s", (role,)).fetchall()
    # dead_letters, contacts_at and merged_contacts read tables of other views, suppressions and entry_moves two
    own_tables = len(CANARIES) - 3 + 2
    assert policies == [("(org_id = 7)",)] * own_tables


async def test_a_role_without_createrole_gets_the_command_to_run(postgres, database_url, keyring):
    address = urlsplit(database_url)
    owner = address.netloc.partition(":")[0]
    with psycopg.connect(postgres.admin_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE powerless LOGIN PASSWORD 'x' IN ROLE {owner}")
        database = Database(address._replace(netloc=f"powerless:x@{address.netloc.rpartition('@')[2]}").geturl())
        await database.open()
        with pytest.raises(ReaderError, match=r"powerless needs to create .* run: ALTER ROLE powerless CREATEROLE"):
            await Readers(database, Keyring("a secret without readers yet")).of(1)
        await database.close()
        admin.execute("DROP ROLE powerless")


async def test_a_view_without_row_policies_disables_sql(database_url, keyring):
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE VIEW analyst.leak AS SELECT name FROM workbench.organizations")
    database = Database(database_url)
    await database.open()
    with pytest.raises(ReaderError, match="SQL is switched off: leak, organizations would show"):
        await Readers(database, keyring).of(1)
    await database.close()
