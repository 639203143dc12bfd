"""Everything that the compose files name exists: options of commands, files of the repository, and services."""

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
def test_commands_have_the_options_in_the_file(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    all_commands = [service.get("command", [""]) for service in services(file).values()]
    commands = [command for command in all_commands if command[0] == "workbench"]
    assert {command[1] for command in commands} >= {"migrate", "serve", "engine", "chain"}
    for _, *arguments in commands:
        with pytest.raises(SystemExit) as exit_info:  # --help exits after all arguments were parsed
            main([*arguments, "--help"])
        assert exit_info.value.code == 0
        offered = capsys.readouterr().out
        assert [option for option in arguments if option.startswith("--") and option not in offered] == []


@pytest.mark.parametrize("file", FILES)
def test_dependencies_and_mounted_files_exist(file: str) -> None:
    all_services = services(file)
    for service in all_services.values():
        assert set(service.get("depends_on", {})) <= set(all_services)
        mounts = [volume.split(":")[0] for volume in service.get("volumes", []) if volume.startswith("./")]
        assert [mount for mount in mounts if not (ROOT / mount).is_file()] == []


def test_the_application_has_the_same_settings_in_both() -> None:
    small, large = (dict(services(file)["api"]["environment"]) for file in FILES)
    assert small.pop("DATABASE_URL").replace("@postgres", "@coordinator") == large.pop("DATABASE_URL")
    assert set(small) == set(large)


def test_only_nodes_can_connect_to_the_workers() -> None:
    cluster = services("docker-compose.scale.yml")
    in_network = {name for name, service in cluster.items() if "nodes" in service.get("networks", [])}
    assert in_network == {"coordinator", "worker-1", "worker-2", "join"}
    trusting = {name for name, service in cluster.items() if "trust" in service["environment"].values()}
    assert trusting == {"worker-1", "worker-2"}


def test_scripts_of_containers_can_be_read() -> None:
    for script in sorted((ROOT / "docker").glob("*.sh")):
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0


def services(file: str) -> dict[str, dict[str, Any]]:
    text = (ROOT / file).read_text()
    while SETTING.search(text):
        text = SETTING.sub(lambda match: match[3] if match[2] == "-" else "secret", text)
    by_name: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return {name: {"environment": {}, **service} for name, service in by_name.items()}
