"""The actions of nodes: one struct per kind, and how it is read from the `data` of a node. Reading never raises.

A node that cannot be read becomes an `InvalidAction` with its problems, so that a draft can be stored and checked while
it is wrong. The behaviour of an action is in `nodes`.
"""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from workbench.language.codec import Json
from workbench.language.event import MAX_ATTRIBUTES, attribute_problems, is_awaitable_name
from workbench.language.filter import Filter
from workbench.language.problem import Problem, Problems
from workbench.language.template import TemplateError, compile_template
from workbench.language.trigger import is_app_event, read_filters

MAX_ID_LENGTH = 128  # characters of an id or a handle; Postgres indexes node ids
MAX_TAG = 64  # characters
MAX_WAIT = timedelta(days=366)
MAX_BRANCHES = 100
MAX_URL = 2_048  # characters

_ORIGIN = r"https?://[^\s\x00-\x1f/?#@\\:{}][^\s\x00-\x1f/?#@\\{}]*"
# The origin excludes user information (`@`) and templates (`{`), which could choose the server.
_URL = re.compile(_ORIGIN + r"([/?#][^\s\x00-\x1f\x7f]*)?", re.IGNORECASE)
_URL_TEMPLATE = re.compile(_ORIGIN + r"([/?#].*)?", re.IGNORECASE | re.DOTALL)
_PLACEHOLDER = re.compile(r"{{.*?}}|{%.*?%}|{#.*?#}", re.DOTALL)

# mypy checks that each match on these is exhaustive, so it reports every match that lacks a new kind.
TriggerKind: TypeAlias = Literal["app_event", "onchain_event"]
BranchingKind: TypeAlias = Literal["condition", "wait_for_event", "split"]
PlainKind: TypeAlias = Literal[
    "send_inapp", "send_email", "send_webhook", "add_tag", "remove_tag", "update_contact", "delay", "exit"
]
StepKind: TypeAlias = PlainKind | BranchingKind

Handle: TypeAlias = str | None
"""The handle that an edge leaves by; nodes that do not branch have only None."""


class _SingleHandle(msgspec.Struct, frozen=True):
    @property
    def handles(self) -> tuple[Handle, ...]:
        """The handles, in the order in which they are drawn."""
        return (None,)


class TriggerNode(_SingleHandle, frozen=True):
    """The start of an entry."""


class SendInapp(_SingleHandle, frozen=True):
    """Store and push a message for the wallet of the event, otherwise of its contact."""

    title: str
    body: str
    data: dict[str, Any] | None = None


class SendEmail(_SingleHandle, frozen=True):
    """Send an email. A body that begins with `<` is HTML, and its values are escaped."""

    subject: str
    body: str

    @property
    def html(self) -> bool:
        return self.body.lstrip()[:1] == "<"


class SendWebhook(_SingleHandle, frozen=True):
    """POST to a URL. `body`: a template, or JSON with templates as texts; None: the event."""

    url: str
    body: Json = None


class AddTag(_SingleHandle, frozen=True):
    """Add a tag to the contact."""

    tag: str


class RemoveTag(_SingleHandle, frozen=True):
    """Remove a tag from the contact."""

    tag: str


class UpdateContact(_SingleHandle, frozen=True):
    """Merge attributes into the contact's; texts are templates."""

    attributes: dict[str, Json]


class Condition(msgspec.Struct, frozen=True):
    """Follow `true` if all filters pass, otherwise `false`."""

    filters: tuple[Filter, ...]

    @property
    def handles(self) -> tuple[Handle, ...]:
        return ("true", "false")


class Delay(_SingleHandle, frozen=True):
    """Continue after a fixed time."""

    wait: timedelta


class WaitForEvent(msgspec.Struct, frozen=True):
    """Follow `matched` when the contact sends an event that passes the filters, `timeout` if none arrives in time."""

    event: str
    filters: tuple[Filter, ...]
    timeout: timedelta

    @property
    def handles(self) -> tuple[Handle, ...]:
        return ("matched", "timeout")


class Branch(msgspec.Struct, frozen=True):
    """One branch of a split, with its share of the contacts."""

    handle: str
    percent: int


class Split(msgspec.Struct, frozen=True):
    """Follow one of the branches; a contact always takes the same one."""

    branches: tuple[Branch, ...]

    @property
    def handles(self) -> tuple[Handle, ...]:
        return tuple(branch.handle for branch in self.branches)


