"""`POST /api/v1/automations/{id}/test`: send what an automation would, to oneself. Workbench keys with automations:write only."""

import asyncio

from sanic import Blueprint, HTTPResponse, Request

from api.authoring.automations import Author
from api.authoring.receivers import Receivers
from api.authoring.trial import Surroundings, policy_of
from api.routes.answers import answer
from api.routes.authors import WRITE, accepted, known_form, require_notebook, settled
from api.routes.entrance import expect_json, parts
from api.test_send import House, read_wish, send_test

blueprint = Blueprint("test_sends", url_prefix="/api/v1")


@blueprint.post("/automations/<automation_id:str>/test")
async def test(request: Request, automation_id: str) -> HTTPResponse:
    """Answer what became of each message, within 20 seconds; 429 after ten tests in a minute.

    Tests go to contacts of the organization, to hosts that its published automations send to, and to whom the operator named.
    """
    who = await require_notebook(request, WRITE)
    known = known_form(automation_id, "automation")
    expect_json(request)
    own = parts(request)
    wish = accepted(await asyncio.to_thread(read_wish, request.body, own.clock.now()))
    keys, retries = own.keyring.of(who.org_id), policy_of(own.settings.retry_delays)
    around = Surroundings(who.org_id, keys, retries, "pii:read" in who.scopes)
    author = Author(who.org_id, who.key_id, own.clock.unique_now_us())
    receivers = Receivers(frozenset(own.settings.test_receivers), emails_stay=own.settings.smtp is None)
    house = House(own.database, own.keyring, own.clock, own.ways, receivers)
    return answer({"messages": settled(await send_test(house, author, around, known, wish))})
