"""`/api/v1/bounces`: bounces and complaints, from a mail server or from the provider that sends the emails.

A mail server pipes its reports as they arrive (`message/rfc822`); what a provider's webhook says is sent as JSON.
"""

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sanic import Blueprint, Request

from api.channels.bounce import Bounce, read_bounce
from api.contacts.bounces import BounceOutcome, record_bounce
from api.routes.request import Access, Operation, body_of, principal_of, services
from api.store.messages import Feedback
from workbench.language.body import Body, Id
from workbench.language.channel import EMAIL
from workbench.language.event import MAX_EMAIL, normalize_email
from workbench.language.problem import Problem, Problems

blueprint = Blueprint("bounces", url_prefix="/api/v1")

_REPORT = Access(("live",), ("ingest",))


def _read_address(value: Any, path: str) -> str | Problems:
    address = normalize_email(value) if isinstance(value, str) else None
    return (Problem(path, "not a valid email address"),) if address is None else address


class BounceBody(Body, frozen=True, kw_only=True):
    """A bounce of an email, or a complaint about it.

    `email`: the address that the email was sent to. `messageId`: the id of the message, if it is known. `status`: a
    code of RFC 3463. A bounce with 4.x.x is temporary, with 5.x.x permanent. It closes the address if the code says
    that the address or its mailbox does not exist or is disabled, or if there is no code.
    """

    type: Feedback
    email: Annotated[str, Meta(min_length=1, max_length=MAX_EMAIL, extra={"read": _read_address})]
    message_id: Id | None = None
    status: (
        Annotated[str, Meta(pattern=r"^[245]\.[0-9]{1,3}\.[0-9]{1,3}$", extra={"reason": "must be a code like 5.1.1"})]
        | None
    ) = None


class BounceView(msgspec.Struct, frozen=True):
    """`suppressed`: the address gets no more emails. `recorded`: only an event was stored. `unknown`: nothing was."""

    outcome: BounceOutcome


@blueprint.post("/bounces")
@Operation(_REPORT, body=BounceBody)
async def report(request: Request) -> BounceView:
    """Record a bounce or a complaint: an event of the contact, and if it closes the address, no more emails.

    With the content type `message/rfc822`, the body is the report of a mail server (RFC 3464, RFC 5965) as it arrived.
    """
    context, org_id = services(request), principal_of(request).org_id
    bounce: Bounce | None
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == "message/rfc822":
        # In a thread: a large report takes some hundred milliseconds.
        bounce = await asyncio.to_thread(read_bounce, context.keyring, request.body)
    else:
        body = await body_of(request, BounceBody)
        bounce = Bounce(
            org_id=org_id,
            feedback=body.type,
            address_digests=context.keyring.of(org_id).digests(EMAIL.name, body.email),
            message_id=body.message_id,
            address=body.email,
            status=body.status,
        )
    if bounce is None or bounce.org_id != org_id:
        return BounceView("unknown")
    return BounceView(await record_bounce(context.system_database, context.keyring, context.clock, bounce))