class Exit(msgspec.Struct, frozen=True):
    """End the entry."""

    @property
    def handles(self) -> tuple[Handle, ...]:
        return ()


class InvalidAction(_SingleHandle, frozen=True):
    """A node that cannot run, with its problems. Drafts may contain such nodes; published graphs never do."""

    problems: Problems


Action: TypeAlias = (
    TriggerNode
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
    | InvalidAction
)


def read_action(kind: str, data: dict[str, Any], node: str) -> Action:
    """Return the action of a node; `node` is its path, such as `graph.nodes[2]`, for the problems."""
    read = _READERS.get("app_event" if is_app_event(kind) else kind)
    if read is None:
        reason = f"unknown node kind {kind!r}; the kinds are {', '.join(NODE_KINDS)}"
        return InvalidAction((Problem(f"{node}.type", reason),))
    problems: list[Problem] = []
    action = read(data, f"{node}.data", problems)
    return InvalidAction(tuple(problems)) if problems else action


def templates_in(action: Action) -> Iterator[str]:
    """Yield the templates that are rendered when the action runs."""
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
    """Return the name of an awaited event in lower case; add a problem if it is not a name."""
    if isinstance(value, str) and is_awaitable_name(value):
        return value.lower()
    reason = (
        "must be the name of an event: 1 to 64 characters of a-z A-Z 0-9 _ . : -, or of a contract log: 0x…:Transfer"
    )
    problems.append(Problem(field, reason))
    return ""


def is_webhook_url(url: str) -> bool:
    """Return whether a webhook can be sent to a URL: http or https, no credentials, no white space."""
    return len(url) <= MAX_URL and _URL.fullmatch(url) is not None


