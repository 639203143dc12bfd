"""What nodes mean: one action per kind, and how it is read from a node's `data`. Reading never raises.

Kinds: `app_event` and `onchain_event` (the trigger, where an entry starts) · `send_inapp` · `send_email` · `send_webhook` · `add_tag` ·
`remove_tag` · `update_contact` · `condition` · `delay` · `wait_for_event` · `split` · `exit`.
"""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeAlias

import msgspec

from api.language.attributes import MAX_ATTRIBUTES, unfit_attributes
from api.language.codec import Json
from api.language.event import can_be_awaited
from api.language.filter import Filter
from api.language.problem import Problem, Problems
from api.language.template import TemplateError, compile_template
from api.language.trigger import is_app_event, read_filters

MAX_NAME = 128  # characters of an id or a handle
MAX_TAG = 64  # characters
MAX_WAIT = timedelta(days=366)
MAX_BRANCHES = 100
MAX_URL = 2_048  # characters

_ORIGIN = r"https?://[^\s\x00-\x1f/?#@\\:{}][^\s\x00-\x1f/?#@\\{}]*"
_URL = re.compile(_ORIGIN + r"([/?#][^\s\x00-\x1f\x7f]*)?", re.IGNORECASE)
_URL_WITH_VALUES = re.compile(_ORIGIN + r"([/?#].*)?", re.IGNORECASE | re.DOTALL)
_PLACEHOLDER = re.compile(r"{{.*?}}|{%.*?%}|{#.*?#}", re.DOTALL)

Way: TypeAlias = str | None
"""A handle that an edge may leave by; None is the only way out of a node that does not branch."""


class Plain(msgspec.Struct, frozen=True):
    """An action with one way out."""

    @property
    def handles(self) -> tuple[Way, ...]:
        """The ways out, in the order in which they are drawn."""
        return (None,)


class Entered(Plain, frozen=True):
    """The trigger node: where an entry starts."""


class SendInapp(Plain, frozen=True):
    """Store and push a message for the wallet of the contact that the event resolved to."""

    title: str
    body: str
    data: dict[str, Any] | None = None


class SendEmail(Plain, frozen=True):
    """Send an email. A body that begins with `<` is HTML: values stand escaped in it."""

    subject: str
    body: str

    @property
    def html(self) -> bool:
        """Whether the body is HTML."""
        return self.body.lstrip()[:1] == "<"


class SendWebhook(Plain, frozen=True):
    """POST to a URL. `body`: a text, or JSON whose texts are filled in; None: the event as it came."""

    url: str
    body: Json = None


class AddTag(Plain, frozen=True):
    """Add a tag to the contact."""

    tag: str


class RemoveTag(Plain, frozen=True):
    """Take a tag off the contact."""

    tag: str


class UpdateContact(Plain, frozen=True):
    """Merge attributes into the contact's; texts are filled in."""

    attributes: dict[str, Json]


class Condition(msgspec.Struct, frozen=True):
    """Go on along the handle `true` when all filters pass, else `false`."""

    filters: tuple[Filter, ...]

    @property
    def handles(self) -> tuple[Way, ...]:
        """Both answers."""
        return ("true", "false")


class Delay(Plain, frozen=True):
    """Go on later."""

    wait: timedelta


class WaitForEvent(msgspec.Struct, frozen=True):
    """Go on along `matched` when the contact sends an event that passes the filters, along `timeout` when none came."""

    event: str
    filters: tuple[Filter, ...]
    timeout: timedelta

    @property
    def handles(self) -> tuple[Way, ...]:
        """It came, or it did not."""
        return ("matched", "timeout")


class Branch(msgspec.Struct, frozen=True):
    """One way out of a split, and how many of a hundred contacts take it."""

    handle: str
    percent: int


class Split(msgspec.Struct, frozen=True):
    """Go on along one of the branches; a contact always takes the same."""

    branches: tuple[Branch, ...]

    @property
    def handles(self) -> tuple[Way, ...]:
        """One per branch."""
        return tuple(branch.handle for branch in self.branches)


