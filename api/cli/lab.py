"""JupyterLab as a child process of `workbench up`, which runs this module with `python -m`.

Lab keeps its settings in the data folder, apart from the user's own, and makes no requests for news or updates. Its
environment does not contain the URL of the database or the root secret, so a notebook reaches data only through the
API, with the keys it is given.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

from api.cli import CommandError, network
from api.clock import token
from api.private_files import make_folder, read_or_create, write
from api.settings import child_environment, path_before

FIRST_NOTEBOOK = "01_first_automation.ipynb"
_NEWS_SETTINGS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
_NOT_INHERITED = ("DATABASE_URL", "WORKBENCH_SECRET", "WORKBENCH_SMTP_URL", "WORKBENCH_EVM_RPC")


def require_installed() -> None:
    if importlib.util.find_spec("jupyterlab") is None:
        raise CommandError(
            "the package jupyterlab is missing; install it with: pip install 'event-workbench[lab]', or use --no-lab"
        )


def notebook_folder(data_dir: Path) -> Path:
    """Return the folder in which Lab opens: the notebooks of the checkout, otherwise a folder in the data folder."""
    checkout = Path(__file__).parents[2] / "notebooks"
    return checkout if checkout.is_dir() else make_folder(data_dir / "notebooks")


def access_token(data_dir: Path) -> str:
    """Return the token of this installation's Lab, which is kept in the data folder."""
    return read_or_create(data_dir / "lab-token", token(24).hex())


def address(data_dir: Path, port: int) -> str:
    """Return the URL to open, including the token."""
    path = f"/tree/{FIRST_NOTEBOOK}" if (notebook_folder(data_dir) / FIRST_NOTEBOOK).exists() else ""
    return f"http://127.0.0.1:{port}/lab{path}?token={access_token(data_dir)}"


def command(data_dir: Path, port: int) -> list[str]:
    options = [
        f"--ServerApp.root_dir={notebook_folder(data_dir)}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",  # on another port, the address that `up` prints would be wrong
        "--ServerApp.open_browser=False",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",  # the default manager makes requests to PyPI
    ]
    if os.geteuid() == 0:
        options.append("--ServerApp.allow_root=True")  # otherwise Lab refuses to run as root, as in containers
    return [sys.executable, "-P", "-m", "api.cli.lab", *options]


def environment(data_dir: Path, credentials: dict[str, str]) -> dict[str, str]:
    """Return the environment of the process; notebooks find `credentials` in it."""
    lab_dir = make_folder(data_dir / "lab")
    news_file = lab_dir / "settings" / _NEWS_SETTINGS
    make_folder(news_file.parent)
    write(
        news_file, json.dumps({"fetchNews": "false", "checkForUpdates": False})
    )  # otherwise Lab asks at the first start
    folders = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    return child_environment(
        dict.fromkeys(_NOT_INHERITED)
        | {name: str(make_folder(lab_dir / folder)) for name, folder in folders.items()}
        | {"JUPYTER_TOKEN": access_token(data_dir), "WORKBENCH_DATA_DIR": str(data_dir)}
        | {"PATH": path_before(Path(sys.executable).parent)}  # `!workbench …` in a cell runs this installation
        | credentials
    )


def main() -> None:
    from jupyterlab.labapp import LabApp  # type: ignore[import-untyped]

    network.follow_parent()
    LabApp.launch_instance(sys.argv[1:])


if __name__ == "__main__":
    main()
