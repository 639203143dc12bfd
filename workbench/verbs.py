"""The verbs in which automations are written: each adds a node behind the ends that are still open, or a rule for the whole."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Generic, Self, TypeAlias, TypeVar, Unpack

import msgspec

from workbench.abi import ContractEvent
from workbench.author import (
    OPERATORS,
    Asked,
    Draft,
    End,
    Fork,
    JsonObject,
    Where,
    awaited_name,
    condition,
    conditions,
    extended,
    joined,
    narrowed,
    settled,
    started,
    started_on_chain,
)
from workbench.display.outline import ways_of
from workbench.errors import DraftError, Helpful, spoken
from workbench.spans import seconds_of


class Steps(Helpful, ABC):
    """The verbs that add steps. Each returns a new value; the one it is called on stays as it was."""

    _draft: Draft

    @abstractmethod
    def _with(self, draft: Draft) -> Self:
        """Return the same thing with another draft."""

    # Speaking

    @spoken('.send_inapp(title="Thanks!", body="Your {{ amountUsd }} USD have arrived.")')
    def send_inapp(self, title: str, body: str, *, data: JsonObject | None = None, node: str | None = None) -> Self:
        """Push a message to the wallet of the contact that the event is about.

        Texts may hold values of the event and the contact: `"Thanks for {{ amountUsd }} USD, {{ contact.name | default('you') }}"`.
        `data` travels along for the app that shows the message. `node`, here and in all verbs that add a step, is its id; without
        one it follows from what the step does.
        """
        words = {"recipientMode": "triggering_profile", "title": title, "body": body}
        return self._add("send_inapp", words | ({"data": data} if data is not None else {}), node)

    @spoken('.send_email(subject="Thanks!", body="Your {{ amountUsd }} USD have arrived.")')
    def send_email(self, subject: str, body: str, *, node: str | None = None) -> Self:
        """Send the contact an email. A body that begins with `<` is HTML; values stand escaped in it."""
        return self._add("send_email", {"subject": subject, "body": body}, node)

    @spoken('.send_webhook("https://example.com/hook", body={"amount": "{{ amountUsd }}"})')
    def send_webhook(self, url: str, body: object = None, *, node: str | None = None) -> Self:
        """POST to a URL. `body` is JSON whose texts are filled in, or a text; without one the event is sent as it came.

        A text that is nothing but `{{ amountUsd }}` stays a number. Values in the URL: `{{ contact.id | urlencode }}`.
        """
        return self._add("send_webhook", {"url": url} | ({"body": body} if body is not None else {}), node)

    # Remembering

    @spoken('.add_tag("vip")')
    def add_tag(self, tag: str, *, node: str | None = None) -> Self:
        """Add a tag to the contact."""
        return self._add("add_tag", {"tag": tag}, node)

    @spoken('.remove_tag("vip")')
    def remove_tag(self, tag: str, *, node: str | None = None) -> Self:
        """Take a tag off the contact."""
        return self._add("remove_tag", {"tag": tag}, node)

    @spoken('.update_contact(tier="gold", lastDeposit="{{ amountUsd }}") or .update_contact({"last-deposit": 5})')
    def update_contact(
        self, attributes: Mapping[str, object] | None = None, *, node: str | None = None, **more: object
    ) -> Self:
        """Write attributes of the contact. A text that is nothing but `{{ amountUsd }}` stays a number."""
        return self._add("update_contact", {"attributes": {**(attributes or {}), **more}}, node)

    # Waiting

    @spoken('.delay(days=3) or .delay("36h")')
    def delay(
        self,
        span: str | timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        node: str | None = None,
    ) -> Self:
        """Go on later: after a span like `"2d"` or `"1h 30m"`, or so many days, hours and minutes."""
        length = timedelta(days=days, hours=hours, minutes=minutes) if span is None else span
        return self._add("delay", {"seconds": seconds_of(length, "delay")}, node)

    @spoken('.wait_for("purchase", within="2d"); what an event has started is watched with .watch(receipt)')
    def wait_for(
        self, event: str, *, within: str | timedelta, where: Where | None = None, node: str | None = None
    ) -> Self:
        """Wait until the contact sends an event, but no longer than `within`; or until a contract logs one: `"0x…:Transfer"`.

        `where={"plan": "pro"}` waits for one with these values; `{"amountUsd": {"is_in": [1, 2]}}` asks otherwise. Go on with
        `.then(lambda b: …)` for those who sent it and `.otherwise(lambda b: …)` for the others. Steps written after that are
        for everybody again.
        """
        name = awaited_name(event)
        data = {"event": name, "filters": conditions(where), "timeoutSeconds": seconds_of(within, "within")}
        return self._fork("wait_for_event", data, node)

    # Branching

    @spoken(f'.when("contact.plan", eq="pro").then(lambda b: b.add_tag("vip")); ask with {OPERATORS}')
    def when(self, path: str, *, node: str | None = None, **asked: Unpack[Asked]) -> "When[Self]":
        """Ask something about the event (`amountUsd`) or the contact (`contact.plan`, `contact.tags`).

        Go on with `.then(lambda b: b.add_tag("vip"))`, and if you like `.otherwise(lambda b: …)`. Steps written after that are for
        everybody again: both branches lead there, unless they end in `.exit()`. Ask with one of `eq`, `neq`, `is_in`, `contains`, `exists`;
        `.when("contact.plan")` asks whether it is there.
        """
        return When(self, (condition(path, asked),), node)

    @spoken('.split({"a": 50, "b": 50}).branch("a", lambda b: b.add_tag("a"))')
    def split(self, percentages: Mapping[str, int], *, node: str | None = None) -> Self:
        """Send contacts along different ways, so many of a hundred each; the same contact always goes the same way.

        Go on with `.branch("a", lambda b: …)` for what happens on one of the ways. Steps written after that are for everybody again.
        """
        if not _by_name(percentages):
            raise DraftError('a split is written like .split({"a": 50, "b": 50})')
        branches = [{"handle": name, "percent": percent} for name, percent in percentages.items()]
        return self._fork("split", {"branches": branches}, node)

    @spoken('.then(lambda b: b.add_tag("buyer"))')
    def then(self, steps: "Branch") -> Self:
        """Say what happens when the event that was waited for has come."""
        return self._along(
            ("matched",), steps, '.then(…) comes right after .wait_for("purchase", within="2d") or .when(…)'
        )

    @spoken('.otherwise(lambda b: b.add_tag("others"))')
    def otherwise(self, steps: "Branch") -> Self:
        """Say what happens when the condition just before does not hold, or the event waited for has not come."""
        return self._along(
            ("false", "timeout"), steps, ".otherwise(…) comes right after .when(…).then(…) or .wait_for(…)"
        )

    @spoken('.branch("a", lambda b: b.add_tag("a"))')
    def branch(self, name: str, steps: "Branch") -> Self:
        """Say what happens on one of the ways of the split just before, or of any other step that has ways."""
        return self._along((name,), steps, f".branch({name!r}, …) comes right after .split({{…}}) with a way {name!r}")

    @spoken(".exit()")
    def exit(self, *, node: str | None = None) -> Self:
        """Stop here; nothing can follow. Useful at the end of a branch."""
        return self._add("exit", {}, node)

    @spoken(".end()")
    def end(self) -> Self:
        """Lead nowhere from here: steps written after the branch are not for those who came this way."""
        return self._with(msgspec.structs.replace(self._draft, ends=(), fork=None))

    @spoken('.go_to("send_email")')
    def go_to(self, node: str) -> Self:
        """Go on with a step that was written before, by its id."""
        return self._with(joined(self._draft, node))

    @spoken('.step("add_tag", {"tag": "vip", "label": "VIP"})')
    def step(self, kind: str, data: Mapping[str, object], *, node: str | None = None) -> Self:
        """Add a node as the contract writes it, with whatever data: for what no other verb can say."""
        return self._fork(kind, dict(data), node)

    def _add(self, kind: str, data: JsonObject, node: str | None) -> Self:
        return self._with(extended(self._draft, kind, data, ways_of(kind, data), node))

    def _fork(self, kind: str, data: JsonObject, node: str | None) -> Self:
        draft = extended(self._draft, kind, data, ways_of(kind, data), node)
        ways = tuple(way for _, way in draft.ends if way is not None)
        return self._with(msgspec.structs.replace(draft, fork=Fork(draft.nodes[-1]["id"], ways)) if ways else draft)

    def _along(self, ways: tuple[str, ...], steps: "Branch", otherwise: str) -> Self:
        """Write steps behind one way of the fork just before."""
        fork = self._draft.fork
        way = next((each for each in fork.ways if each in ways), None) if fork is not None else None
        if fork is None or way is None:
            raise DraftError(otherwise)
        return self._with(_told(self._draft, fork, way, steps))

    def _branch(self, filters: tuple[JsonObject, ...], node: str | None, steps: "Branch") -> Self:
        asked = self._fork("condition", {"filters": [*filters]}, node)
        return asked._along(("true",), steps, "")


class Rules(Steps):
    """The verbs that say what starts an automation, and what holds for it as a whole."""

    @spoken('.on("deposit") or .on("deposit", "trade")')
    def on(self, *events: str, node: str | None = None) -> Self:
        """Start it on events of these names. Begins the writing anew: filters and steps written before are left behind."""
        if not events:
            raise DraftError('name at least one event: .on("deposit"); every event there is: .on_any_event()')
        return self._with(started(self._draft.name, events, node))

    @spoken(".on_any_event()")
    def on_any_event(self, *, node: str | None = None) -> Self:
        """Start it on every event of the organization. Begins the writing anew."""
        return self._with(started(self._draft.name, (), node))

    @spoken('.on_chain(contract="0x…", event="Transfer(address,address,uint256)", to_contact="to", chain_id=1)')
    def on_chain(  # noqa: PLR0913  each has a name
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
        """Start it on what a contract logs, about the wallet in one of the event's parameters. Begins the writing anew.

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
        return self._with(started_on_chain(self._draft.name, spec, node))

    @spoken(f'.where("amountUsd", eq=100); ask with {OPERATORS}')
    def where(self, path: str, **asked: Unpack[Asked]) -> Self:
        """Start only when a value of the event passes; several `where` all have to.

        `path` is a key of the payload (`amountUsd`, `order.total`), or `event`, `walletAddress`, `email`, `externalId`, `contactId`.
        Ask with one of `eq`, `neq`, `is_in`, `contains`, `exists`; `.where("amountUsd")` asks whether it is there, whatever it is.
        No conversion takes place: the number 100 is not the text "100". What is known of the contact belongs into `.when("contact.plan", …)`.
        """
        if not self._draft.nodes:
            raise DraftError('say first which event: .on("deposit")')
        return self._with(narrowed(self._draft, condition(path, asked)))

    @spoken(".once()")
    def once(self) -> Self:
        """Let every contact in once, however many events it sends."""
        return self._settled("reentry", {"policy": "once"})

    @spoken(".once_per(days=7)")
    def once_per(self, *, days: int) -> Self:
        """Let a contact in again only when so many days have passed, each of 24 hours."""
        return self._settled("reentry", {"policy": "once_per", "days": days})

    @spoken(".not_while_running()")
    def not_while_running(self) -> Self:
        """Let a contact in again only when it has come to the end."""
        return self._settled("reentry", {"policy": "not_while_running"})

    @spoken('.goal("purchase") or .goal("purchase", where={"plan": "pro"})')
    def goal(self, event: str, *, where: Where | None = None) -> Self:
        """Stop for a contact as soon as it sends this event, or a contract logs one about it (`"0x…:Transfer"`): it is reached."""
        return self._settled("goal", {"event": awaited_name(event), "filters": conditions(where)})

    @spoken('.quiet_hours("22:00", "08:00")')
    def quiet_hours(self, start: str, end: str, *, timezone: str = "timezone") -> Self:
        """Hold messages and emails back at night, on the contact's clock; they go out when the quiet hours end.

        `timezone` is the attribute that names the contact's time zone, like `Europe/Zurich`; without one it is UTC.
        """
        return self._settled("quietHours", {"from": start, "to": end, "timezoneAttribute": timezone})

    @spoken('.frequency_cap(3, per="1d")')
    def frequency_cap(self, messages: int, *, per: str | timedelta) -> Self:
        """Skip a message or email to a contact that got so many within a span, from whichever automation; the rest goes on."""
        return self._settled("frequencyCap", {"messages": messages, "seconds": seconds_of(per, "per")})

    @spoken(".holdout(10)")
    def holdout(self, percent: int) -> Self:
        """Leave so many contacts of a hundred (1 to 50) out, always the same ones, so that `.stats()` can say what the others gained."""
        return self._settled("holdout", percent)

    def _settled(self, name: str, value: JsonObject | int) -> Self:
        return self._with(settled(self._draft, name, value))


