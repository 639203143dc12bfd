"""The kinds of nodes as a person fills them in: one form each, described once, for the palette and the side panel.

What a field may hold is the language's business (`api.language.action`); a test compares the names of the fields with those it reads.
"""

from datetime import timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from api.language.action import KINDS, Action, Condition, Exit, Invalid, WaitForEvent, Way, read_action
from api.language.filter import OPERATORS
from api.language.graph import Node
from workbench.author import JsonObject
from workbench.display.cards import label, look
from workbench.display.words import KIND_WORDS

Control: TypeAlias = Literal[
    "line",
    "text",
    "json",
    "tag",
    "span",
    "event",
    "events",
    "filters",
    "branches",
    "attributes",
    "word",
    "wallet",
    "number",
    "no",
]
Group: TypeAlias = Literal["Start", "Say", "Remember", "Steer"]


class Field(msgspec.Struct, frozen=True):
    """One field of a form: which part of `data` it is, and how it is filled in.

    `line` and `text` may hold values in {{ }}; `json` too, in its texts. `word` is a text without them, `wallet` the name of a
    parameter that holds an address, `no` false unless somebody says otherwise.
    """

    name: str
    control: Control
    label: str
    hint: str = ""


class Form(msgspec.Struct, frozen=True):
    """A kind of node: where it stands in the palette, what a new one holds, and its fields."""

    group: Group
    about: str
    blank: dict[str, Any] = {}
    fields: tuple[Field, ...] = ()


_FILTERS = "Everything has to hold. Texts and numbers differ: 100 is not “100”."
_VALUES = "Values stand in {{ }}: Thanks for {{ amountUsd }} USD."

FORMS: dict[str, Form] = {
    "app_event": Form(
        "Start",
        "What starts it",
        {"event": ""},
        (
            Field("events", "events", "Events", "Any of these starts it; none at all: every event does."),
            Field("filters", "filters", "Only when", _FILTERS),
        ),
    ),
    "onchain_event": Form(
        "Start",
        "What a contract logs starts it",
        {},
        (
            Field("chainId", "number", "Chain", "Its number: 1 is Ethereum, 8453 Base."),
            Field("contract", "word", "Contract", "Its address: 0x and 40 digits."),
            Field("signature", "word", "Event", "As in Solidity: Transfer(address from, address to, uint256 value)."),
            Field("walletArg", "wallet", "Contact", "The parameter with the wallet it is about."),
            Field("confirmations", "number", "Confirmations", "Blocks on top of its own; none: at once."),
            Field("createContacts", "no", "Unknown wallets become contacts", "As many an hour as the operator allows."),
            Field("filters", "filters", "Only when", f"{_FILTERS} Numbers of more than 48 bits are texts."),
        ),
    ),
    "send_inapp": Form(
        "Say",
        "A message in your app",
        {"recipientMode": "triggering_profile", "title": "", "body": ""},
        (
            Field("title", "line", "Title"),
            Field("body", "text", "Text", _VALUES),
            Field("data", "json", "Data for the app", "JSON that travels along; may be left out."),
        ),
    ),
    "send_email": Form(
        "Say",
        "An email",
        {"subject": "", "body": ""},
        (
            Field("subject", "line", "Subject"),
            Field("body", "text", "Text", f"{_VALUES} A text that begins with < is HTML."),
        ),
    ),
    "send_webhook": Form(
        "Say",
        "A call to another system",
        {"url": ""},
        (
            Field("url", "line", "Address", "https://… ; values may stand after the host."),
            Field("body", "json", "Body", "JSON or text; left out, the event is sent as it came."),
        ),
    ),
    "add_tag": Form("Remember", "Mark the contact", {"tag": ""}, (Field("tag", "tag", "Tag"),)),
    "remove_tag": Form("Remember", "Take a mark off", {"tag": ""}, (Field("tag", "tag", "Tag"),)),
    "update_contact": Form(
        "Remember",
        "Write attributes of the contact",
        {"attributes": {}},
        (Field("attributes", "attributes", "Attributes", "A text that is only {{ amountUsd }} stays a number."),),
    ),
    "condition": Form(
        "Steer", "One way or the other", {"filters": []}, (Field("filters", "filters", "Yes, when", _FILTERS),)
    ),
    "delay": Form("Steer", "Go on later", {"seconds": 86_400}, (Field("seconds", "span", "How long"),)),
    "wait_for_event": Form(
        "Steer",
        "Until the contact does something",
        {"event": "", "filters": [], "timeoutSeconds": 172_800},
        (
            Field("event", "event", "Event"),
            Field("timeoutSeconds", "span", "No longer than"),
            Field("filters", "filters", "Only when", _FILTERS),
        ),
    ),
    "split": Form(
        "Steer",
        "So many percent each way",
        {"branches": [{"handle": "a", "percent": 50}, {"handle": "b", "percent": 50}]},
        (Field("branches", "branches", "Ways", "A contact always takes the same way."),),
    ),
    "exit": Form("Steer", "End here"),
}

_BRANCHING: dict[str, Action] = {
    "condition": Condition(()),
    "wait_for_event": WaitForEvent("", (), timedelta(1)),
    "exit": Exit(),
}
"""Kinds whose ways out are the same whatever stands in them."""


def kinds() -> list[JsonObject]:
    """Return every kind of node as a browser takes it, in the order of the palette."""
    ranked = sorted(KINDS, key=lambda kind: _GROUPS.index(FORMS[kind].group))
    return [_kind(kind, FORMS[kind]) for kind in ranked]


_GROUPS: tuple[Group, ...] = ("Start", "Say", "Remember", "Steer")


def _kind(kind: str, form: Form) -> JsonObject:
    data = {"actionType": kind} | form.blank
    own = look(kind)
    return {
        "kind": kind,
        "label": KIND_WORDS[kind],
        "group": form.group,
        "about": form.about,
        "color": own.color,
        "icon": own.icon,
        "blank": data,
        "ways": ways(Node(kind, kind, read_action(kind, data, "")), data),
        "fields": [msgspec.to_builtins(field) for field in form.fields],
    }


def operators() -> list[str]:
    """Return the operators of filters, in the order in which they are offered."""
    return [*OPERATORS]


def ways(node: Node, written: Any) -> list[JsonObject]:
    """Return the ways out of a node with what stands at them, also of one that is not filled in yet."""
    return [{"handle": way, "label": label(node, way) if way else ""} for way in _handles(node, written)]


def _handles(node: Node, written: Any) -> tuple[Way, ...]:
    if not isinstance(node.action, Invalid):
        return node.handles
    if node.kind == "split" and isinstance(written, dict) and isinstance(written.get("branches"), list):
        named = [each.get("handle") for each in written["branches"] if isinstance(each, dict)]
        return tuple(dict.fromkeys(each for each in named if isinstance(each, str) and each)) or (None,)
    return _BRANCHING.get(node.kind, node.action).handles
