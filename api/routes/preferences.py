"""`/preferences`: the pages behind the links `preferences_url` and `confirm_url` of emails.

Public: the token in the path is the only credential. A GET changes nothing, because mail scanners follow every link.
"""

import html as escaping

from sanic import Blueprint, HTTPResponse, Request
from sanic.request import RequestParameters

from api.channels.signing import ContactLink, Purpose, read_contact_token
from api.contacts import preferences
from api.contacts.preferences import CONFIRMED, REQUEST_WINDOW_US, REQUESTED, ContactTopics, PageChoices
from api.routes.pages import Page
from api.routes.request import Operation, services
from api.routes.responses import RequestRefusedError
from api.store.query import act_for
from workbench.language.event import mask_email
from workbench.language.responses import TopicView

PAGE_CHANNELS = ("email", "inapp", "connection")  # that reach the person; a webhook reaches a system

blueprint = Blueprint("preferences")


@blueprint.get("/preferences/<token:str>")
@Operation(media="text/html")
async def show(request: Request, token: str) -> HTTPResponse:
    """Return the page on which a contact chooses topics and channels."""
    link = _read_link(request, "preferences", token)
    subject = None if link is None else await preferences.find_subject(services(request).database, link)
    if link is None or subject is None:
        return _gone()
    return _form(request, link, subject, [])


@blueprint.post("/preferences/<token:str>")
@Operation(media="text/html")
async def save(request: Request, token: str) -> HTTPResponse:
    """Save the choices of the page. A topic that needs a confirmation becomes an event `consent.requested`."""
    link, database = _read_link(request, "preferences", token), services(request).database
    subject = None if link is None else await preferences.find_subject(database, link)
    if link is None or subject is None:
        return _gone()
    page, clock = Page.of(subject.contact), services(request).clock
    # Only what the page showed: a topic that was added since must not count as declined.
    topics = _read_choices(request, "topic")
    channels = {name: wanted for name, wanted in _read_choices(request, "channel").items() if name in PAGE_CHANNELS}
    texts, channel_texts = _texts(page, subject)
    shown_texts = [texts[name] for name in topics if name in texts] + [channel_texts[name] for name in channels]
    if not (_stops(request) or _shows(request, *shown_texts)):
        return _form(request, link, subject, [page.texts.changed])
    choices = PageChoices(topics, channels, texts, channel_texts)
    pending = await preferences.save_page(database, link, choices, clock.unique_now_us())
    window = clock.now_us() // REQUEST_WINDOW_US
    for name in pending:
        await _send(request, link, subject, REQUESTED, name, f"{subject.contact.id}/{name}/{window}")
    subject = await preferences.find_subject(database, link)
    if subject is None:  # erased meanwhile
        return _gone()
    labels = [page.label(topic) for topic in subject.topics if topic.name in pending]
    notes = [page.texts.saved, *(page.texts.sent_link.format(label) for label in labels)]
    return _form(request, link, subject, notes)


@blueprint.get("/preferences/confirm/<token:str>")
@Operation(media="text/html")
async def ask(request: Request, token: str) -> HTTPResponse:
    """Return a page with a button that confirms a topic."""
    link, subject, topic = await _find_topic(request, token)
    if link is None or subject is None or topic is None:
        return _gone()
    return _ask(Page.of(subject.contact), topic)


@blueprint.post("/preferences/confirm/<token:str>")
@Operation(media="text/html")
async def confirm(request: Request, token: str) -> HTTPResponse:
    """Grant the topic of the link, and store an event `consent.confirmed` of the contact."""
    link, subject, topic = await _find_topic(request, token)
    if link is None or subject is None or topic is None:
        return _gone()
    page = Page.of(subject.contact)
    text = page.texts.ask.format(page.label(topic))
    if not _shows(request, text):
        return _ask(page, topic)
    database, now_us = services(request).database, services(request).clock.unique_now_us()
    consent = await preferences.confirm(database, link, text, now_us)
    if consent is None:
        return _gone()
    # By the id of the consent: a second click, or one after an error, is the same event.
    await _send(request, link, subject, CONFIRMED, link.topic, consent.id)
    return page.message(page.texts.confirmed.format(page.label(topic)))


def _read_link(request: Request, purpose: Purpose, token: str) -> ContactLink | None:
    link = read_contact_token(services(request).keyring, purpose, token)
    if link is not None:
        act_for(link.org_id)
    return link


