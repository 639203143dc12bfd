"""The forms of the canvas: the palette entry and the fields of each kind of node.

`workbench.language.actions` decides which values are valid; a test compares the names of the fields with those that it
reads.
"""

from datetime import timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from workbench.display.cards import label, look
from workbench.display.words import KIND_WORDS
from workbench.draft import JsonObject
from workbench.language.actions import (
    NODE_KINDS,
    Action,
    Condition,
    Exit,
    Handle,
    InvalidAction,
    WaitForEvent,
    read_action,
)
from workbench.language.graph import Node

Control: TypeAlias = Literal[
    "line",
    "text",
    "json",
    "tag",
    "duration",
    "event",
    "events",
    "filters",
    "branches",
    "attributes",
    "word",
    "wallet",
    "number",
    "checkbox",
]
Group: TypeAlias = Literal["Triggers", "Messages", "Contact", "Flow"]
_GROUPS: tuple[Group, ...] = ("Triggers", "Messages", "Contact", "Flow")


class Field(msgspec.Struct, frozen=True):
    """One field of a form: a key of `data`, and the control that edits it.

    `line`, `text` and the texts in `json` may contain templates in {{ }}. `word` is a text without templates, `wallet`
    the name of a parameter that contains an address, `duration` a number of seconds, `checkbox` a boolean that is off
    by default.
    """

    name: str
    control: Control
    label: str
    hint: str = ""


class Form(msgspec.Struct, frozen=True):
    """A kind of node: its palette entry, the data of a new node, and its fields."""

    group: Group
    about: str
    blank: dict[str, Any] = {}
    fields: tuple[Field, ...] = ()


_FILTERS = "All conditions must match. The number 100 and the text “100” are different."
_VALUES = "Insert values with {{ }}: Thanks for {{ amountUsd }} USD."

FORMS: dict[str, Form] = {
    "app_event": Form(
        "Triggers",
        "Starts on an event",
        {"event": ""},
        (
            Field("events", "events", "Events", "Starts on any of these events. Leave empty to start on every event."),
            Field("filters", "filters", "Only if", _FILTERS),
        ),
    ),
    "onchain_event": Form(
        "Triggers",
        "Starts on a contract event",
        {},
        (
            Field("chainId", "number", "Chain", "The chain id: 1 is Ethereum, 8453 is Base."),
            Field("contract", "word", "Contract", "The address: 0x and 40 hex digits."),
            Field(
                "signature",
                "word",
                "Event",
                "The signature as in Solidity: Transfer(address from, address to, uint256 value).",
            ),
            Field("walletArg", "wallet", "Contact", "The parameter with the wallet of the contact."),
            Field(
                "confirmations",
                "number",
                "Confirmations",
                "Blocks to wait for after the block of the log. Leave empty to start immediately.",
            ),
            Field(
                "createContacts",
                "checkbox",
                "Create contacts for unknown wallets",
                "The operator limits how many per hour.",
            ),
            Field("filters", "filters", "Only if", f"{_FILTERS} Numbers of more than 48 bits are compared as text."),
        ),
    ),
    "send_inapp": Form(
        "Messages",
        "A message in your app",
        {"recipientMode": "triggering_profile", "title": "", "body": ""},
        (
            Field("title", "line", "Title"),
            Field("body", "text", "Text", _VALUES),
            Field("data", "json", "Data for the app", "Optional JSON for the app."),
        ),
    ),
    "send_email": Form(
        "Messages",
        "An email",
        {"subject": "", "body": ""},
        (
            Field("subject", "line", "Subject"),
            Field("body", "text", "Text", f"{_VALUES} A text that starts with < is HTML."),
        ),
    ),
    "send_webhook": Form(
        "Messages",
        "An HTTP request to another system",
        {"url": ""},
        (
            Field("url", "line", "URL", "https://… Values may follow the host."),
            Field("body", "json", "Body", "JSON or text. Leave empty to send the event itself."),
        ),
    ),
    "add_tag": Form("Contact", "Add a tag to the contact", {"tag": ""}, (Field("tag", "tag", "Tag"),)),
    "remove_tag": Form("Contact", "Remove a tag", {"tag": ""}, (Field("tag", "tag", "Tag"),)),
    "update_contact": Form(
        "Contact",
        "Set attributes of the contact",
        {"attributes": {}},
        (Field("attributes", "attributes", "Attributes", "A value of only {{ amountUsd }} stays a number."),),
    ),
    "condition": Form(
        "Flow", "Branch on conditions", {"filters": []}, (Field("filters", "filters", "Yes, if", _FILTERS),)
    ),
    "delay": Form("Flow", "Wait for a fixed time", {"seconds": 86_400}, (Field("seconds", "duration", "Duration"),)),
    "wait_for_event": Form(
        "Flow",
        "Wait until the contact sends an event",
        {"event": "", "filters": [], "timeoutSeconds": 172_800},
        (
            Field("event", "event", "Event"),
            Field("timeoutSeconds", "duration", "Time limit"),
            Field("filters", "filters", "Only if", _FILTERS),
        ),
    ),
    "split": Form(
        "Flow",
        "Split by percentage",
        {"branches": [{"handle": "a", "percent": 50}, {"handle": "b", "percent": 50}]},
        (Field("branches", "branches", "Branches", "A contact always takes the same branch."),),
    ),
    "exit": Form("Flow", "End the entry"),
}

# Nodes of these kinds have the same handles whatever their data; an incomplete node shows the handles of these.
_SAMPLE_ACTIONS: dict[str, Action] = {
    "condition": Condition(()),
    "wait_for_event": WaitForEvent("", (), timedelta(1)),
    "exit": Exit(),
}


def kinds() -> list[JsonObject]:
    """Return every kind of node for the browser, in the order of the palette."""
    entries = []
    for kind in sorted(NODE_KINDS, key=lambda kind: _GROUPS.index(FORMS[kind].group)):
        form, style = FORMS[kind], look(kind)
        data = {"actionType": kind} | form.blank
        entries.append(
            {
                "kind": kind,
                "label": KIND_WORDS[kind],
                "group": form.group,
                "about": form.about,
                "color": style.color,
                "icon": style.icon,
                "blank": data,
                "outputs": outputs(Node(kind, kind, read_action(kind, data, "")), data),
                "fields": [msgspec.to_builtins(field) for field in form.fields],
            }
        )
    return entries


def outputs(node: Node, data: Any) -> list[JsonObject]:
    """Return the handles of a node with their labels, also for a node that is not complete yet."""
    handles: tuple[Handle, ...] = node.handles
    if isinstance(node.action, InvalidAction):
        handles = _SAMPLE_ACTIONS.get(node.kind, node.action).handles
        # The branches of a split are its handles. Percentages that do not add up to 100 make the split invalid while
        # they are typed; its edges must not disappear then.
        if node.kind == "split" and isinstance(data, dict) and isinstance(data.get("branches"), list):
            names = [branch.get("handle") for branch in data["branches"] if isinstance(branch, dict)]
            handles = tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name)) or (None,)
    return [{"handle": handle, "label": label(node, handle) if handle else ""} for handle in handles]