def is_valid_id(value: Any) -> bool:
    """Return whether a value can be the id of a node or an edge, or a handle."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH


_Data: TypeAlias = dict[str, Any]
_Reader: TypeAlias = Callable[[_Data, str, list[Problem]], Action]
_READERS: dict[str, _Reader] = {}


def _reads(*kinds: TriggerKind | StepKind) -> Callable[[_Reader], _Reader]:
    def register(read: _Reader) -> _Reader:
        _READERS.update(dict.fromkeys(kinds, read))
        return read

    return register


@_reads("app_event", "onchain_event")
def _read_trigger(_: _Data, __: str, ___: list[Problem]) -> Action:
    return TriggerNode()


@_reads("send_inapp")
def _read_send_inapp(data: _Data, field: str, problems: list[Problem]) -> Action:
    if data.get("recipientMode", "triggering_profile") != "triggering_profile":
        problems.append(Problem(f"{field}.recipientMode", "must be triggering_profile"))
    extra = data.get("data")
    if extra is not None and not isinstance(extra, dict):
        problems.append(Problem(f"{field}.data", "must be an object"))
    title, body = _template(data, field, "title", problems), _template(data, field, "body", problems)
    return SendInapp(title, body, extra)


@_reads("send_email")
def _read_send_email(data: _Data, field: str, problems: list[Problem]) -> Action:
    return SendEmail(_template(data, field, "subject", problems), _template(data, field, "body", problems))


@_reads("send_webhook")
def _read_send_webhook(data: _Data, field: str, problems: list[Problem]) -> Action:
    url = _template(data, field, "url", problems)
    # Values may only follow the host: a value of the contact must not choose the server that gets the request.
    example = _PLACEHOLDER.sub("x", url)
    if url and not (len(url) <= MAX_URL and _URL_TEMPLATE.fullmatch(url) and is_webhook_url(example)):
        reason = f"must be an http or https URL of at most {MAX_URL} characters; values may only follow the host"
        problems.append(Problem(f"{field}.url", reason))
    body = data.get("body")
    if body == "":
        problems.append(Problem(f"{field}.body", "must not be empty; leave it out to send the event"))
    for text in _texts_in(body):
        _check_template(text, f"{field}.body", problems)
    return SendWebhook(url, body)


@_reads("add_tag")
def _read_add_tag(data: _Data, field: str, problems: list[Problem]) -> Action:
    return AddTag(_tag(data, field, problems))


@_reads("remove_tag")
def _read_remove_tag(data: _Data, field: str, problems: list[Problem]) -> Action:
    return RemoveTag(_tag(data, field, problems))


@_reads("update_contact")
def _read_update_contact(data: _Data, field: str, problems: list[Problem]) -> Action:
    attributes = data.get("attributes")
    if not isinstance(attributes, dict) or not 0 < len(attributes) <= MAX_ATTRIBUTES:
        problems.append(Problem(f"{field}.attributes", f"must be an object of 1 to {MAX_ATTRIBUTES} attributes"))
        return UpdateContact({})
    for text in _texts_in(attributes):
        _check_template(text, f"{field}.attributes", problems)
    # A template can only be checked against the limits once it is rendered.
    constants = {name: "" if isinstance(value, str) and "{" in value else value for name, value in attributes.items()}
    problems += [Problem(f"{field}.{problem.field}", problem.reason) for problem in attribute_problems(constants)]
    return UpdateContact(attributes)


@_reads("condition")
def _read_condition(data: _Data, field: str, problems: list[Problem]) -> Action:
    return Condition(read_filters(data.get("filters"), f"{field}.filters", problems))


@_reads("delay")
def _read_delay(data: _Data, field: str, problems: list[Problem]) -> Action:
    return Delay(_seconds(data, field, "seconds", problems))


@_reads("wait_for_event")
def _read_wait_for_event(data: _Data, field: str, problems: list[Problem]) -> Action:
    return WaitForEvent(
        read_event_name(data.get("event"), f"{field}.event", problems),
        read_filters(data.get("filters"), f"{field}.filters", problems),
        _seconds(data, field, "timeoutSeconds", problems),
    )


@_reads("split")
def _read_split(data: _Data, field: str, problems: list[Problem]) -> Action:
    items = data.get("branches")
    if not isinstance(items, list) or not 2 <= len(items) <= MAX_BRANCHES:
        problems.append(Problem(f"{field}.branches", f"must be an array of 2 to {MAX_BRANCHES} branches"))
        return Split(())
    branches: list[Branch] = []
    for index, item in enumerate(items):
        handle, percent = (item.get("handle"), item.get("percent")) if isinstance(item, dict) else (None, None)
        if not is_valid_id(handle):
            reason = f"must be 1 to {MAX_ID_LENGTH} characters"
            problems.append(Problem(f"{field}.branches[{index}].handle", reason))
        elif type(percent) is not int or not 0 <= percent <= 100:
            problems.append(Problem(f"{field}.branches[{index}].percent", "must be a whole number from 0 to 100"))
        else:
            branches.append(Branch(str(handle), percent))
    if len({branch.handle for branch in branches}) < len(branches):
        problems.append(Problem(f"{field}.branches", "two branches have the same handle"))
    if len(branches) == len(items) and (total := sum(branch.percent for branch in branches)) != 100:
        problems.append(Problem(f"{field}.branches", f"the percentages sum to {total}, not to 100"))
    return Split(tuple(branches))


@_reads("exit")
def _read_exit(_: _Data, __: str, ___: list[Problem]) -> Action:
    return Exit()


NODE_KINDS = tuple(_READERS)


def _template(data: _Data, field: str, name: str, problems: list[Problem]) -> str:
    text = data.get(name)
    if not isinstance(text, str) or not text:
        problems.append(Problem(f"{field}.{name}", "must be a non-empty text"))
        return ""
    _check_template(text, f"{field}.{name}", problems)
    return text


def _check_template(text: str, field: str, problems: list[Problem]) -> None:
    try:
        compile_template(text)
    except TemplateError as error:
        problems.append(Problem(field, str(error)))


def _texts_in(value: Json) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts_in(item)
        case dict():
            for item in value.values():
                yield from _texts_in(item)
        case _:
            return


def _tag(data: _Data, field: str, problems: list[Problem]) -> str:
    tag = data.get("tag")
    if not isinstance(tag, str) or not 0 < len(tag) <= MAX_TAG or "\0" in tag:
        problems.append(Problem(f"{field}.tag", f"must be 1 to {MAX_TAG} characters"))
        return ""
    return tag


def _seconds(data: _Data, field: str, name: str, problems: list[Problem]) -> timedelta:
    seconds, max_seconds = data.get(name), MAX_WAIT // timedelta(seconds=1)
    if type(seconds) is not int or not 1 <= seconds <= max_seconds:
        reason = f"must be a whole number of seconds from 1 to {max_seconds:,} (366 days)"
        problems.append(Problem(f"{field}.{name}", reason))
        return timedelta()
    return timedelta(seconds=seconds)