class BranchSteps(Steps):
    """What a branch function is given: it adds its steps and returns the result."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def _with(self, draft: Draft) -> Self:
        return type(self)(draft)


Branch: TypeAlias = Callable[[BranchSteps], BranchSteps]
S = TypeVar("S", bound=Steps)


class When(Helpful, Generic[S]):
    """A condition that waits for its `then`."""

    _instead = 'after .when(…) say .then(…) first: .then(lambda b: b.add_tag("vip"))'

    def __init__(self, before: S, filters: tuple[JsonObject, ...], node: str | None = None) -> None:
        self._before = before
        self._filters = filters
        self._node = node

    @spoken(f'.and_("amountUsd", exists=True); ask with {OPERATORS}')
    def and_(self, path: str, **asked: Unpack[Asked]) -> "When[S]":
        """Ask one more thing; all have to hold."""
        return When(self._before, (*self._filters, condition(path, asked)), self._node)

    @spoken('.then(lambda b: b.add_tag("vip"))')
    def then(self, steps: Branch) -> S:
        """Say what happens when the condition holds: `.then(lambda b: b.add_tag("vip"))`."""
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
        raise DraftError('a branch is a function of its steps: .then(lambda b: b.add_tag("vip"))')
    result = steps(BranchSteps(draft))
    if isinstance(result, When):
        raise DraftError("the condition inside the branch has no steps: say .then(…) first")
    if not isinstance(result, BranchSteps):
        raise DraftError('a branch returns its steps: .then(lambda b: b.add_tag("vip"))')
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
