"""`make notebooks`: execute the notebooks whose code has changed, on a fresh installation, and store their outputs.

`--all` executes all of them. One notebook needs an EVM node (`make chain` installs it).
"""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.chain import anvil
from tests.chain.test_notebook import following
from tests.notebooks.execution import NOTEBOOKS, is_stale, prepare
from tests.notebooks.test_notebooks import ON_CHAIN
from tests.running import run_system


def main() -> None:
    parser = argparse.ArgumentParser(prog="make notebooks", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also those whose outputs are up to date")
    arguments = parser.parse_args()
    notebooks = {path: nbformat.read(path, 4) for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    stale = {path: notebook for path, notebook in notebooks.items() if arguments.all or is_stale(notebook)}
    if not stale:
        sys.stderr.write("All notebooks are up to date.\n")
        return
    with ExitStack() as stack:
        running = stack.enter_context(run_system())
        os.environ.pop("DATABASE_URL", None)
        os.environ.update(running.environment())
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # `make up` installs none
        if ON_CHAIN in stale:
            node = stack.enter_context(anvil.running(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
            stack.enter_context(following(running, node))
            os.environ["EVM_NODE"] = node.url
        for path, notebook in stale.items():
            sys.stderr.write(f"{path.name} …\n")
            client = NotebookClient(
                notebook,
                timeout=300,
                kernel_name="python3",
                record_timing=False,
                store_widget_state=False,
                resources={"metadata": {"path": str(running.folder)}},
            )
            client.execute()
            prepare(notebook, running)
            nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
