"""Redaction: decisions and stored messages for readers without access to personal data (docs/decisions/0040).

A simulation decides on the true facts, then decides the same run again on the contact as the reader may see it.
Messages, attributes, compared values and errors come from the second decision; where the two differ too much, they are
replaced by `UNSEEN`. A rendered text cannot be masked afterwards, because it can contain an address in any form:
`{{ email | urlencode }}`. If the template of a stored message reads an address, the text is replaced by the template.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from workbench.language.actions import Action, SendEmail, SendInapp, SendWebhook, templates_in
from workbench.language.codec import decode, encode
from workbench.language.decision import Decision
from workbench.language.event import mask_email
from workbench.language.filter import Verdict
from workbench.language.run import (
    ContactUpdated,
    Effect,
    EmailMessage,
    InappMessage,
    Step,
    TagAdded,
    TagRemoved,
    WebhookMessage,
)
from workbench.language.template import TemplateError, compile_template

UNSEEN = "•••"
_ADDRESS_PATHS = frozenset({"email", "contact", "contact.email"})


def redact_decision(decision: Decision, visible: Decision) -> Decision:
    """Return a decision without personal data.

    `visible` is the decision of the same run on the facts that the reader may see.
    """
    step, error = decision.step, decision.run.error
    if step is not None:
        step = _redact_step(step, visible.step)
        if step.outcome == "failed" and error is not None:
            error = f"{step.detail['cause']}: {step.detail['error']}"
    effects = visible.effects
    if list(map(type, effects)) != list(map(type, decision.effects)):
        effects = tuple(map(_hide_values, decision.effects))
    return Decision(replace(decision.run, error=error), step, effects)


def redact_verdicts(verdicts: Sequence[Verdict], visible: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Return verdicts with the values that the reader may see."""
    return tuple(replace(true, actual=masked.actual) for true, masked in zip(verdicts, visible, strict=True))


def _redact_step(step: Step, visible: Step | None) -> Step:
    if "verdicts" in step.detail:
        masked = [] if visible is None else visible.detail.get("verdicts", [])
        values = [verdict["actual"] for verdict in masked] or [UNSEEN] * len(step.detail["verdicts"])
        verdicts = [{**true, "actual": value} for true, value in zip(step.detail["verdicts"], values, strict=True)]
        return replace(step, detail={**step.detail, "verdicts": verdicts})
    if step.outcome == "failed":
        # An error text is shown only if the visible contact fails for the same cause: it may quote a value.
        if visible is not None and visible.outcome == "failed" and visible.detail["cause"] == step.detail["cause"]:
            return replace(step, detail=visible.detail)
        return replace(step, detail={**step.detail, "error": UNSEEN})
    return step


def _hide_values(effect: Effect) -> Effect:
    match effect:
        case InappMessage():
            return replace(effect, title=UNSEEN, body=UNSEEN)
        case EmailMessage():
            return replace(effect, email=UNSEEN, subject=UNSEEN, body=UNSEEN)
        case WebhookMessage():
            return replace(effect, url=UNSEEN, body=UNSEEN)
        case ContactUpdated(attributes=attributes):
            return ContactUpdated(dict.fromkeys(attributes, UNSEEN))
        case TagAdded() | TagRemoved():
            return effect


class MessageTexts(Struct, frozen=True):
    """The texts of a message: `subject` is the title of an in-app message, `url` belongs to a webhook."""

    subject: str | None
    body: str | None
    url: str | None = None


def redact_texts(action: Action | None, texts: MessageTexts) -> MessageTexts:
    """Return the texts of a message without addresses.

    `action` is the action that sent the message. All texts are hidden if the action is unknown or of another kind.
    """
    match action:
        case SendInapp(title=subject, body=body) | SendEmail(subject=subject, body=body):
            return replace(texts, subject=_redact_text(subject, texts.subject), body=_redact_text(body, texts.body))
        case SendWebhook(url=url, body=None):
            return replace(texts, url=_redact_text(url, texts.url), body=_mask_default_body(texts.body))
        case SendWebhook(url=url, body=str() as body):
            return replace(texts, url=_redact_text(url, texts.url), body=_redact_text(body, texts.body))
        case SendWebhook(url=url, body=body):
            reads_address = any(map(_reads_address, templates_in(replace(action, url="-"))))
            redacted = encode(body).decode() if reads_address else texts.body
            return replace(texts, url=_redact_text(url, texts.url), body=redacted)
        case _:
            hidden = (None if text is None else UNSEEN for text in (texts.subject, texts.body, texts.url))
            return MessageTexts(*hidden)


def _redact_text(template: str, text: str | None) -> str | None:
    """Return the text, or its template if that reads an address; None, for an erased text, stays None."""
    return template if text is not None and _reads_address(template) else text


def _reads_address(template: str) -> bool:
    try:
        return not _ADDRESS_PATHS.isdisjoint(compile_template(template).paths)
    except TemplateError:
        return True


def _mask_default_body(text: str | None) -> str | None:
    """Return the default body of a webhook with its email address masked."""
    if text is None:
        return None
    event = decode(text.encode())
    data = event["data"]
    if "email" in data:
        data = {**data, "email": mask_email(data["email"])}
    return encode({**event, "data": data}).decode()
