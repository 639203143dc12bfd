"""What a key may do. Each kind of key has a set it may carry and a default; a publishable key carries none."""

from collections.abc import Sequence

from api.access import AccessError
from api.access.format import Kind

WORKBENCH = (
    "events:read",
    "sql:read",
    "automations:write",
    "automations:publish",
    "contacts:read",
    "contacts:erase",
    "pii:read",
    "keys:admin",
)
SECRET = ("ingest", "events:read")
_DEFAULT_WORKBENCH = WORKBENCH[:5]


def choose(kind: Kind, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the scopes of a new key: the wanted ones in our order, or the kind's default; raise AccessError."""
    allowed, default = _of(kind)
    if not wanted:
        return default
    if strange := sorted(set(wanted) - set(allowed)):
        raise AccessError(f"a {kind} key cannot have the scope {', '.join(strange)}; it can have {_named(allowed)}")
    return tuple(scope for scope in allowed if scope in wanted)


def _of(kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    match kind:
        case "live" | "test":
            return SECRET, SECRET
        case "workbench":
            return WORKBENCH, _DEFAULT_WORKBENCH
        case "publishable":
            return (), ()


def _named(scopes: tuple[str, ...]) -> str:
    return ", ".join(scopes) if scopes else "none"
