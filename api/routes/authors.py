"""What the routes of automations and entries share: whose key may do what, ids, and refusals as answers.

Only notebook keys (`wb_…`) come here, whatever scopes another key carries: a backend's key ingests, it does not author.
"""

import re
from typing import TypeVar

from sanic import Request

from api.access.verify import Principal
from api.authoring.automations import Author
from api.authoring.fields import Fields, read_fields
from api.authoring.refusal import Reason, Refusal
from api.language.problem import Problem, Problems
from api.language.run import State
from api.routes.answers import RefusedError
from api.routes.catalog import whole_number
from api.routes.entrance import expect_json, parts, require
from api.store.histories import Page

READ = ("automations:write", "automations:publish", "events:read")
WRITE = ("automations:write",)
PUBLISH = ("automations:publish",)
SWITCH_ON = ("automations:write", "automations:publish")

_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_STATUS: dict[Reason, int] = {"unknown": 404, "conflict": 409, "invalid": 400, "limited": 429}
_T = TypeVar("_T")


async def require_notebook(request: Request, scopes: tuple[str, ...], things: str = "automations") -> Principal:
    """Return who asks; refuse with 401 when nobody valid does, with 403 unless a notebook key has one of `scopes`."""
    found = await require(request, *scopes)
    if found.kind != "workbench":
        raise RefusedError(403, f"{things} are for workbench keys (wb_…)")
    return found


async def author(request: Request, scopes: tuple[str, ...]) -> Author:
    """Return who asks for a change, and when; refuse with 401 or 403."""
    principal = await require_notebook(request, scopes)
    return Author(principal.org_id, principal.key_id, parts(request).clock.unique_now_us())


def known_form(text: str, what: str) -> str:
    """Return an id in lower case; what cannot be one is unknown: 404."""
    if not _UUID.fullmatch(text):
        raise RefusedError(404, f"there is no such {what}")
    return text.lower()


def is_id(text: str) -> bool:
    """Return whether this has the form of an id."""
    return _UUID.fullmatch(text) is not None


def settled(value: _T | Refusal) -> _T:
    """Return what a use case returned; a refusal becomes 404, 409, 400 or 429."""
    if isinstance(value, Refusal):
        code = "RATE_LIMITED" if value.reason == "limited" else None
        raise RefusedError(_STATUS[value.reason], value.problems, code)
    return value


def accepted(value: _T | Problems) -> _T:
    """Return what was read from a body; problems become 400."""
    if isinstance(value, tuple):
        raise RefusedError(400, value)
    return value


def body_fields(request: Request) -> Fields:
    """Return the fields of a body, which may be empty; refuse with 415 or 400."""
    if request.body:
        expect_json(request)
    return accepted(read_fields(request.body))


def refuse_problems(fields: Fields) -> None:
    """Refuse with 400 naming every problem that was found while reading."""
    if fields.problems:
        raise RefusedError(400, tuple(fields.problems))


def cause_in(fields: Fields) -> str | None:
    """Return the cause of death whose entries are to be replayed; None: any."""
    if fields.value("state") not in (None, State.DEAD.value):
        fields.refuse("state", "must be dead: nothing else can be replayed")
    return fields.text("cause", 200)


def page(request: Request, default: int, most: int) -> Page:
    """Return the page asked for by `limit`, `state` and `after`; refuse with 400 naming the parameter."""
    state = text_argument(request, "state")
    if state is not None and state not in set(State):
        raise RefusedError(400, Problem("state", f"must be one of {', '.join(State)}"))
    return Page(
        whole_number(request, "limit", default, most),
        None if state is None else State(state),
        id_argument(request, "after"),
    )


def id_argument(request: Request, name: str) -> str | None:
    """Return an id in the query; refuse with 400 what cannot be one."""
    text = text_argument(request, name)
    if text is not None and not _UUID.fullmatch(text):
        raise RefusedError(400, Problem(name, "must be an id"))
    return None if text is None else text.lower()


def text_argument(request: Request, name: str) -> str | None:
    """Return a parameter of the query, None when it is absent or empty; refuse with 400 what cannot be stored."""
    text = request.args.get(name) or None
    if text is not None and "\0" in text:
        raise RefusedError(400, Problem(name, "contains U+0000"))
    return text


def flag_argument(request: Request, name: str) -> bool:
    """Return a parameter that is `true` or `false` (also when absent); refuse with 400 anything else."""
    text = text_argument(request, name) or "false"
    if text not in ("true", "false"):
        raise RefusedError(400, Problem(name, "must be true or false"))
    return text == "true"
