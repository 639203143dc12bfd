"""Tab completes segments and event names between brackets, also names that the catalog does not list."""

from collections.abc import Iterator

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from tests.running import Running
from tests.workbench.test_export import Operator
from workbench import Workbench, environment
from workbench.language.codec import encode


@pytest.fixture(scope="module")
def wb(running: Running, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A workbench for an organization with 230 events of different names."""
    operator = Operator(running)
    operator.run("org", "create", "naming")
    history = tmp_path_factory.mktemp("names") / "events.ndjson"
    at = f"{environment.now():%Y-%m-%dT00:00:00Z}"
    names = [f"step_{number:03}" for number in range(230)]
    history.write_bytes(b"\n".join(encode(_event(name, at)) for name in names))
    operator.run("import", history, "--org", "naming")
    return Workbench(running.url, operator.key("naming", "events:read,sql:read,automations:write"))


def _event(name: str, at: str) -> dict[str, object]:
    return {"event": name, "contact": {"externalId": "u1"}, "occurredAt": at}


@pytest.fixture
def shell(wb: Workbench) -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    shell.push({"wb": wb})
    yield shell
    InteractiveShell.clear_instance()


def completions(shell: InteractiveShell, written: str) -> set[str]:
    with provisionalcompleter():
        return {completion.text for completion in shell.Completer.completions(written, len(written))}


def test_segments_complete(shell: InteractiveShell, wb: Workbench) -> None:
    wb.segments.define("whales", sql="SELECT contact_id FROM app_events")
    assert "whales" in completions(shell, 'wb.segments["wh')


@pytest.mark.parametrize("beginning", ["step_22", "STEP_22"])
def test_names_beyond_the_listed_ones_complete(wb: Workbench, beginning: str) -> None:
    assert "step_229" not in wb.catalog.names
    assert set(wb.catalog.names_with_prefix(beginning)) == {f"step_{number}" for number in range(220, 230)}


@pytest.mark.parametrize(
    "written", ['wb.catalog["step_229', "%%events\nSELECT 1 FROM app_events WHERE event = 'step_229"]
)
def test_names_beyond_the_listed_ones_complete_in_a_shell(shell: InteractiveShell, written: str) -> None:
    shell.run_line_magic("load_ext", "workbench")
    assert "step_229" in completions(shell, written)