async def _find_topic(
    request: Request, token: str
) -> tuple[ContactLink | None, ContactTopics | None, TopicView | None]:
    link = _read_link(request, "confirm", token)
    subject = None if link is None else await preferences.find_subject(services(request).database, link)
    topics = [] if link is None or subject is None else [topic for topic in subject.topics if topic.name == link.topic]
    return link, subject, next(iter(topics), None)


async def _send(request: Request, link: ContactLink, subject: ContactTopics, event: str, topic: str, key: str) -> None:
    pipeline, keyring = services(request).pipeline, services(request).keyring
    if not await preferences.send_event(pipeline, keyring, link.org_id, subject.contact, event, topic, key):
        raise RequestRefusedError(503, "the event could not be stored; try again")


def _gone() -> HTTPResponse:
    page = Page.of(None)
    return page.message(page.texts.gone, 404)


def _ask(page: Page, topic: TopicView) -> HTTPResponse:
    text = page.texts.ask.format(page.label(topic))
    return page.question(text, page.texts.confirm, _shown(text))


def _form(request: Request, link: ContactLink, subject: ContactTopics, notes: list[str]) -> HTTPResponse:
    page, contact = Page.of(subject.contact), subject.contact
    texts = page.texts
    topics = [(topic.name, page.label(topic), topic.name not in contact.declined) for topic in subject.topics]
    channels = [(name, getattr(texts, name), name not in contact.opted_out) for name in PAGE_CHANNELS]
    about = ""
    if contact.email is not None:
        email = services(request).keyring.of(link.org_id).open_email(contact.email)
        about = f"<p>{escaping.escape(texts.about.format(mask_email(email)))}</p>"
    status = "".join(f"<p>{escaping.escape(note)}</p>" for note in notes)
    content = [
        f"<h1>{escaping.escape(texts.title)}</h1>",
        f'<div role="status">{status}</div>' if notes else "",
        f"<p>{escaping.escape(texts.intro)}</p>",
        about,
        '<form method="post">',
        _shown(*(text for by_name in _texts(page, subject) for text in by_name.values())),
        _choices(texts.topics, "topic", topics) if topics else "",
        _choices(texts.channels, "channel", channels),
        f'<button class="main">{escaping.escape(texts.save)}</button>',
        f'<button class="other" name="stop" value="all">{escaping.escape(texts.stop_all)}</button>',
        "</form>",
    ]
    return page.answer(texts.title, "\n".join(filter(None, content)))


def _choices(legend: str, field: str, choices: list[tuple[str, str, bool]]) -> str:
    rows = [
        f'<input type="hidden" name="shown_{field}" value="{name}">'
        f'<label><input type="checkbox" name="{field}" value="{name}"{" checked" if wanted else ""}>'
        f"<span>{escaping.escape(label)}</span></label>"
        for name, label, wanted in choices
    ]
    return "\n".join([f"<fieldset>\n<legend>{escaping.escape(legend)}</legend>", *rows, "</fieldset>"])


def _read_choices(request: Request, field: str) -> dict[str, bool]:
    """Return what was shown, and whether it was checked; with the button that stops everything, nothing was."""
    form = request.get_form() or RequestParameters()
    checked = set() if _stops(request) else set(form.getlist(field, []))
    return {name: name in checked for name in form.getlist(f"shown_{field}", [])}


def _stops(request: Request) -> bool:
    return "stop" in (request.get_form() or RequestParameters())


def _shown(*texts: str) -> str:
    """Return the hidden field of a form that says which texts it shows."""
    return f'<input type="hidden" name="texts" value="{_digest(texts)}">'


def _shows(request: Request, *texts: str) -> bool:
    """Return whether the sent form showed these texts. A label or the locale may have changed in between."""
    sent = (request.get_form() or RequestParameters()).get("texts")
    return sent is None or sent == _digest(texts)


def _digest(texts: tuple[str, ...]) -> str:
    return preferences.sha256_of("\n".join(texts))


def _texts(page: Page, subject: ContactTopics) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts of the topics and of the channels, by name."""
    topics = {topic.name: _text(page, page.label(topic)) for topic in subject.topics}
    return topics, {name: _text(page, getattr(page.texts, name)) for name in PAGE_CHANNELS}


def _text(page: Page, label: str) -> str:
    """Return what a person reads when they choose: the heading, the sentence below it, and the label of the box."""
    return "\n".join((page.texts.title, page.texts.intro, label))
