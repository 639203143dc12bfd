"""Triggers: the events that start an automation (docs/contract.md 2.7 and 4.7)."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

import msgspec

from workbench.language.codec import storage_problem
from workbench.language.event import Identifiers
from workbench.language.filter import Filter, matches
from workbench.language.onchain import ONCHAIN_EVENT as ONCHAIN_EVENT
from workbench.language.onchain import LogSource, read_log_source
from workbench.language.problem import Problem, Problems

ALIASES = frozenset({"app_event", "custom_event", "app-event", "custom-event", "appevent"})
BUILT_INS = ("event", "contactId", "walletAddress", "email", "externalId")
MAX_OPTIONS = 20  # values of an `in` filter that a query pre-selects; each becomes up to two conditions of the query


def is_app_event(type_name: Any) -> bool:
    """Return whether a type is `app_event` or one of its aliases."""
    return isinstance(type_name, str) and type_name in ALIASES


def is_trigger(type_name: Any) -> bool:
    """Return whether a type is that of a trigger."""
    return is_app_event(type_name) or type_name == ONCHAIN_EVENT


class Trigger(msgspec.Struct, frozen=True):
    """A trigger. Without names it is the wildcard: every custom event of the organization.

    `source`: the logs of an `onchain_event` trigger, which has no names; None: an `app_event` trigger.
    """

    names: frozenset[str] = frozenset()
    filters: tuple[Filter, ...] = ()
    source: LogSource | None = None

    @property
    def type(self) -> Literal["app_event", "onchain_event"]:
        return "app_event" if self.source is None else "onchain_event"

    def matches_event(self, name: str, *, on_chain: bool = False) -> bool:
        """Return whether the trigger is for custom events, or logs, of this name (custom events in lower case)."""
        if self.source is not None:
            return on_chain and name == self.source.abi_event.name
        return not on_chain and (not self.names or name in self.names)


def fires(trigger: Trigger, name: str, context: Mapping[str, Any]) -> bool:
    """Return whether an event with this name and flat context starts the automation."""
    return trigger.matches_event(name) and matches(trigger.filters, context)


def flat_context(name: str, contact_id: str, identifiers: Identifiers, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the context of filters: the built-ins, then the keys of the payload, which override them.

    An identifier that neither event nor contact has is missing, not null.
    """
    return {"event": name, "contactId": contact_id, **identifier_fields(identifiers), **payload}


def identifier_fields(identifiers: Identifiers) -> dict[str, Any]:
    """Return the identifiers that are set, by the names that filters and texts use."""
    fields = {}
    if identifiers.wallet is not None:
        fields["walletAddress"] = identifiers.wallet
    if identifiers.email is not None:
        fields["email"] = identifiers.email
    if identifiers.external_id is not None:
        fields["externalId"] = identifiers.external_id
    return fields


def needs_email(trigger: Trigger) -> bool:
    """Return whether a filter reads the email, so that it has to be decrypted."""
    return any(filter_.path == "email" for filter_ in trigger.filters)


def read_trigger(spec: Any, field: str = "triggerSpec") -> Trigger | Problems:
    """Return the trigger in a decoded JSON value, or all its problems."""
    if not isinstance(spec, dict):
        return (Problem(field, "must be an object"),)
    if reason := storage_problem(spec):
        return (Problem(field, reason),)
    problems: list[Problem] = []
    source, names = None, list[str]()
    if spec.get("type") == ONCHAIN_EVENT:
        source = read_log_source(spec, field, problems)
    elif is_app_event(spec.get("type")):
        name, listed = spec.get("event"), spec.get("eventNames")
        if isinstance(name, str):
            names.append(name)
        elif name is not None:
            problems.append(Problem(f"{field}.event", "must be a string"))
        if isinstance(listed, list) and all(isinstance(item, str) for item in listed):
            names.extend(listed)
        elif listed is not None:
            problems.append(Problem(f"{field}.eventNames", "must be an array of strings"))
    else:
        problems.append(Problem(f"{field}.type", f"must be app_event or {ONCHAIN_EVENT}"))
    filters = read_filters(spec.get("filters"), f"{field}.filters", problems)
    if problems:
        return tuple(problems)
    return Trigger(frozenset(name.lower() for name in names if name), filters, source)


def read_filters(value: Any, field: str, problems: list[Problem]) -> tuple[Filter, ...]:
    """Return the filters in a decoded JSON value; add what is wrong with them to `problems`."""
    if value is None:
        return ()
    if not isinstance(value, list):
        problems.append(Problem(field, "must be an array of filters"))
        return ()
    filters: list[Filter] = []
    for index, item in enumerate(value):
        path = f"{field}[{index}]"
        if not isinstance(item, dict):
            problems.append(Problem(path, "must be an object with path, operator and value"))
            continue
        blank = [name for name in ("path", "operator") if not isinstance(item.get(name), str) or not item[name]]
        if blank:
            problems.append(Problem(f"{path}.{blank[0]}", "must be a non-empty string"))
        elif item["operator"] != "exists" and "value" not in item:
            problems.append(Problem(f"{path}.value", f"is required for {item['operator']}"))
        else:
            filters.append(Filter(item["path"], item["operator"], item.get("value")))
    return tuple(filters)


def containment_patterns(filter_: Filter, roots: Collection[str] = BUILT_INS) -> tuple[dict[str, Any], ...]:
    """Return JSON objects such that every payload that passes the filter contains one of them; () for most operators.

    Postgres pre-selects rows with them (`payload @> {"asset": "USDC"}`). They may let too many rows through, never too
    few; `matches` decides. `roots`: first parts of paths that can refer to something outside the payload.
    """
    if filter_.operator == "eq":
        options = [filter_.value]
    elif filter_.operator == "in" and isinstance(filter_.value, list) and 0 < len(filter_.value) <= MAX_OPTIONS:
        options = filter_.value
    else:
        return ()
    first, *rest = filter_.path.split(".")
    if first in roots:  # the value may come from outside the payload
        return ()
    patterns: list[dict[str, Any]] = []
    for option in options:
        patterns.append({filter_.path: option})
        if rest:  # a path is a literal key first, and descends into objects otherwise
            nested = option
            for key in reversed(rest):
                nested = {key: nested}
            patterns.append({first: nested})
    return tuple(patterns)
