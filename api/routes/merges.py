"""`POST /api/v1/contacts/merge` and `/contacts/merges/{id}/undo`: two contacts that are one person.

Workbench keys: a preview needs contacts:read, a merge automations:write, like every change of contacts. Emails are masked without
pii:read.
"""

from sanic import Blueprint, HTTPResponse, Request

from api.access.verify import Principal
from api.authoring.fields import Fields
from api.contacts.merging import Pair, merge, preview, undo
from api.routes.answers import RefusedError, answer
from api.routes.authors import body_fields, is_id, known_form, refuse_problems, settled
from api.routes.entrance import parts
from api.routes.people import PRIVATE, author_of, require_person, shown_to

blueprint = Blueprint("merges", url_prefix="/api/v1/contacts")

_READ, _CHANGE = "contacts:read", "automations:write"


@blueprint.post("/merge")
async def merge_two(request: Request) -> HTTPResponse:
    """Let the contact `keep` absorb the contact `absorb`; with `preview`, only say what that would do."""
    who = await require_person(request, (_READ, _CHANGE))
    fields = body_fields(request)
    pair, is_preview = _pair(fields), fields.flag("preview")
    refuse_problems(fields)
    _demand(who, _READ if is_preview else _CHANGE)
    database, shown = parts(request).database, shown_to(request, who)
    if is_preview:
        return answer(settled(await preview(database, who.org_id, pair, shown)), headers=PRIVATE)
    return answer(settled(await merge(database, author_of(request, who), pair, shown)), headers=PRIVATE)


@blueprint.post("/merges/<merge_id:str>/undo")
async def take_back(request: Request, merge_id: str) -> HTTPResponse:
    """Make two contacts of one again; 409 says what stands against it."""
    who = await require_person(request, (_CHANGE,))
    known = known_form(merge_id, "merge")
    return answer(settled(await undo(parts(request).database, author_of(request, who), known)), headers=PRIVATE)


def _demand(who: Principal, scope: str) -> None:
    if scope not in who.scopes:
        raise RefusedError(403, f"this key lacks the scope {scope}")


def _pair(fields: Fields) -> Pair:
    ids = []
    for name in ("keep", "absorb"):
        fields.require(name)
        contact_id = fields.text(name, 100)
        if contact_id is not None and not is_id(contact_id):
            fields.refuse(name, "must be the id of a contact")
        ids.append((contact_id or "").lower())
    if ids[0] and ids[0] == ids[1]:
        fields.refuse("absorb", "must be another contact than keep")
    return Pair(*ids)
