"""`workbench automations pull, plan, apply` keeps automations as files, against the real service."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running import Running
from workbench import Automation, Workbench
from workbench.__main__ import main
from workbench.git.files import LOCK, file_name, read_file

Command = Callable[..., tuple[int, str, str]]
HERE = "automations"


@pytest.fixture(scope="module")
def key(running: Running) -> Callable[[str], str]:
    """Return a function that creates an organization and returns a workbench key for it."""

    def create(name: str) -> str:
        def command(*arguments: str) -> str:
            environment = running.environment() | {"WORKBENCH_DATA_DIR": str(running.folder / "data")}
            environment.pop("DATABASE_URL", None)
            command_line = [sys.executable, "-m", "api", *arguments]
            return subprocess.run(
                command_line, env=environment, check=True, capture_output=True, text=True
            ).stdout.strip()

        command("org", "create", name)
        return command("key", "create", "--org", name, "--kind", "workbench", "--name", "Ada")

    return create


@pytest.fixture(scope="module")
def organization(key: Callable[[str], str]) -> str:
    return key("files")


@pytest.fixture
def wb(running: Running, organization: str) -> Any:
    """A workbench of an organization without automations."""
    workbench = Workbench(running.url, organization)
    yield workbench
    for record in workbench.automations:
        workbench.automation(record.name).archive()


@pytest.fixture
def command(wb: Workbench, organization: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> Command:
    """Run a command in an empty folder; return its exit code, stdout and stderr."""
    monkeypatch.setenv("WORKBENCH_URL", wb.url)
    monkeypatch.setenv("WORKBENCH_KEY", organization)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["automations", *arguments])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def thanks(wb: Workbench, name: str = "Thanks") -> Automation:
    return wb.automation(name).on("deposit").send_inapp("Thanks", "{{ amountUsd }} USD")


def edit(name: str, old: str, new: str) -> None:
    path = Path(HERE, name)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_pulled_file_is_readable_and_equal_to_the_automation(wb: Workbench, command: Command) -> None:
    thanks(wb).publish()
    assert command("pull") == (0, "new: thanks.json (Thanks)\n", "")
    assert Path(HERE, "thanks.json").read_text() == (
        "{\n"
        '  "name": "Thanks",\n'
        '  "state": "live",\n'
        '  "triggerSpec": {"type": "app_event", "event": "deposit"},\n'
        '  "graph": {\n'
        '    "nodes": [\n'
        "      {\n"
        '        "id": "trigger",\n'
        '        "type": "app_event",\n'
        '        "data": {"actionType": "app_event", "event": "deposit"},\n'
        '        "position": {"x": 0, "y": 0}\n'
        "      },\n"
        "      {\n"
        '        "id": "send_inapp",\n'
        '        "type": "send_inapp",\n'
        '        "data": {\n'
        '          "actionType": "send_inapp",\n'
        '          "body": "{{ amountUsd }} USD",\n'
        '          "onMissing": "skip",\n'
        '          "recipientMode": "triggering_profile",\n'
        '          "title": "Thanks"\n'
        "        },\n"
        '        "position": {"x": 0, "y": 130}\n'
        "      }\n"
        "    ],\n"
        '    "edges": [\n'
        '      {"id": "trigger-send_inapp", "source": "trigger", "target": "send_inapp"}\n'
        "    ]\n"
        "  }\n"
        "}\n"
    )
    assert command("plan") == (0, "1 automation as on the server.\n", "")
    assert command("pull")[1] == "1 automation unchanged.\n"


def test_one_automation_is_pulled_by_name(wb: Workbench, command: Command) -> None:
    thanks(wb).publish()
    thanks(wb, "Other").publish()
    assert command("pull", "--name", "Thanks") == (0, "new: thanks.json (Thanks)\n", "")
    thanks(wb, "Other").delay("1h").publish()
    assert command("plan")[0] == 0
    assert "1 automation of the server not in this folder" in command("plan")[1]
    code, _, error = command("pull", "--name", "Thank")
    assert (code, error) == (
        1,
        "workbench: Automation not found: 'Thank'. Without --name, all automations are pulled.\n",
    )


def test_an_edit_is_planned_and_applied(wb: Workbench, command: Command) -> None:
    thanks(wb).publish()
    command("pull")
    edit("thanks.json", "USD", "dollars")
    code, output, _ = command("plan")
    assert (code, output.split("\n")[:2]) == (
        2,
        ["~ thanks.json (Thanks)", "    ~ send_inapp: body: “{{ amountUsd }} dollars”, before: “{{ amountUsd }} USD”"],
    )
    assert command("pull")[1].startswith("kept: thanks.json (Thanks)\n  edited here, not applied yet")
    assert command("apply") == (0, "updated: thanks.json (Thanks)\n", "")
    assert command("plan")[0] == 0
    assert "live, version 2" in repr(wb.automation("Thanks"))
    assert "dollars" in wb.automation("Thanks").describe()
    assert command("apply")[1] == "Nothing to do.\n"


def test_new_files_renames_and_states_reach_the_server(wb: Workbench, command: Command) -> None:
    Path(HERE).mkdir()
    new = Automation.from_json(thanks(wb, "New one").to_json() | {"name": "New one"})
    Path(HERE, "any.json").write_text(json.dumps(new.to_json() | {"state": "off"}))
    assert command("plan")[:2] == (
        2,
        "+ any.json (New one): new\n"
        "    + trigger: When a deposit event arrives\n"
        "    + send_inapp: Send the in-app message “Thanks” if nothing is missing: “{{ amountUsd }} USD”\n"
        "    will be published and switched off\n"
        "No automations.\n",
    )
    assert command("apply")[0] == 0
    assert "off, version 1" in repr(wb.automation("New one"))
    edit("any.json", '"off"', '"live"')
    edit("any.json", '"New one"', '"Newer one"')
    Path(HERE, "any.json").rename(Path(HERE, "other.json"))
    output = command("plan")[1]
    assert "other.json (Newer one): new" in output  # both the file and the name are new
    Path(HERE, "other.json").rename(Path(HERE, "any.json"))
    assert "~ name: “Newer one”, before: “New one”" in command("plan")[1]
    assert command("apply")[0] == 0
    assert [(record.name, record.active, record.published_version) for record in wb.automations] == [
        ("Newer one", True, 1)
    ]
    assert command("plan")[0] == 0


def test_a_state_of_live_publishes_a_draft_and_cannot_be_undone(wb: Workbench, command: Command) -> None:
    thanks(wb).save()
    command("pull")
    edit("thanks.json", '"draft"', '"live"')
    assert "will be published and switched on" in command("plan")[1]
    assert command("apply")[0] == 0
    assert "live, version 1" in repr(wb.automation("Thanks"))
    assert command("plan")[0] == 0
    edit("thanks.json", '"live"', '"draft"')
    assert "it is published on the server, which cannot be undone" in command("apply")[2]


def test_a_change_on_the_server_is_overwritten_only_on_request(wb: Workbench, command: Command) -> None:
    thanks(wb).publish()
    command("pull")
    wb.automation("Thanks").add_tag("theirs").publish()
    edit("thanks.json", "USD", "dollars")
    code, output, _ = command("plan")
    assert code == 2
    assert "! thanks.json (Thanks): conflict" in output
    code, _, error = command("apply")
    assert code == 1
    assert (
        "nothing was changed, because\n  thanks.json: it was changed on the server since you pulled (publish by Ada, "
        in error
    )
    code, output, _ = command("pull")
    assert (code, output.split(" (")[0]) == (1, "conflict: thanks.json")
    assert command("apply", "--overwrite")[:2] == (0, "overwritten: thanks.json (Thanks)\n")
    assert "theirs" not in wb.automation("Thanks").describe()
    wb.automation("Thanks").deactivate()
    assert "and not here: pull takes it over" in command("apply")[2]
    assert command("pull")[1].startswith("updated: thanks.json")
    assert read_file(Path(HERE, "thanks.json")).state == "off"


def test_unpublished_changes_on_the_server_are_not_lost(wb: Workbench, command: Command) -> None:
    thanks(wb).publish()
    command("pull")
    wb.automation("Thanks").add_tag("half").save()
    assert command("plan")[0] == 0
    edit("thanks.json", "USD", "dollars")
    assert "it has changes on the server that are not published (update by Ada, " in command("apply")[2]
    assert "the file has the published version" in command("pull")[1]


def test_waiting_entries_are_moved_on_request(wb: Workbench, command: Command) -> None:
    automation = thanks(wb, "Late").publish()
    command("pull")
    edit("late.json", "USD", "dollars")
    assert command("apply", "--move", "safe")[1] == "updated: late.json (Late)\n"
    undone = automation.move_back()
    assert (undone.to_version, undone.move, undone.entries) == (2, "safe", 0)


def test_automations_are_archived_only_on_request(wb: Workbench, command: Command) -> None:
    thanks(wb).publish()
    thanks(wb, "Left alone").save()
    command("pull")
    thanks(wb, "Elsewhere").save()
    Path(HERE, "thanks.json").unlink()
    assert command("plan")[:2] == (
        2,
        "- thanks.json (Thanks): missing\n"
        "    its file is gone; --archive-missing archives the automation\n"
        "1 automation as on the server, 1 automation of the server not in this folder.\n",
    )
    assert command("apply")[1] == "Nothing to do.\n"
    assert command("apply", "--archive-missing")[1] == "archived: thanks.json (Thanks)\n"
    assert {record.name for record in wb.automations} == {"Left alone", "Elsewhere"}
    wb.automation("Left alone").archive()
    assert "removed: left-alone.json (Left alone)\n  it was archived on the server" in command("pull")[1]
    assert not Path(HERE, "left-alone.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "bad.json is not an automation: "),
        ("[]", "expected an object with name, state, triggerSpec and graph"),
        ('{"name": "x", "state": "on", "triggerSpec": {}, "graph": {}}', "state must be one of live, off, draft"),
        ('{"name": "x", "triggerSpec": {}, "graph": {"nodes": [{}]}}', r"graph.nodes[0].id: must be"),
        (
            '{"name": "x", "triggerSpec": {"type": "app_event"}, "graph": {"nodes": [{"id": "a", "type": "add_tag"}]}}',
            "cannot be published: ",
        ),
    ],
)
def test_an_invalid_file_prevents_all_changes(command: Command, text: str, message: str) -> None:
    Path(HERE).mkdir()
    Path(HERE, "bad.json").write_text(text)
    code, output, _ = command("plan")
    assert code == 1
    assert message in output
    code, _, error = command("apply")
    assert code == 1
    assert "nothing was changed" in error
    assert message in error


def test_what_needs_consent_is_applied_only_with_its_option(wb: Workbench, command: Command) -> None:
    thanks(wb).where("amountUsd", eq=500).save()
    command("pull")
    edit("thanks.json", '"eq"', '"gt"')
    edit("thanks.json", "draft", "live")
    code, planned, _ = command("plan")
    assert (code, "needs --accept-dropped" in planned) == (1, True)
    assert command("apply")[0] == 1
    assert command("apply", "--every-event")[0] == 1
    assert command("apply", "--accept-dropped")[0] == 0
    assert "live, version 1" in repr(wb.automation("Thanks"))


def test_files_and_automations_with_the_same_name(
    wb: Workbench, command: Command, running: Running, organization: str
) -> None:
    thanks(wb).save()
    command("pull")
    text = Path(HERE, "thanks.json").read_text()
    Path(HERE, "copy.json").write_text(text)
    assert "another file has the name 'Thanks', too" in command("plan")[1]
    Path(HERE, "copy.json").unlink()
    wb._connection.post("/automations", wb.automation("Thanks").add_tag("twin").to_json())
    assert "new: thanks-2.json (Thanks)" in command("pull")[1]
    assert command("plan")[0] == 0
    Path(HERE, LOCK).unlink()
    assert command("plan")[0] == 1
    assert command("pull")[0] == 0  # both are recognized by their content
    wb.automation("Thanks").archive()


def test_json_output_and_the_console_script(
    wb: Workbench, command: Command, running: Running, organization: str, tmp_path: Path
) -> None:
    thanks(wb).publish()
    assert json.loads(command("pull", "--json")[1]) == {
        "automations": [{"file": "thanks.json", "name": "Thanks", "action": "new", "notes": []}]
    }
    edit("thanks.json", "USD", "dollars")
    command_line = [sys.executable, "-m", "api", "automations", "plan", "--json"]
    process = subprocess.run(
        command_line,
        env=running.environment() | {"WORKBENCH_KEY": organization},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 2, process.stderr
    planned = json.loads(process.stdout)
    assert planned["differences"] is True
    assert planned["automations"][0]["changes"][0]["subject"] == "send_inapp"
    assert [item["action"] for item in json.loads(command("apply", "--json")[1])["automations"]] == ["update"]


def test_an_error_is_one_line(command: Command, monkeypatch: Any) -> None:
    assert (
        command("plan", "missing")[2]
        == "workbench: Folder not found: missing. workbench automations pull missing creates it.\n"
    )
    Path(HERE).mkdir()
    Path(HERE, LOCK).write_text("{")
    assert "automations.lock.json cannot be read" in command("plan")[2]
    monkeypatch.setenv("WORKBENCH_URL", "http://127.0.0.1:1")
    assert command("plan")[0] == 1


@pytest.mark.parametrize(
    ("name", "taken", "file"),
    [
        ("Thanks for the deposit!", (), "thanks-for-the-deposit.json"),
        ("Übergrößen & Co.", (), "ubergroen-co.json"),
        ("賞", (), "automation.json"),
        ("a", ("a.json", "a-2.json"), "a-3.json"),
        ("automations.lock", (), "automations-lock.json"),
        ("../../etc/passwd", (), "etc-passwd.json"),
        ("x" * 200, (), "x" * 60 + ".json"),
    ],
)
def test_names_become_file_names(name: str, taken: tuple[str, ...], file: str) -> None:
    assert file_name(name, taken) == file