class Exit(msgspec.Struct, frozen=True):
    """End the entry here."""

    @property
    def handles(self) -> tuple[Way, ...]:
        """None at all."""
        return ()


class Invalid(Plain, frozen=True):
    """A node that cannot run, and why. Drafts may hold some; a published graph never does."""

    problems: Problems


Action: TypeAlias = (
    Entered
    | SendInapp
    | SendEmail
    | SendWebhook
    | AddTag
    | RemoveTag
    | UpdateContact
    | Condition
    | Delay
    | WaitForEvent
    | Split
    | Exit
    | Invalid
)


def read_action(kind: str, data: dict[str, Any], node: str) -> Action:
    """Return what a node means; `node` is its path, such as `graph.nodes[2]`, to name what is wrong."""
    read = _READERS.get("app_event" if is_app_event(kind) else kind)
    if read is None:
        reason = f"there is no node kind {kind!r}; there are {', '.join(KINDS)}"
        return Invalid((Problem(f"{node}.type", reason),))
    problems: list[Problem] = []
    action = read(data, f"{node}.data", problems)
    return Invalid(tuple(problems)) if problems else action


def texts_of(action: Action) -> Iterator[str]:
    """Yield the texts that are filled in when the action runs."""
    match action:
        case SendInapp(title=first, body=second) | SendEmail(subject=first, body=second):
            yield from (first, second)
        case SendWebhook(url=url, body=body):
            yield url
            yield from _texts_in(body)
        case UpdateContact(attributes=attributes):
            yield from _texts_in(attributes)
        case _:
            return


def read_event_name(value: Any, field: str, problems: list[Problem]) -> str:
    """Return the name of an event that is waited for, adding what is wrong to `problems`."""
    if isinstance(value, str) and can_be_awaited(value):
        return value.lower()
    said = "must be the name of an event: 1 to 64 characters of a-z A-Z 0-9 _ . : -, or of a contract's: 0x…:Transfer"
    problems.append(Problem(field, said))
    return ""


def is_address(url: str) -> bool:
    """Return whether a webhook can be sent there: http or https, no credentials, no white space."""
    return len(url) <= MAX_URL and _URL.fullmatch(url) is not None


