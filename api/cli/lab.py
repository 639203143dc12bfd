"""JupyterLab as a child of `workbench up`: its address, its settings kept apart from the user's own, and its process.

Run as a module it is that process. It asks nobody for news or updates, and sees no database password and no root secret.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

from api.cli import CommandError, database, network
from api.clock import token
from api.settings import child_environment, path_before

FIRST = "01_first_automation.ipynb"
_NEWS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"


def must_be_installed() -> None:
    """Raise CommandError unless JupyterLab can be started."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise CommandError(
            "the package jupyterlab is missing; install it with: pip install 'event-workbench[lab]', or use --no-lab"
        )


def notebooks(data_dir: Path) -> Path:
    """Return the folder Lab opens on: the checkout's notebooks, or an own one in the data folder."""
    checkout = Path(__file__).parents[2] / "notebooks"
    return checkout if checkout.is_dir() else database.make_folder(data_dir / "notebooks")


def kept_token(data_dir: Path) -> str:
    """Return the token of this installation's Lab."""
    return database.kept(data_dir / "lab-token", token(24).hex())


def address(data_dir: Path, port: int) -> str:
    """Return the URL to open, token included."""
    first = f"/tree/{FIRST}" if (notebooks(data_dir) / FIRST).exists() else ""
    return f"http://127.0.0.1:{port}/lab{first}?token={kept_token(data_dir)}"


def command(data_dir: Path, port: int) -> list[str]:
    """Return the command line of the process."""
    options = [
        f"--ServerApp.root_dir={notebooks(data_dir)}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.open_browser=False",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
    ]
    if os.geteuid() == 0:
        options.append("--ServerApp.allow_root=True")
    return [sys.executable, "-P", "-m", "api.cli.lab", *options]


def environment(data_dir: Path, changes: dict[str, str]) -> dict[str, str]:
    """Return the process's environment; the notebooks' own credentials come in `changes`."""
    own = database.make_folder(data_dir / "lab")
    news = own / "settings" / _NEWS
    database.make_folder(news.parent)
    database.write(news, json.dumps({"fetchNews": "false", "checkForUpdates": False}))
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    kept_from_it = ("DATABASE_URL", "WORKBENCH_SECRET", "WORKBENCH_SMTP_URL", "WORKBENCH_EVM_RPC")
    return child_environment(
        dict.fromkeys(kept_from_it)
        | {name: str(database.make_folder(own / folder)) for name, folder in folders.items()}
        | {"JUPYTER_TOKEN": kept_token(data_dir), "WORKBENCH_DATA_DIR": str(data_dir)}
        | {"PATH": path_before(Path(sys.executable).parent)}  # `!workbench …` in a cell is ours
        | changes
    )


def main() -> None:
    """Be the Lab process."""
    from jupyterlab.labapp import LabApp  # type: ignore[import-untyped]

    network.follow_parent()
    LabApp.launch_instance(sys.argv[1:])


if __name__ == "__main__":
    main()
