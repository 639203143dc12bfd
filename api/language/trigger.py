"""What starts an automation: contract §2.7, §4.7.1-3 and §6."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from api.language.codec import unfit
from api.language.event import Identifiers
from api.language.filter import Filter, matches
from api.language.onchain import TYPE as ONCHAIN_EVENT
from api.language.onchain import OnChain, read_source
from api.language.problem import Problem, Problems

ALIASES = frozenset({"app_event", "custom_event", "app-event", "custom-event", "appevent"})
BUILT_INS = ("event", "contactId", "walletAddress", "email", "externalId")


def is_app_event(type_name: Any) -> bool:
    """Return whether a type is `app_event` by one of its names."""
    return isinstance(type_name, str) and type_name in ALIASES


def is_trigger(type_name: Any) -> bool:
    """Return whether a type is one of a trigger."""
    return is_app_event(type_name) or type_name == ONCHAIN_EVENT


class Trigger(msgspec.Struct, frozen=True):
    """A trigger. No names at all is the wildcard: every custom event of the organization.

    `source`: the logs that an `onchain_event` trigger is about, which has no names then. None: `app_event`.
    """

    names: frozenset[str] = frozenset()
    filters: tuple[Filter, ...] = ()
    source: OnChain | None = None

    @property
    def type(self) -> Literal["app_event", "onchain_event"]:
        """Which kind of trigger it is."""
        return "app_event" if self.source is None else "onchain_event"

    def names_event(self, name: str, *, on_chain: bool = False) -> bool:
        """Return whether custom events of this (lower-case) name are meant, or logs of this contract event."""
        if self.source is not None:
            return on_chain and name == self.source.declared.name
        return not on_chain and (not self.names or name in self.names)


def fires(trigger: Trigger, name: str, context: Mapping[str, Any]) -> bool:
    """Return whether an event with this name and flat context starts the automation."""
    return trigger.names_event(name) and matches(trigger.filters, context)


def flat_context(name: str, contact_id: str, who: Identifiers, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return what filters see: the built-ins, then the keys of the payload, which override them.

    A built-in nobody knows (no email on event or contact, say) is missing, not null.
    """
    return {"event": name, "contactId": contact_id, **known_identifiers(who), **payload}


def known_identifiers(who: Identifiers) -> dict[str, Any]:
    """Return the identifiers there are, by the names that filters and texts know."""
    known = {}
    if who.wallet is not None:
        known["walletAddress"] = who.wallet
    if who.email is not None:
        known["email"] = who.email
    if who.external_id is not None:
        known["externalId"] = who.external_id
    return known


def needs_email(trigger: Trigger) -> bool:
    """Return whether a filter looks at the email, so that it has to be decrypted."""
    return any(each.path == "email" for each in trigger.filters)


def read_trigger(spec: Any, field: str = "triggerSpec") -> Trigger | Problems:
    """Return the trigger in a decoded JSON value, or everything that is wrong with it."""
    if not isinstance(spec, dict):
        return (Problem(field, "must be an object"),)
    if reason := unfit(spec):
        return (Problem(field, reason),)
    problems: list[Problem] = []
    source, names = None, frozenset[str]()
    if spec.get("type") == ONCHAIN_EVENT:
        source = read_source(spec, field, problems)
    elif is_app_event(spec.get("type")):
        names = _names(spec, field, problems)
    else:
        problems.append(Problem(f"{field}.type", f"must be app_event or {ONCHAIN_EVENT}"))
    filters = read_filters(spec.get("filters"), f"{field}.filters", problems)
    return tuple(problems) if problems else Trigger(names, filters, source)


def _names(spec: dict[str, Any], field: str, problems: list[Problem]) -> frozenset[str]:
    names: list[str] = []
    single, several = spec.get("event"), spec.get("eventNames")
    if isinstance(single, str):
        names.append(single)
    elif single is not None:
        problems.append(Problem(f"{field}.event", "must be a string"))
    if isinstance(several, list) and all(isinstance(name, str) for name in several):
        names.extend(several)
    elif several is not None:
        problems.append(Problem(f"{field}.eventNames", "must be an array of strings"))
    return frozenset(name.lower() for name in names if name)


def read_filters(value: Any, field: str, problems: list[Problem]) -> tuple[Filter, ...]:
    """Return the filters in a decoded JSON value, adding what is wrong to `problems`."""
    if value is None:
        return ()
    if not isinstance(value, list):
        problems.append(Problem(field, "must be an array of filters"))
        return ()
    found = [_filter(each, f"{field}[{index}]", problems) for index, each in enumerate(value)]
    return tuple(each for each in found if each is not None)


def _filter(value: Any, field: str, problems: list[Problem]) -> Filter | None:
    if not isinstance(value, dict):
        problems.append(Problem(field, "must be an object with path, operator and value"))
        return None
    for name in ("path", "operator"):
        if not isinstance(value.get(name), str) or not value[name]:
            problems.append(Problem(f"{field}.{name}", "must be a non-empty string"))
            return None
    if value["operator"] != "exists" and "value" not in value:
        problems.append(Problem(f"{field}.value", f"is required for {value['operator']}"))
        return None
    return Filter(value["path"], value["operator"], value.get("value"))
