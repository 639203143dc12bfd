"""The methods that write automations: each adds a node after the open ends of the graph, or a rule for the whole automation.

An open end is a way out of a node that leads to no step yet. A branching node leaves one per branch, so a step written after it
follows all of its branches.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Generic, Literal, Self, TypeAlias, TypeVar, Unpack

import msgspec

from workbench.chain import ContractEvent
from workbench.display.outline import handles_of
from workbench.draft import (
    OPERATORS,
    Draft,
    End,
    FilterArguments,
    Fork,
    JsonObject,
    Where,
    awaited_name,
    condition,
    conditions,
    extended,
    joined,
    narrowed,
    new_chain_draft,
    new_draft,
    settled,
)
from workbench.duration import seconds_of
from workbench.errors import InvalidAutomationError, MethodHints, usage_example


class StepVerbs(MethodHints, ABC):
    """The methods that add steps. Each returns a new value and leaves the old one unchanged."""

    _draft: Draft

    @abstractmethod
    def _with(self, draft: Draft) -> Self:
        """Return a copy with another draft."""

    # Messages

    @usage_example('.send_inapp(title="Thanks!", body="Your {{ amountUsd }} USD have arrived.")')
    def send_inapp(self, title: str, body: str, *, data: JsonObject | None = None, node: str | None = None) -> Self:
        """Push a message to the wallet of the contact.

        Texts may contain values of the event and the contact: `"Thanks for {{ amountUsd }} USD, {{ contact.name | default('you') }}"`.
        `data` is passed to the app that shows the message. `node`, in every method that adds a step, is the id of the step; by default it
        is made from what the step does.
        """
        words = {"recipientMode": "triggering_profile", "title": title, "body": body}
        return self._add("send_inapp", words | ({"data": data} if data is not None else {}), node)

    @usage_example('.send_email(subject="Thanks!", body="Your {{ amountUsd }} USD have arrived.")')
    def send_email(self, subject: str, body: str, *, node: str | None = None) -> Self:
        """Send the contact an email. A body that begins with `<` is HTML, in which values are escaped."""
        return self._add("send_email", {"subject": subject, "body": body}, node)

    @usage_example('.send_webhook("https://example.com/hook", body={"amount": "{{ amountUsd }}"})')
    def send_webhook(self, url: str, body: object = None, *, node: str | None = None) -> Self:
        """POST to a URL. `body` is JSON or a text, with values filled in; the default is the event as it came.

        A text that consists of one `{{ amountUsd }}` keeps the type of the value. Values in the URL: `{{ contact.id | urlencode }}`.
        """
        return self._add("send_webhook", {"url": url} | ({"body": body} if body is not None else {}), node)

    # Contact data

    @usage_example('.add_tag("vip")')
    def add_tag(self, tag: str, *, node: str | None = None) -> Self:
        """Add a tag to the contact."""
        return self._add("add_tag", {"tag": tag}, node)

    @usage_example('.remove_tag("vip")')
    def remove_tag(self, tag: str, *, node: str | None = None) -> Self:
        """Take a tag off the contact."""
        return self._add("remove_tag", {"tag": tag}, node)

    @usage_example(
        '.update_contact(tier="gold", lastDeposit="{{ amountUsd }}") or .update_contact({"last-deposit": 5})'
    )
    def update_contact(
        self, attributes: Mapping[str, object] | None = None, *, node: str | None = None, **more: object
    ) -> Self:
        """Set attributes of the contact. A text that consists of one `{{ amountUsd }}` keeps the type of the value."""
        return self._add("update_contact", {"attributes": {**(attributes or {}), **more}}, node)

    # Waiting

    @usage_example('.delay(days=3) or .delay("36h")')
    def delay(
        self,
        span: str | timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        node: str | None = None,
    ) -> Self:
        """Wait for a span like `"2d"` or `"1h 30m"`, or for days, hours and minutes."""
        length = timedelta(days=days, hours=hours, minutes=minutes) if span is None else span
        return self._add("delay", {"seconds": seconds_of(length, "delay")}, node)

    @usage_example(
        '.wait_for("purchase", within="2d"); what an event has started is awaited with .wait_for_entry(receipt)'
    )
    def wait_for(
        self, event: str, *, within: str | timedelta, where: Where | None = None, node: str | None = None
    ) -> Self:
        """Wait until the contact sends an event, for at most `within`; or until a contract logs one: `"0x…:Transfer"`.

        `where={"plan": "pro"}` waits for one with these values; `{"amountUsd": {"is_in": [1, 2]}}` asks otherwise. Go on with
        `.then(lambda b: …)` for those who sent it and `.otherwise(lambda b: …)` for the others. Steps written after that are
        for everybody again.
        """
        name = awaited_name(event)
        data = {"event": name, "filters": conditions(where), "timeoutSeconds": seconds_of(within, "within")}
        return self._fork("wait_for_event", data, node)

    # Branching

    @usage_example(f'.when("contact.plan", eq="pro").then(lambda b: b.add_tag("vip")); ask with {OPERATORS}')
    def when(self, path: str, *, node: str | None = None, **asked: Unpack[FilterArguments]) -> "When[Self]":
        """Branch on a value of the event (`amountUsd`) or the contact (`contact.plan`, `contact.tags`).

        Go on with `.then(lambda b: b.add_tag("vip"))`, and if you like `.otherwise(lambda b: …)`. Steps written after that are for
        everybody again: both branches lead there, unless they end in `.exit()`. Ask with one of `eq`, `neq`, `is_in`, `contains`, `exists`;
        `.when("contact.plan")` asks whether it is there.
        """
        return When(self, (condition(path, asked),), node)

    @usage_example('.split({"a": 50, "b": 50}).branch("a", lambda b: b.add_tag("a"))')
    def split(self, percentages: Mapping[str, int], *, node: str | None = None) -> Self:
        """Split contacts into branches by percentage; the same contact always takes the same branch.

        Go on with `.branch("a", lambda b: …)` for the steps of one branch. Steps written after that are for everybody again.
        """
        if not _by_name(percentages):
            raise InvalidAutomationError('a split is written like .split({"a": 50, "b": 50})')
        branches = [{"handle": name, "percent": percent} for name, percent in percentages.items()]
        return self._fork("split", {"branches": branches}, node)

    @usage_example('.then(lambda b: b.add_tag("buyer"))')
    def then(self, steps: "Branch") -> Self:
        """Add the steps for when the event was received."""
        return self._along(
            ("matched",), steps, '.then(…) comes right after .wait_for("purchase", within="2d") or .when(…)'
        )

    @usage_example('.otherwise(lambda b: b.add_tag("others"))')
    def otherwise(self, steps: "Branch") -> Self:
        """Add the steps for when the condition was false, or the wait timed out."""
        return self._along(
            ("false", "timeout"), steps, ".otherwise(…) comes right after .when(…).then(…) or .wait_for(…)"
        )

    @usage_example('.branch("a", lambda b: b.add_tag("a"))')
    def branch(self, name: str, steps: "Branch") -> Self:
        """Add the steps of one branch of the split just before, or of any other step that branches."""
        return self._along((name,), steps, f".branch({name!r}, …) comes right after .split({{…}}) with a way {name!r}")

    @usage_example(".exit()")
    def exit(self, *, node: str | None = None) -> Self:
        """End the entry here; no step can follow. Useful at the end of a branch."""
        return self._add("exit", {}, node)

    @usage_example(".end()")
    def end(self) -> Self:
        """Leave no open end: steps written after the branch do not follow this one."""
        return self._with(msgspec.structs.replace(self._draft, ends=(), fork=None))

    @usage_example('.go_to("send_email")')
    def go_to(self, node: str) -> Self:
        """Continue at a step that was written before, by its id."""
        return self._with(joined(self._draft, node))

    @usage_example('.step("add_tag", {"tag": "vip", "label": "VIP"})')
    def step(self, kind: str, data: Mapping[str, object], *, node: str | None = None) -> Self:
        """Add a node of any kind with any data, for what no other method can write."""
        return self._fork(kind, dict(data), node)

    def _add(self, kind: str, data: JsonObject, node: str | None) -> Self:
        return self._with(extended(self._draft, kind, data, handles_of(kind, data), node))

    def _fork(self, kind: str, data: JsonObject, node: str | None) -> Self:
        draft = extended(self._draft, kind, data, handles_of(kind, data), node)
        ways = tuple(way for _, way in draft.ends if way is not None)
        return self._with(msgspec.structs.replace(draft, fork=Fork(draft.nodes[-1]["id"], ways)) if ways else draft)

    def _along(self, ways: tuple[str, ...], steps: "Branch", otherwise: str) -> Self:
        """Write steps behind one way of the fork just before."""
        fork = self._draft.fork
        way = next((each for each in fork.ways if each in ways), None) if fork is not None else None
        if fork is None or way is None:
            raise InvalidAutomationError(otherwise)
        return self._with(_told(self._draft, fork, way, steps))

    def _branch(self, filters: tuple[JsonObject, ...], node: str | None, steps: "Branch") -> Self:
        asked = self._fork("condition", {"filters": [*filters]}, node)
        return asked._along(("true",), steps, "")


class AutomationVerbs(StepVerbs):
    """The methods for what starts an automation, and for the rules of the whole automation."""

    @usage_example('.on("deposit") or .on("deposit", "trade")')
    def on(self, *events: str, node: str | None = None) -> Self:
        """Start it on events of these names. Filters and steps written before are dropped."""
        if not events:
            raise InvalidAutomationError(
                'name at least one event: .on("deposit"); every event there is: .on_any_event()'
            )
        return self._with(new_draft(self._draft.name, events, node))

    @usage_example(".on_any_event()")
    def on_any_event(self, *, node: str | None = None) -> Self:
        """Start it on every event of the organization. Filters and steps written before are dropped."""
        return self._with(new_draft(self._draft.name, (), node))

    @usage_example('.on_chain(contract="0x…", event="Transfer(address,address,uint256)", to_contact="to", chain_id=1)')
    def on_chain(
        self,
        *,
        contract: str,
        event: str | ContractEvent,
        to_contact: str,
        chain_id: int,
        confirmations: int = 0,
        create_contacts: bool = False,
        node: str | None = None,
    ) -> Self:
        """Start it on what a contract logs, about the wallet in one of the event's parameters. Filters and steps written before are dropped.

        `event`: a signature as in Solidity, `Transfer(address indexed from, address indexed to, uint256 value)`, or one of
        `wb.abi("…")`. `to_contact`: the parameter with the wallet. `confirmations`: how many blocks have to stand on top of the
        log's own; 0 starts at once, and what a reorganization drops is taken back as far as it has not been sent.
        Only wallets that are known start it; `create_contacts=True` makes contacts of the others, as many an hour as the operator allows
        (10,000). Filters and texts see the parameters, and `chainId`, `contract`, `txHash`, `logIndex`, `blockNumber`; numbers of more than 48 bits are texts: `.where("value", eq="1000000")`.
        """
        spec = {
            "chainId": chain_id,
            "contract": contract,
            "signature": event.signature if isinstance(event, ContractEvent) else event,
            "walletArg": to_contact,
            "confirmations": confirmations,
            "createContacts": create_contacts,
        }
        return self._with(new_chain_draft(self._draft.name, spec, node))

    @usage_example(f'.where("amountUsd", eq=100); ask with {OPERATORS}')
    def where(self, path: str, **asked: Unpack[FilterArguments]) -> Self:
        """Start only when a value of the event passes; several `where` all have to.

        `path` is a key of the payload (`amountUsd`, `order.total`), or `event`, `walletAddress`, `email`, `externalId`, `contactId`.
        Ask with one of `eq`, `neq`, `is_in`, `contains`, `exists`; `.where("amountUsd")` asks whether it is there, whatever it is.
        No conversion takes place: the number 100 is not the text "100". What is known of the contact belongs into `.when("contact.plan", …)`.
        """
        if not self._draft.nodes:
            raise InvalidAutomationError('say first which event: .on("deposit")')
        return self._with(narrowed(self._draft, condition(path, asked)))

    @usage_example('.reentry("once"), .reentry(every="7d") or .reentry("after_exit")')
    def reentry(
        self, policy: Literal["once", "after_exit"] | None = None, *, every: str | timedelta | None = None
    ) -> Self:
        """Limit how often a contact enters; without it every event enters.

        `"once"`: once, however many events the contact sends. `"after_exit"`: again only when its entry has ended. `every="7d"`: again
        only when so many days, each of 24 hours, have passed since it entered.
        """
        if (policy is None) == (every is None) or policy not in (None, "once", "after_exit"):
            raise InvalidAutomationError(
                'write one of .reentry("once"), .reentry("after_exit") or .reentry(every="7d")'
            )
        if every is None:
            return self._settled("reentry", {"policy": "once" if policy == "once" else "not_while_running"})
        days, rest = divmod(seconds_of(every, "every"), 86_400)
        if rest:
            raise InvalidAutomationError(f'every={every!r} must be whole days, like "7d"')
        return self._settled("reentry", {"policy": "once_per", "days": days})

    @usage_example('.goal("purchase") or .goal("purchase", where={"plan": "pro"})')
    def goal(self, event: str, *, where: Where | None = None) -> Self:
        """End the entry as soon as the contact sends this event, or a contract logs one about it (`"0x…:Transfer"`): the goal is reached."""
        return self._settled("goal", {"event": awaited_name(event), "filters": conditions(where)})

    @usage_example('.quiet_hours("22:00", "08:00")')
    def quiet_hours(self, start: str, end: str, *, timezone: str = "timezone") -> Self:
        """Hold messages and emails back during these hours of the contact's local time; they are sent when the quiet hours end.

        `timezone` is the attribute that names the contact's time zone, like `Europe/Zurich`; without one it is UTC.
        """
        return self._settled("quietHours", {"from": start, "to": end, "timezoneAttribute": timezone})

    @usage_example('.frequency_cap(3, per="1d")')
    def frequency_cap(self, messages: int, *, per: str | timedelta) -> Self:
        """Skip a message or email to a contact that got `messages` from any automations within `per`; other steps continue."""
        return self._settled("frequencyCap", {"messages": messages, "seconds": seconds_of(per, "per")})

    @usage_example(".holdout(10)")
    def holdout(self, percent: int) -> Self:
        """Leave out `percent` (1 to 50) of the contacts, always the same ones, so that `.stats()` can measure the effect on the others."""
        return self._settled("holdout", percent)

    def _settled(self, name: str, value: JsonObject | int) -> Self:
        return self._with(settled(self._draft, name, value))


class BranchSteps(StepVerbs):
    """The argument of a branch function, which adds its steps and returns the result."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def _with(self, draft: Draft) -> Self:
        return type(self)(draft)


