"""`/api/v1/unsubscribe`: the link in every email. Public: the tokens in the URL are the only credential.

A POST unsubscribes whatever its body is, as one-click unsubscribe (RFC 8058) requires. A GET only asks for
confirmation, because mail scanners follow every link. The link of an email with a topic withdraws the topic.
"""

from typing import Annotated

from msgspec import Meta
from sanic import Blueprint, HTTPResponse, Request

from api.channels.signing import ContactLink, Unsubscription, read_contact_token, read_unsubscribe_token
from api.contacts import preferences
from api.crypto import INDEX
from api.routes.pages import Page
from api.routes.request import Operation, services
from api.routes.responses import RequestRefusedError
from api.store.contacts import find_email_owner
from api.store.query import act_for
from workbench.language.body import Body
from workbench.language.problem import Problem

blueprint = Blueprint("unsubscribe", url_prefix="/api/v1")


class TokenQuery(Body, frozen=True):
    token: Annotated[str, Meta(description="The token in the link of an email.")]
    topic: Annotated[str, Meta(description="The token of its topic, if it has one.")] | None = None


@blueprint.get("/unsubscribe")
@Operation(media="text/html")
async def confirm(request: Request, query: TokenQuery) -> HTTPResponse:
    """Return a page with a button to unsubscribe."""
    token, topic_link = _read_tokens(request, query)
    act_for(token.org_id)
    page, label = await _page_of(request, topic_link)
    return page.question(
        page.texts.stop_topic.format(label) if label else page.texts.stop_emails, page.texts.unsubscribe
    )


@blueprint.post("/unsubscribe")
@Operation(media="text/html")
async def unsubscribe(request: Request, query: TokenQuery) -> HTTPResponse:
    """Stop emails of the organization to this address and to the contact that has it, or only those of a topic."""
    token, topic_link = _read_tokens(request, query)
    act_for(token.org_id)
    clock, database = services(request).clock, services(request).database
    page, label = await _page_of(request, topic_link)
    if topic_link is not None:
        async with database.transaction() as tx:
            owner_id = await find_email_owner(tx, token.org_id, token.address_digest[:INDEX])
        await preferences.withdraw(database, topic_link, owner_id, clock.unique_now_us())
        return page.message(page.texts.topic_stopped.format(label))
    await preferences.stop_emails(database, token.org_id, token.address_digest, clock.unique_now_us())
    return page.message(page.texts.emails_stopped)


def _read_tokens(request: Request, query: TokenQuery) -> tuple[Unsubscription, ContactLink | None]:
    keyring = services(request).keyring
    token = read_unsubscribe_token(keyring, query.token)
    if token is None:
        raise RequestRefusedError(400, Problem("token", "is not a valid unsubscribe token"))
    if query.topic is None:
        return token, None
    link = read_contact_token(keyring, "withdraw", query.topic)
    if link is None or link.org_id != token.org_id:
        raise RequestRefusedError(400, Problem("topic", "is not a valid token of a topic"))
    return token, link


async def _page_of(request: Request, link: ContactLink | None) -> tuple[Page, str]:
    """Return a page in the language of the contact of a link, and the label of the topic in it."""
    if link is None:
        return Page.of(None), ""
    subject = await preferences.find_subject(services(request).database, link)
    page = Page.of(None if subject is None else subject.contact)
    topics = [] if subject is None else subject.topics
    return page, next((page.label(topic) for topic in topics if topic.name == link.topic), link.topic)
