"""Writes `docs/licences.md`, the list of what users install, with licences: `python docs/licences.py`.

Packages for other operating systems are not installed here, so their lines on the page are kept.
"""

import importlib.metadata
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("licences.md")
_HEAD = """\
# Licences

Written by `python docs/licences.py` from `requirements/up.txt`, `requirements/docs.txt` and the canvas's
`package-lock.json`. Event Workbench itself is Apache-2.0. psycopg is LGPL-3.0: it is used as it is, from its own
package.
No other package is under a licence of the GPL family, and a test checks this. Tools for tests and benchmarks
(`requirements/dev.txt`) are not shipped and not listed.
"""


def locked() -> list[str]:
    """Return the names of the Python packages that `make up` and `make docs` install."""
    text = "".join((ROOT / "requirements" / name).read_text() for name in ("up.txt", "docs.txt"))
    return sorted(set(re.findall(r"^([A-Za-z0-9_.-]+)==", text, re.MULTILINE)))


def bundled() -> dict[str, str]:
    """Return the licences of the packages that the built canvas consists of, by name."""
    lock = json.loads((ROOT / "workbench/canvas_src/package-lock.json").read_text())
    return {
        path.removeprefix("node_modules/"): each["license"]
        for path, each in lock["packages"].items()
        if path and not each.get("dev") and not path.startswith("node_modules/@types/")
    }


def licence(name: str) -> str | None:
    """Return a package's licence from its own metadata, or None if it is not installed."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    named = [each.split(" :: ")[-1] for each in metadata.get_all("Classifier") or () if each.startswith("License")]
    return "; ".join(named) or (metadata.get("License") or "").partition("\n")[0]


def listed(page: str) -> dict[str, str]:
    """Return the licences that the page has, by name."""
    return dict(re.findall(r"^\| (\S+) \| (.+) \|$", page, re.MULTILINE)[1:])


def page(before: str) -> str:
    """Return the new page; licences that cannot be looked up are taken from the page `before`."""
    known = listed(before)
    rows = {name: licence(name) or known.get(name, "unknown") for name in locked()} | bundled()
    lines = ["| package | licence |", "|---|---|", *(f"| {name} | {each} |" for name, each in rows.items())]
    return f"{_HEAD}\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text() if PAGE.exists() else ""))
