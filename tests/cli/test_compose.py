"""Both compose files start what there is: our commands with options they have, files that are here, services that are in them."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.__main__ import main

ROOT = Path(__file__).parents[2]
FILES = ["docker-compose.yml", "docker-compose.scale.yml"]
SETTING = re.compile(r"\$\{(\w+):([?-])([^${}]*)\}")


@pytest.mark.parametrize("file", FILES)
def test_our_commands_have_the_options_that_are_given(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [each["command"] for each in services(file).values() if each.get("command", [""])[0] == "workbench"]
    assert {command[1] for command in commands} >= {"migrate", "serve", "engine", "chain"}
    for _, *arguments in commands:
        with pytest.raises(SystemExit) as told:  # all is read before it answers
            main([*arguments, "--help"])
        assert told.value.code == 0
        offered = capsys.readouterr().out
        assert [each for each in arguments if each.startswith("--") and each not in offered] == []


@pytest.mark.parametrize("file", FILES)
def test_what_services_wait_for_and_mount_is_there(file: str) -> None:
    known = services(file)
    for service in known.values():
        assert set(service.get("depends_on", {})) <= set(known)
        mounts = [each.split(":")[0] for each in service.get("volumes", []) if each.startswith("./")]
        assert [each for each in mounts if not (ROOT / each).is_file()] == []


def test_the_application_has_the_same_settings_in_both() -> None:
    small, large = (dict(services(file)["api"]["environment"]) for file in FILES)
    assert small.pop("DATABASE_URL").replace("@postgres", "@coordinator") == large.pop("DATABASE_URL")
    assert set(small) == set(large)


def test_nobody_but_nodes_reaches_the_workers() -> None:
    of_nodes = {
        name for name, each in services("docker-compose.scale.yml").items() if "nodes" in each.get("networks", [])
    }
    assert of_nodes == {"coordinator", "worker-1", "worker-2", "join"}
    trusting = {
        name for name, each in services("docker-compose.scale.yml").items() if "trust" in each["environment"].values()
    }
    assert trusting == {"worker-1", "worker-2"}


def test_scripts_of_containers_can_be_read() -> None:
    for script in sorted((ROOT / "docker").glob("*.sh")):
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0


def services(file: str) -> dict[str, dict[str, Any]]:
    text = (ROOT / file).read_text()
    while SETTING.search(text):
        text = SETTING.sub(lambda found: found[3] if found[2] == "-" else "secret", text)
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return {name: {"environment": {}, **each} for name, each in found.items()}