def is_name(value: Any) -> bool:
    """Return whether a value can name a node, an edge or a handle: these names stand in indexes."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME


def _entered(_: dict[str, Any], __: str, ___: list[Problem]) -> Action:
    return Entered()


def _exit(_: dict[str, Any], __: str, ___: list[Problem]) -> Action:
    return Exit()


def _send_inapp(data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    if data.get("recipientMode", "triggering_profile") != "triggering_profile":
        problems.append(Problem(f"{field}.recipientMode", "must be triggering_profile"))
    extra = data.get("data")
    if extra is not None and not isinstance(extra, dict):
        problems.append(Problem(f"{field}.data", "must be an object"))
    return SendInapp(_template(data, field, "title", problems), _template(data, field, "body", problems), extra)


def _send_email(data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    return SendEmail(_template(data, field, "subject", problems), _template(data, field, "body", problems))


def _send_webhook(data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    url = _template(data, field, "url", problems)
    if url and not (len(url) <= MAX_URL and _URL_WITH_VALUES.fullmatch(url) and is_address(_PLACEHOLDER.sub("x", url))):
        reason = f"must be an http or https address of at most {MAX_URL} characters; values may stand after the host"
        problems.append(Problem(f"{field}.url", reason))
    body = data.get("body")
    if body == "":
        problems.append(Problem(f"{field}.body", "must not be empty; left out, the event is sent as it came"))
    for text in _texts_in(body):
        _compile(text, f"{field}.body", problems)
    return SendWebhook(url, body)


def _add_tag(data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    return AddTag(_tag(data, field, problems))


def _remove_tag(data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    return RemoveTag(_tag(data, field, problems))


def _update_contact(data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    attributes = data.get("attributes")
    if not isinstance(attributes, dict) or not 0 < len(attributes) <= MAX_ATTRIBUTES:
        problems.append(Problem(f"{field}.attributes", f"must be an object of 1 to {MAX_ATTRIBUTES} attributes"))
        return UpdateContact({})
    for text in _texts_in(attributes):
        _compile(text, f"{field}.attributes", problems)
    as_written = {key: "" if isinstance(each, str) and "{" in each else each for key, each in attributes.items()}
    problems.extend(Problem(f"{field}.{each.field}", each.reason) for each in unfit_attributes(as_written))
    return UpdateContact(attributes)


def _condition(data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    return Condition(read_filters(data.get("filters"), f"{field}.filters", problems))


def _delay(data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    return Delay(_seconds(data, field, "seconds", problems))


def _wait_for_event(data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    return WaitForEvent(
        read_event_name(data.get("event"), f"{field}.event", problems),
        read_filters(data.get("filters"), f"{field}.filters", problems),
        _seconds(data, field, "timeoutSeconds", problems),
    )


def _split(data: dict[str, Any], field: str, problems: list[Problem]) -> Action:
    written = data.get("branches")
    if not isinstance(written, list) or not 2 <= len(written) <= MAX_BRANCHES:
        problems.append(Problem(f"{field}.branches", f"must be an array of 2 to {MAX_BRANCHES} branches"))
        return Split(())
    found = [_branch(each, f"{field}.branches[{index}]", problems) for index, each in enumerate(written)]
    branches = tuple(each for each in found if each is not None)
    if len({each.handle for each in branches}) < len(branches):
        problems.append(Problem(f"{field}.branches", "two branches have the same handle"))
    if len(branches) == len(written) and (total := sum(each.percent for each in branches)) != 100:
        problems.append(Problem(f"{field}.branches", f"the percentages sum to {total}, not to 100"))
    return Split(branches)


def _branch(value: Any, field: str, problems: list[Problem]) -> Branch | None:
    if not isinstance(value, dict) or not is_name(value.get("handle")):
        problems.append(Problem(f"{field}.handle", f"must be 1 to {MAX_NAME} characters"))
        return None
    percent = value.get("percent")
    if type(percent) is not int or not 0 <= percent <= 100:
        problems.append(Problem(f"{field}.percent", "must be a whole number from 0 to 100"))
        return None
    return Branch(value["handle"], percent)


def _template(data: dict[str, Any], field: str, name: str, problems: list[Problem]) -> str:
    text = data.get(name)
    if not isinstance(text, str) or not text:
        problems.append(Problem(f"{field}.{name}", "must be a non-empty text"))
        return ""
    _compile(text, f"{field}.{name}", problems)
    return text


def _compile(text: str, field: str, problems: list[Problem]) -> None:
    try:
        compile_template(text)
    except TemplateError as error:
        problems.append(Problem(field, str(error)))


def _texts_in(value: Json) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from _texts_in(each)
        case dict():
            for each in value.values():
                yield from _texts_in(each)
        case _:
            return


def _tag(data: dict[str, Any], field: str, problems: list[Problem]) -> str:
    tag = data.get("tag")
    if not isinstance(tag, str) or not 0 < len(tag) <= MAX_TAG or "\0" in tag:
        problems.append(Problem(f"{field}.tag", f"must be 1 to {MAX_TAG} characters"))
        return ""
    return tag


def _seconds(data: dict[str, Any], field: str, name: str, problems: list[Problem]) -> timedelta:
    seconds, most = data.get(name), MAX_WAIT // timedelta(seconds=1)
    if type(seconds) is not int or not 1 <= seconds <= most:
        problems.append(Problem(f"{field}.{name}", f"must be a whole number of seconds from 1 to {most:,} (366 days)"))
        return timedelta()
    return timedelta(seconds=seconds)


_READERS: dict[str, Callable[[dict[str, Any], str, list[Problem]], Action]] = {
    "app_event": _entered,
    "onchain_event": _entered,
    "send_inapp": _send_inapp,
    "send_email": _send_email,
    "send_webhook": _send_webhook,
    "add_tag": _add_tag,
    "remove_tag": _remove_tag,
    "update_contact": _update_contact,
    "condition": _condition,
    "delay": _delay,
    "wait_for_event": _wait_for_event,
    "split": _split,
    "exit": _exit,
}
KINDS = tuple(_READERS)
