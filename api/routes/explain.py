"""`POST /api/v1/contacts/{id}/explain`: why an automation did or did not take events of a contact.

Workbench keys with contacts:read. Emails in the answer are masked without pii:read.
"""

from typing import Any

from sanic import Blueprint, HTTPResponse, Request

from api.authoring.fields import Fields
from api.contacts.explain import Asked, Reader, explain
from api.routes.answers import answer
from api.routes.authors import body_fields, is_id, known_form, refuse_problems, settled
from api.routes.entrance import parts
from api.routes.people import PRIVATE, author_of, require_person
from api.store.explain import MOST

blueprint = Blueprint("explain", url_prefix="/api/v1/contacts")


@blueprint.post("/<contact_id:str>/explain")
async def explain_events(request: Request, contact_id: str) -> HTTPResponse:
    """Answer why, for the newest events, for one by `eventId`, or for an `event` that has not happened."""
    who = await require_person(request, ("contacts:read",))
    known, asked = known_form(contact_id, "contact"), _asked(body_fields(request))
    own = parts(request)
    reader = Reader(author_of(request, who), own.keyring.of(who.org_id), "pii:read" in who.scopes)
    return answer(settled(await explain(own.database, reader, known, asked)), headers=PRIVATE)


def _asked(fields: Fields) -> Asked:
    fields.require("automationId")
    automation_id, event_id = fields.text("automationId", 100), fields.text("eventId", 100)
    imagined: Any = fields.value("event")
    most = fields.number("limit")
    if imagined is not None and not isinstance(imagined, dict):
        fields.refuse("event", "must be an event")
    if imagined is not None and event_id is not None:
        fields.refuse("event", "is another way of asking than eventId: give one of them")
    if most is not None and most > MOST:
        fields.refuse("limit", f"must be from 1 to {MOST}")
    if event_id is not None and not is_id(event_id):
        fields.refuse("eventId", "must be an id")
    refuse_problems(fields)
    assert automation_id is not None
    return Asked(known_form(automation_id, "automation"), event_id, imagined, most or 20)
