"""Redaction: decisions and stored messages for readers without access to personal data (docs/decisions/0040).

A simulation decides on the true facts, then decides the same run again on the contact as the reader may see it.
Messages, attributes, compared values and errors come from the second decision; where the two differ too much, they are
replaced by `UNSEEN`. A rendered text cannot be masked afterwards, because it can contain an address in any form:
`{{ email | urlencode }}`. If the template of a stored message reads an address, the text is replaced by the template.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from workbench.language.actions import Action, LocalizedMessage, SendWebhook, templates_in, texts_in
from workbench.language.channel import Channel, channel_of
from workbench.language.codec import Json, decode, encode
from workbench.language.decision import Decision
from workbench.language.event import mask_email
from workbench.language.filter import Filter, Verdict
from workbench.language.run import ContactUpdated, Effect, EntryJoined, Step, TagAdded, TagRemoved
from workbench.language.template import TemplateError, compile_template

UNSEEN = "•••"
# Details of steps that no value of the contact can get into; all others are taken from the visible contact.
_SHOWN_DETAILS = frozenset(
    {
        "messageId",
        "messages",
        "tag",
        "attributes",
        "cause",
        "until",
        "event",
        "eventId",
        "share",
        "entries",
        "locale",
        "events",
        "entryId",
    }
)
ADDRESS_PATHS = frozenset({"email", "contact", "contact.email"})


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
    masked = visible.detail if visible is not None and visible.outcome == step.outcome else {}
    unknown = {name: masked.get(name, UNSEEN) for name in step.detail.keys() - _SHOWN_DETAILS}
    return replace(step, detail=step.detail | unknown)


def _hide_values(effect: Effect) -> Effect:
    match effect:
        case ContactUpdated(attributes=attributes):
            return ContactUpdated(dict.fromkeys(attributes, UNSEEN))
        case TagAdded() | TagRemoved() | EntryJoined():
            return effect
        case _:
            channel = channel_of(effect)
            hidden = (*channel.texts, channel.address) if channel.is_sealed else channel.texts
            return replace(effect, **dict.fromkeys(hidden, UNSEEN))


def redact_texts(channel: Channel, action: Action | None, columns: Mapping[str, str | None]) -> dict[str, str | None]:
    """Return the texts among the stored `columns` of a message, without addresses.

    `action` is the action that sent the message. All texts are hidden if the action is unknown or of another kind.
    """
    redacted: dict[str, str | None] = {}
    is_sender = action is not None and action.channel is channel
    for name in channel.texts:
        text = columns.get(channel.columns[name])
        if text is None:  # erased
            continue
        template = getattr(action, name) if is_sender else UNSEEN
        if is_sender and isinstance(action, LocalizedMessage):  # the message may have been sent in any of its locales
            templates = (template, *(getattr(action.in_locale(tag)[0], name) for tag in action.locales))
            template = next((text for text in templates if any(map(_reads_address, texts_in(text)))), template)
        redacted[channel.columns[name]] = _redact_text(template, text) if is_sender else UNSEEN
    return redacted


def prints_address(action: Action) -> bool:
    """Return whether what an action sends or writes may contain the address of the contact."""
    if isinstance(action, SendWebhook) and action.body is None:  # the event with its identifiers
        return True
    return any(map(_reads_address, templates_in(action)))


def compares_address(filters: Iterable[Filter]) -> bool:
    """Return whether a filter depends on the address of the contact, and not only on whether there is one."""
    return any(not ADDRESS_PATHS.isdisjoint(filter_.paths) and filter_.operator != "exists" for filter_ in filters)


def _redact_text(template: Json, text: str) -> str:
    """Return the text, or its template if that reads an address."""
    match template:
        case None:  # the default body of a webhook
            event = decode(text.encode())
            data = event["data"]
            if "email" in data:
                data = {**data, "email": mask_email(data["email"])}
            return encode({**event, "data": data}).decode()
        case str():
            return template if _reads_address(template) else text
        case _:
            return encode(template).decode() if any(map(_reads_address, texts_in(template))) else text


def _reads_address(template: str) -> bool:
    try:
        return not ADDRESS_PATHS.isdisjoint(compile_template(template).paths)
    except TemplateError:
        return True
