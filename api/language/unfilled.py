"""Texts of messages that were sent, for somebody who may not see addresses: one that an address may stand in is told as it was written.

A text that was filled in holds an address in whatever form its template made of it; so what counts is what the template looks at.
"""

from msgspec import Struct
from msgspec.structs import replace

from api.language.action import Action, SendEmail, SendInapp, SendWebhook, texts_of
from api.language.codec import decode, encode
from api.language.email import mask_email
from api.language.seen import UNSEEN
from api.language.template import TemplateError, compile_template

_ADDRESSES = frozenset({"email", "contact", "contact.email"})


class Texts(Struct, frozen=True):
    """The texts of a message: `subject` is the title of one in the app, `url` of a webhook."""

    subject: str | None
    body: str | None
    url: str | None = None


def unfilled(action: Action | None, texts: Texts) -> Texts:
    """Return the texts of a message that this action sent, without addresses; nothing of them when it is not known which it was."""
    match action:
        case SendInapp(title=subject, body=body) | SendEmail(subject=subject, body=body):
            return replace(texts, subject=_written(subject, texts.subject), body=_written(body, texts.body))
        case SendWebhook(url=url, body=None):
            return replace(texts, url=_written(url, texts.url), body=_event(texts.body))
        case SendWebhook(url=url, body=str() as body):
            return replace(texts, url=_written(url, texts.url), body=_written(body, texts.body))
        case SendWebhook(url=url, body=body):
            as_written = encode(body).decode()
            hides = any(map(_tells, texts_of(replace(action, url="-"))))
            return replace(texts, url=_written(url, texts.url), body=as_written if hides else texts.body)
        case _:
            return Texts(*(None if each is None else UNSEEN for each in (texts.subject, texts.body, texts.url)))


def _written(template: str, text: str | None) -> str | None:
    """Return the text, or its template when that looks at an address; None stays: it was never stored, or is erased."""
    return template if text is not None and _tells(template) else text


def _tells(template: str) -> bool:
    try:
        return not _ADDRESSES.isdisjoint(compile_template(template).paths)
    except TemplateError:
        return True


def _event(text: str | None) -> str | None:
    """Return the text of an event that was sent on as it came, its address masked."""
    if text is None:
        return None
    event = decode(text.encode())
    data = event["data"]
    if "email" in data:
        data = {**data, "email": mask_email(data["email"])}
    return encode({**event, "data": data}).decode()
