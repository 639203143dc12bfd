"""`workbench secret rotate` completes all phases, with the secret in the data folder or in the environment."""

from collections.abc import Callable
from pathlib import Path

from api.crypto import read_chain

Run = Callable[..., tuple[int, str, str]]


def test_a_secret_in_the_data_folder_is_replaced_there(run: Run, tmp_path: Path) -> None:
    run("org", "create", "acme")
    key = run("key", "create", "--org", "acme", "--kind", "live")[1].strip()
    file = tmp_path / "secret"
    old = file.read_text().strip()
    assert "begin one with --new" in run("secret", "rotate")[2]
    parts = []
    for arguments in (["--new"], [], []):
        code, stdout, _ = run("secret", "rotate", *arguments)
        assert (code, stdout) == (0, "")
        parts.append(read_chain(file.read_text().strip()).part)
    assert parts == ["next", "former", "settled"]
    assert old not in file.read_text()
    assert run("key", "revoke", key)[0] == 0  # found by its new hash
    assert "begin one with --new" in run("secret", "rotate")[2]  # no rows had an old index


def test_a_secret_in_the_environment_is_printed_alone(run: Run) -> None:
    old = "a secret of the environment"
    code, stdout, note = run("secret", "rotate", "--new", secret=old)
    assert (code, stdout.startswith(f"{old},next:"), stdout.count("\n")) == (0, True, 1)
    assert "restart every process with this WORKBENCH_SECRET" in note
    code, stdout, note = run("secret", "rotate", secret="one of the two,another of them,next:third")
    assert (code, stdout) == (1, "")
    assert "exactly one secret must have no role before it" in note
