"""`%%events` runs in a real IPython shell, against the real service."""

from collections.abc import Iterator

import polars as pl
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from tests.running import Running
from workbench import InvalidArgumentError, SqlError, Workbench
from workbench.magic import TABLES, sql_completions


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


@pytest.fixture
def shell(wb: Workbench) -> Iterator[InteractiveShell]:
    shell = InteractiveShell()
    shell.push({"wb": wb})
    shell.run_line_magic("load_ext", "workbench")
    yield shell
    shell.run_line_magic("unload_ext", "workbench")


def run(shell: InteractiveShell, cell: str) -> ExecutionResult:
    return shell.run_cell(cell, store_history=False)


def completed(shell: InteractiveShell, cell: str) -> set[str]:
    """Return the text at `|` for each completion."""
    before, _, after = cell.partition("|")
    with provisionalcompleter():
        completions = shell.Completer.completions(before + after, len(before))
        return {
            before[completion.start :][:0] + completion.text
            for completion in completions
            if before[completion.start :].lower() in completion.text
        }


def test_a_cell_is_a_query(shell: InteractiveShell) -> None:
    frame = run(shell, "%%events\nSELECT 1 AS one,\n       'a:b' AS word").result
    assert frame.to_dicts() == [{"one": 1, "word": "a:b"}]


def test_a_cell_stores_its_frame_in_a_variable(shell: InteractiveShell) -> None:
    assert run(shell, "%%events df\nSELECT 1 AS one").result is None
    assert isinstance(shell.user_ns["df"], pl.DataFrame)
    assert shell.user_ns["df"]["one"].to_list() == [1]


@pytest.mark.parametrize(
    "cell", ["%%sql df <<\nSELECT 1 AS one", "%%sql df\nSELECT 1 AS one", "%sql df << SELECT 1 AS one"]
)
def test_sql_is_the_same_magic_with_the_assignment_of_jupysql(shell: InteractiveShell, cell: str) -> None:
    execution = run(shell, cell)
    assert (execution.success, execution.result, shell.user_ns["df"].rows()) == (True, None, [(1,)])
    assert run(shell, "%sql SELECT 1 << 2 AS four").result.rows() == [(4,)]


def test_a_sql_magic_of_another_extension_stays(shell: InteractiveShell) -> None:
    shell.run_line_magic("unload_ext", "workbench")
    shell.register_magic_function(lambda line: f"theirs {line}", magic_name="sql")
    shell.run_line_magic("load_ext", "workbench")
    assert run(shell, "%sql select 1").result == "theirs select 1"
    assert run(shell, "%events select 1 AS one").result.rows() == [(1,)]
    shell.run_line_magic("unload_ext", "workbench")
    assert (run(shell, "%sql x").result, shell.find_line_magic("events")) == ("theirs x", None)


def test_a_line_is_a_query_without_expansion(shell: InteractiveShell) -> None:
    shell.push({"one": 2})
    execution = run(shell, "df = %events SELECT '{one} $one' AS word, :one AS one")
    assert execution.success
    assert shell.user_ns["df"].rows() == [("{one} $one", 2)]


def test_values_are_the_notebooks_variables(shell: InteractiveShell) -> None:
    shell.push({"names": pl.Series(["deposit", "it's"]), "query": "x", "stream": 3})
    cell = "%%events\nSELECT unnest(:names ::text[]) AS name, :query AS query, :stream AS stream -- not :this"
    assert run(shell, cell).result.rows() == [("deposit", "x", 3), ("it's", "x", 3)]


def test_a_missing_variable_is_named(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(shell, "%%events\nSELECT :since")
    assert isinstance(done.error_in_exec, InvalidArgumentError)
    assert "define the variable since in this notebook" in capsys.readouterr().out


def test_an_invalid_variable_name_is_rejected(shell: InteractiveShell) -> None:
    assert isinstance(run(shell, "%%events select 1\nSELECT 2").error_in_exec, InvalidArgumentError)
    assert isinstance(run(shell, "%%events class\nSELECT 2").error_in_exec, InvalidArgumentError)


def test_errors_are_displayed_like_those_of_wb_sql(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(shell, "%%events\nSELECT event\nFROM app_events\nWHERE evnt = 'x'")
    assert isinstance(done.error_in_exec, SqlError)
    shown = capsys.readouterr().out
    assert "line 3: WHERE evnt = 'x'\n" + " " * 14 + "^" in shown
    assert "Traceback" not in shown


def test_the_workbench_is_wb_or_the_last_one(shell: InteractiveShell, wb: Workbench) -> None:
    shell.push({"wb": None, "away": Workbench("http://127.0.0.1:9", "wb_x"), "mine": wb})
    assert run(shell, "%events SELECT 1 AS one").result["one"].to_list() == [1]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%%events\nSELECT * FROM app|", {"app_events"}),
        ("%%events\nSELECT pay| FROM app_events", {"payload"}),
        ("%%events\nSELECT e.occ|\nFROM app_events e", {"occurred_at"}),
        ("%%events df\nSELECT *\nFROM app_events AS e JOIN contacts c ON c.id = e.con|", {"contact_id"}),
        ("%%events\nSELECT * FROM app_events WHERE event = 'depo|'", {"deposit"}),
        ("%%sql\nSELECT * FROM app|", {"app_events"}),
        ("df = %sql SELECT c.wallet_| FROM contacts c", set()),
        ("%sql SELECT * FROM cont|", {"contacts", "contact_changes"}),
        ("%events SELECT * FROM cont|", {"contacts", "contact_changes"}),
        ("x = 1\n%events SELECT c.wallet_| FROM contacts c", {"wallet_address"}),
        ("%%events\nSELECT x.| FROM app_events e", set()),
    ],
)
def test_tables_columns_and_event_names_complete(shell: InteractiveShell, cell: str, expected: set[str]) -> None:
    assert completed(shell, cell) == expected


def test_completion_outside_the_magic_is_unchanged(shell: InteractiveShell) -> None:
    shell.push({"app_eventful": 1})
    assert "app_eventful" in completed(shell, "app_ev|")
    assert "app_events" not in completed(shell, "app_ev|")


def test_a_reload_leaves_one_magic_and_one_matcher(shell: InteractiveShell) -> None:
    shell.run_line_magic("reload_ext", "workbench")
    assert len(shell.Completer.custom_matchers) == 1
    shell.run_line_magic("unload_ext", "workbench")
    assert not shell.Completer.custom_matchers
    assert shell.find_cell_magic("events") is None
    shell.run_line_magic("load_ext", "workbench")


def test_event_names_with_colons_are_replaced_completely() -> None:
    (completion,) = sql_completions(
        "SELECT * FROM app_events WHERE event IN ('a', 'game:st", "", lambda _: ["game:start", "start"]
    )
    assert (completion.fragment, completion.words) == ("game:st", ("game:start",))


def test_the_tables_are_those_of_the_server(wb: Workbench) -> None:
    assert {name: wb.sql(f"SELECT * FROM {name} LIMIT 0").columns for name in TABLES} == TABLES