Branch: TypeAlias = Callable[[BranchSteps], BranchSteps]
S = TypeVar("S", bound=StepVerbs)


class When(MethodHints, Generic[S]):
    """A condition without steps yet: `.then(…)` adds them."""

    _hint = 'after .when(…) say .then(…) first: .then(lambda b: b.add_tag("vip"))'

    def __init__(self, before: S, filters: tuple[JsonObject, ...], node: str | None = None) -> None:
        self._before = before
        self._filters = filters
        self._node = node

    @usage_example(f'.and_("amountUsd", exists=True); ask with {OPERATORS}')
    def and_(self, path: str, **asked: Unpack[FilterArguments]) -> "When[S]":
        """Add one more condition; all must match."""
        return When(self._before, (*self._filters, condition(path, asked)), self._node)

    @usage_example('.then(lambda b: b.add_tag("vip"))')
    def then(self, steps: Branch) -> S:
        """Add the steps for when all conditions match: `.then(lambda b: b.add_tag("vip"))`."""
        return self._before._branch(self._filters, self._node, steps)

    def __repr__(self) -> str:
        return "a condition without steps: go on with .then(lambda b: b.add_tag(…))"


def _told(draft: Draft, fork: Fork, way: str, steps: Branch) -> Draft:
    """Return the draft with steps behind one way of a fork; its other ways stay open where they were."""
    end: End = (fork.node_id, way)
    inside = _inside(msgspec.structs.replace(draft, ends=(end,), fork=None), steps)
    place = draft.ends.index(end)
    ends = (*draft.ends[:place], *inside.ends, *draft.ends[place + 1 :])
    left = tuple(each for each in fork.ways if each != way)
    return msgspec.structs.replace(inside, ends=ends, fork=Fork(fork.node_id, left))


def _inside(draft: Draft, steps: Branch) -> Draft:
    if not _takes_one(steps):
        raise InvalidAutomationError('a branch is a function of its steps: .then(lambda b: b.add_tag("vip"))')
    result = steps(BranchSteps(draft))
    if isinstance(result, When):
        raise InvalidAutomationError("the condition inside the branch has no steps: say .then(…) first")
    if not isinstance(result, BranchSteps):
        raise InvalidAutomationError('a branch returns its steps: .then(lambda b: b.add_tag("vip"))')
    return result._draft


def _by_name(percentages: object) -> bool:
    return isinstance(percentages, Mapping) and all(isinstance(name, str) for name in percentages)


def _takes_one(steps: object) -> bool:
    """Return whether this is a function that can be called with the steps so far."""
    if not callable(steps):
        return False
    try:
        inspect.signature(steps).bind(None)
    except (TypeError, ValueError):
        return False
    return True
