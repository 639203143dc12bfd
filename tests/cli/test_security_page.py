"""The commands of docs/security.md work as the page describes, in their order."""

import re
from collections.abc import Callable
from pathlib import Path

from api.crypto import read_chain

Run = Callable[..., tuple[int, str, str]]

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]


def test_the_commands_of_the_page_work(run: Run, tmp_path: Path) -> None:
    run("org", "create", "acme")
    run("key", "create", "--org", "acme", "--kind", "live")
    parts, forms = [], []
    for command in COMMANDS:
        program, *arguments = command.split()
        code, _, note = run(*arguments)
        assert (program, code) == ("workbench", 0), note
        secret = (tmp_path / "secret").read_text().strip()
        parts.append(read_chain(secret).part)
        forms.append(re.sub(r"[0-9a-f]{60,}", "…", secret))
    assert parts == ["settled", "next", "former", "settled", "settled"]
    assert forms == ["…", "…,next:…", "former:…,…", "retired:…,…", "retired:…,…"]
    table = re.findall(r"^\| `([a-z:,9…f]+)` \|", PAGE, re.MULTILINE)
    assert [re.sub(r"old|new|9f…", "…", form) for form in table] == forms[:4]
