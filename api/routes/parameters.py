"""Parameters of routes: ids in the path, values in the query, fields of the body, and results of use cases as statuses.

A reader returns the value or raises the refusal that names the parameter: 404 for an id that cannot exist, 400
otherwise.
"""

import re
from typing import TypeVar

from sanic import Request

from api.automations.automations import Reason, Refusal
from api.automations.body import Fields, read_fields
from api.routes.request import expect_json
from api.routes.responses import RequestRefusedError
from api.store.automations import EntryPage
from workbench.language.problem import Problem, Problems
from workbench.language.run import State

_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_STATUS: dict[Reason, int] = {"unknown": 404, "conflict": 409, "invalid": 400, "limited": 429}
_T = TypeVar("_T")


def is_id(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def path_id(text: str, subject: str) -> str:
    """Return an id from the path in lower case; 404 `<subject> not found` for a text that is not a UUID."""
    if not is_id(text):
        raise RequestRefusedError(404, f"{subject} not found")
    return text.lower()


def query_text(request: Request, name: str) -> str | None:
    """Return a query parameter, None when it is absent or empty."""
    text = request.args.get(name) or None
    if text is not None and "\0" in text:  # Postgres cannot store it
        raise RequestRefusedError(400, Problem(name, "contains U+0000"))
    return text


def query_id(request: Request, name: str) -> str | None:
    text = query_text(request, name)
    if text is not None and not is_id(text):
        raise RequestRefusedError(400, Problem(name, "must be an id"))
    return None if text is None else text.lower()


def query_flag(request: Request, name: str) -> bool:
    """Return a query parameter that is `true` or `false`; False when it is absent."""
    text = query_text(request, name) or "false"
    if text not in ("true", "false"):
        raise RequestRefusedError(400, Problem(name, "must be true or false"))
    return text == "true"


def query_number(request: Request, name: str, default: int, maximum: int) -> int:
    """Return a query parameter from 1 to `maximum`."""
    text = request.args.get(name)
    if text is None:
        return default
    # `isdigit` alone accepts the digits of other scripts; int() takes long for a long text.
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= maximum:
        raise RequestRefusedError(400, Problem(name, f"must be a whole number from 1 to {maximum}"))
    return int(text)


def query_page(request: Request, default: int, maximum: int) -> EntryPage:
    """Return the page of entries that `limit`, `state` and `after` select."""
    state = query_text(request, "state")
    if state is not None and state not in set(State):
        raise RequestRefusedError(400, Problem("state", f"must be one of {', '.join(State)}"))
    return EntryPage(
        query_number(request, "limit", default, maximum),
        None if state is None else State(state),
        query_id(request, "after"),
    )


def body_fields(request: Request) -> Fields:
    """Return the fields of the body, which may be empty; 415 or 400 for anything but a JSON object."""
    if request.body:
        expect_json(request)
    return valid(read_fields(request.body))


def replay_cause(fields: Fields) -> str | None:
    """Return the cause of failure that a replay is restricted to; None: any."""
    if fields.value("state") not in (None, State.DEAD.value):
        fields.refuse("state", "must be dead: only dead entries can be replayed")
    return fields.text("cause", 200)


def refuse_problems(fields: Fields) -> None:
    """Raise 400 with every problem that was collected while reading the fields."""
    if fields.problems:
        raise RequestRefusedError(400, tuple(fields.problems))


def valid(value: _T | Problems) -> _T:
    """Return a parsed value; raise its problems as 400."""
    if isinstance(value, tuple):
        raise RequestRefusedError(400, value)
    return value


def unwrap(value: _T | Refusal) -> _T:
    """Return the value of a use case; raise its refusal as 404, 409, 400 or 429."""
    if isinstance(value, Refusal):
        code = "RATE_LIMITED" if value.reason == "limited" else None
        raise RequestRefusedError(_STATUS[value.reason], value.problems, code)
    return value
