"""What a key may do, found out by asking: requests that answer differently to a key with the right, and change nothing."""

from typing import Any

from workbench.connection import Connection

_NOBODY = "00000000-0000-0000-0000-000000000000"
_QUESTIONS: tuple[tuple[str, str, str, dict[str, Any] | None], ...] = (
    ("look at events", "GET", "/events/catalog", None),
    ("ask SQL", "POST", "/sql", {"sql": "SELECT 1"}),
    ("write automations", "PUT", f"/automations/{_NOBODY}", {}),
    ("publish them", "POST", f"/automations/{_NOBODY}/publish", {}),
)


def rights(connection: Connection) -> list[tuple[str, bool]]:
    """Return what there is to do, and whether the key may."""
    return [
        (deed, connection.exchange(method, path, body=body).status not in (401, 403))
        for deed, method, path, body in _QUESTIONS
    ]
