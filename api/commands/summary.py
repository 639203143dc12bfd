"""What `workbench up` shows when everything runs: addresses, keys, the next step."""

from pathlib import Path

import msgspec

from api.commands.lab import FIRST

_EVENT = """{"event":"deposit","contact":{"externalId":"you"},"payload":{"amountUsd":120}}"""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to show; `keys` by kind, None without the demo organization."""

    api_url: str
    lab_url: str | None
    postgres: str
    data_dir: Path
    keys: dict[str, str] | None


def text(shown: Summary) -> str:
    """Return the lines to print."""
    lines = ["", "Event Workbench is ready.", ""]
    if shown.lab_url is not None:
        lines.append(f"  JupyterLab   {shown.lab_url}")
    lines += [
        f"  API          {shown.api_url}/api/v1",
        f"  Postgres     {shown.postgres}",
        f"  Data, logs   {shown.data_dir}",
        "",
        *_keys(shown),
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def _keys(shown: Summary) -> list[str]:
    if shown.keys is None:
        return ["Next: workbench org create NAME", ""]
    open_lab = f"open the JupyterLab address and run {FIRST}, or " if shown.lab_url else ""
    return [
        "  Keys of the organization demo",
        *(f"    {kind:<11}  {key}" for kind, key in shown.keys.items()),
        "",
        f"Next: {open_lab}post an event:",
        "",
        f"  curl {shown.api_url}/api/v1/events -H 'Authorization: Bearer {shown.keys['live']}' \\",
        f"    -H 'Content-Type: application/json' -d '{_EVENT}'",
        "",
    ]
