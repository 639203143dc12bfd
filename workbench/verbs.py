"""The methods that write automations: each adds a node after the open ends of the graph, or a rule for all entries.

An open end is a handle of a node without an edge. A branching node has one per branch, so a step that is written after
it follows all of its branches.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Generic, Literal, Self, TypeAlias, TypeVar, Unpack

import msgspec

from workbench.chain import ContractEvent
from workbench.display.kinds import FIRST_BRANCHES, SECOND_BRANCHES
from workbench.draft import (
    OPERATOR_USAGE,
    Draft,
    FilterArguments,
    Fork,
    JsonObject,
    OpenEnd,
    WhereArgument,
    awaited_name,
    condition_fields,
    new_draft,
    read_filter,
    read_where,
    start_draft,
    with_ends_at,
    with_filter,
    with_node,
    with_setting,
)
from workbench.duration import Weekday, seconds_of, signed_seconds_of, weekday_number
from workbench.errors import InvalidAutomationError, MethodHints, usage_example
from workbench.language.actions import Locales, OnMissing, handles_of, side_handles
from workbench.language.local_time import TIMEZONE_ATTRIBUTE


class StepVerbs(MethodHints):
    """The methods that add steps. Each returns a new value and leaves the old one unchanged."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def _with(self, draft: Draft) -> Self:
        return type(self)(draft)

    # Messages

    @usage_example('.send_inapp(title="Thanks!", body="Your {{ amountUsd }} USD have arrived.")')
    def send_inapp(
        self,
        title: str,
        body: str,
        *,
        data: JsonObject | None = None,
        locales: Locales | None = None,
        topic: str | None = None,
        on_missing: OnMissing = "skip",
        node: str | None = None,
    ) -> Self:
        """Push a message to the wallet of the contact.

        Texts are templates with values of the event and the contact:
        `"Thanks for {{ amountUsd }} USD, {{ contact.name | default('you') }}"`. `data` is passed to the app that shows
        the message. Without a wallet, or a value of a text, the message is skipped, or with `on_missing="fail"` the
        entry fails. `locales={"de": {"title": "…", "body": "…"}}` has the texts for contacts of other locales; see
        `.locale_attribute`. `topic`: contacts that declined it do not get the message; see `wb.topics`. `node`, here
        and in every method that adds a step, is the id of the step; the default follows from its content.
        """
        message = {"recipientMode": "triggering_profile", "title": title, "body": body}
        more = ({"data": data} if data is not None else {}) | ({"locales": locales} if locales is not None else {})
        return self._add("send_inapp", message | more | _topics(topic) | _missing(on_missing), node)

    @usage_example('.send_email(subject="Thanks!", body="Your {{ amountUsd }} USD have arrived.")')
    def send_email(
        self,
        subject: str,
        body: str,
        *,
        locales: Locales | None = None,
        topic: str | None = None,
        confirms: str | None = None,
        track_clicks: bool = False,
        on_missing: OnMissing = "skip",
        node: str | None = None,
    ) -> Self:
        """Send the contact an email. A body that begins with `<` is HTML, in which values are escaped.

        `locales` as for `.send_inapp`: `{"de": {"subject": "…", "body": "…"}}`; so is `topic`. `{{ preferences_url }}`
        in the body is the link to the contact's preferences, and `{{ confirm_url }}` the one that confirms the topic
        `confirms`. `track_clicks`: a click on a link of the email is an event `link.clicked` of the contact.
        `on_missing` as for `.send_inapp`: without an email address, or without a value of a text.
        """
        message = {"subject": subject, "body": body} | ({"locales": locales} if locales is not None else {})
        tracking = {"trackClicks": True} if track_clicks else {}
        return self._add("send_email", message | _topics(topic, confirms) | tracking | _missing(on_missing), node)

    @usage_example('.send_webhook("https://example.com/hook", body={"amount": "{{ amountUsd }}"})')
    def send_webhook(
        self,
        url: str,
        body: object = None,
        *,
        topic: str | None = None,
        on_missing: OnMissing = "skip",
        node: str | None = None,
    ) -> Self:
        """POST to a URL. `body` is JSON or a text with templates; the default is the event as it was sent.

        A text that is a single `{{ amountUsd }}` keeps the type of the value. In the URL, encode values:
        `{{ contact.id | urlencode }}`. `topic` and `on_missing` as for `.send_inapp`: without a value of the URL or the
        body.
        """
        data = {"url": url} | ({"body": body} if body is not None else {})
        return self._add("send_webhook", data | _topics(topic) | _missing(on_missing), node)

    @usage_example('.send_via("slack", text="{{ contact.name }} paid {{ amountUsd }} USD")')
    def send_via(
        self,
        connection: str,
        fields: Mapping[str, object] | None = None,
        *,
        locales: Locales | None = None,
        topic: str | None = None,
        on_missing: OnMissing = "skip",
        node: str | None = None,
        **more: object,
    ) -> Self:
        """Send a message by a connection, with values for its fields; `wb.connections` lists them.

        Values are JSON or texts with templates. A text that is a single `{{ amountUsd }}` keeps the type of the value.
        `fields` takes those whose name is that of an argument here: `{"topic": "…"}`.
        `locales={"de": {"text": "…"}}` has the fields that differ for contacts of other locales. `topic` and
        `on_missing` as for `.send_inapp`: without a value of a field.
        """
        data = {"connection": connection, "fields": {**(fields or {}), **more}}
        data |= {"locales": locales} if locales is not None else {}
        return self._add("send_via", data | _topics(topic) | _missing(on_missing), node)

    # Contact data

    @usage_example('.add_tag("vip")')
    def add_tag(self, tag: str, *, node: str | None = None) -> Self:
        """Add a tag to the contact."""
        return self._add("add_tag", {"tag": tag}, node)

    @usage_example('.remove_tag("vip")')
    def remove_tag(self, tag: str, *, node: str | None = None) -> Self:
        """Remove a tag from the contact."""
        return self._add("remove_tag", {"tag": tag}, node)

    @usage_example(
        '.update_contact(tier="gold", lastDeposit="{{ amountUsd }}") or .update_contact({"last-deposit": 5})'
    )
    def update_contact(
        self, attributes: Mapping[str, object] | None = None, *, node: str | None = None, **more: object
    ) -> Self:
        """Set attributes of the contact. A text that is a single `{{ amountUsd }}` keeps the type of the value."""
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
        """Wait for a duration like `"2d"` or `"1h 30m"`, or for the sum of days, hours and minutes."""
        length = timedelta(days=days, hours=hours, minutes=minutes) if span is None else span
        return self._add("delay", {"seconds": seconds_of(length, "delay")}, node)

    @usage_example('.wait_for("purchase", within="2d"); to wait for the entry of an event: .wait_for_entry(receipt)')
    def wait_for(
        self, event: str, *, within: str | timedelta, where: WhereArgument | None = None, node: str | None = None
    ) -> Self:
        """Wait until the contact sends an event, or a contract logs one (`"0x…:Transfer"`), for at most `within`.

        `where={"plan": "pro"}` waits for an event with these values; other operators are written
        `{"amountUsd": {"is_in": [1, 2]}}`, and expressions `where="amountUsd > 500"`. Continue with
        `.then(lambda b: …)` for contacts that sent it in time and `.otherwise(lambda b: …)` for the others. Both
        branches lead to the steps written after that.
        """
        name = awaited_name(event)  # an event or a log: a log's name contains its contract, so they cannot collide
        data = {"event": name, **condition_fields(read_where(where)), "timeoutSeconds": seconds_of(within, "within")}
        return self._add("wait_for_event", data, node)

    @usage_example(
        '.wait_until("09:00"), .wait_until("09:00", weekdays=["mon", "fri"])'
        ' or .wait_until("09:00", date="contact.trial_ends", shift="-3d")'
    )
    def wait_until(
        self,
        time: str | None = None,
        *,
        date: str | None = None,
        shift: str | timedelta | None = None,
        weekdays: Sequence[Weekday] | None = None,
        timezone: str | None = None,
        node: str | None = None,
    ) -> Self:
        """Wait for a time of day, or for a date of the contact (`contact.trial_ends`) or the event (`payload.due`).

        A date may be shifted: `shift="-3d"` is 3 days earlier, `"2h"` 2 hours later. With `time`, the step ends at that
        time of the day. `weekdays` moves it to the next of these days. A date that changes meanwhile is followed.
        Times are those of the contact: `timezone` is the attribute with its time zone, `timezone` by default, and
        `.timezone("Europe/Zurich")` sets that of contacts without one.

        The steps written after it are for contacts that reach the date. `.otherwise(lambda b: …)` adds steps for those
        without a date, or whose date has passed; they lead to the steps written after that, too.
        """
        data: JsonObject = {} if time is None else {"time": time}
        if weekdays is not None:
            data["weekdays"] = [weekday_number(day) for day in weekdays]
        if date is not None:
            data["attribute"] = date
        if shift is not None:
            data["offsetSeconds"] = signed_seconds_of(shift, "shift")
        if timezone is not None:
            data["timezoneAttribute"] = timezone
        return self._add("wait_until", data, node)

    @usage_example('.collect("1h"), .collect("1h", key="orderId", max=10) or .collect(until="09:00")')
    def collect(
        self,
        seconds: str | timedelta | None = None,
        *,
        until: str | None = None,
        key: str | None = None,
        max: int | None = None,  # noqa: A002  the field of the language
        node: str | None = None,
    ) -> Self:
        """Collect later events of the name that started the entry, and send one message about all of them.

        It lasts for a time, `"1h"`, or until a time of day of the contact, `until="09:00"`. Meanwhile such an event of
        the contact joins the entry, and starts no other. With `key="orderId"` only those with the same value in their
        payload join; others have entries of their own. `max=10`: ten events, with the first one, end it early.

        Later steps see the list `events`, the first event included. `{{ events | length }}` counts it,
        `{{ events | sum("amountUsd") }}` adds up a value, `{% for e in events %}{{ e.amountUsd }} {% endfor %}` lists
        it, and `.when('events | sum("amountUsd") > 1000')` decides by it.
        """
        data: JsonObject = {} if seconds is None else {"seconds": seconds_of(seconds, "seconds")}
        written = {"until": until, "key": key, "max": max}
        return self._add("collect", data | {name: item for name, item in written.items() if item is not None}, node)

    # Branching

    @usage_example(f'.when("contact.plan", eq="pro").then(lambda b: b.add_tag("vip")); operators: {OPERATOR_USAGE}')
    def when(self, path: str, *, node: str | None = None, **operator: Unpack[FilterArguments]) -> "When[Self]":
        """Branch on a value of the event (`amountUsd`) or the contact (`contact.plan`, `contact.tags`).

        Continue with `.then(lambda b: b.add_tag("vip"))`, and optionally `.otherwise(lambda b: …)`. Both branches lead
        to the steps written after that, unless they end in `.exit()`. The operator is one of `eq`, `neq`, `is_in`,
        `contains`, `exists`, `gt`, `gte`, `lt` and `lte`; `.when("contact.plan")` asks whether the value is set.
        `.when('amountUsd > 500 and contact.country == "DE"')` takes an expression in the language of texts.
        """
        return When(self, (read_filter(path, operator),), node)

    @usage_example('.split({"a": 50, "b": 50}).branch("a", lambda b: b.add_tag("a"))')
    def split(self, percentages: Mapping[str, int], *, node: str | None = None) -> Self:
        """Split contacts into branches by percentage; the same contact always takes the same branch.

        Continue with `.branch("a", lambda b: …)` for the steps of one branch. All branches lead to the steps written
        after that.
        """
        argument: object = percentages  # a notebook does not enforce the annotation
        if not isinstance(argument, Mapping) or not all(isinstance(name, str) for name in argument):
            raise InvalidAutomationError('a split is written like .split({"a": 50, "b": 50})')
        branches = [{"handle": name, "percent": percent} for name, percent in percentages.items()]
        return self._add("split", {"branches": branches}, node)

    @usage_example('.then(lambda b: b.add_tag("buyer"))')
    def then(self, steps: "Branch") -> Self:
        """Add the steps for contacts that sent the awaited event, or reached the date."""
        return self._along(
            FIRST_BRANCHES, steps, '.then(…) comes right after .wait_for("purchase", within="2d") or .when(…)'
        )

    @usage_example('.otherwise(lambda b: b.add_tag("others"))')
    def otherwise(self, steps: "Branch") -> Self:
        """Add the steps for the other contacts: the condition was false, the wait timed out, or the date is missing."""
        return self._along(SECOND_BRANCHES, steps, ".otherwise(…) comes right after .when(…).then(…) or .wait_for(…)")

    @usage_example('.branch("a", lambda b: b.add_tag("a"))')
    def branch(self, name: str, steps: "Branch") -> Self:
        """Add the steps of one branch of the previous step: a split, or any other step with that handle."""
        return self._along(
            (name,), steps, f".branch({name!r}, …) comes right after .split({{…}}) with a branch {name!r}"
        )

    @usage_example(".exit()")
    def exit(self, *, node: str | None = None) -> Self:
        """End the entry here. Useful at the end of a branch: steps written after it do not follow this one."""
        return self._add("exit", {}, node)

    @usage_example(".end()")
    def end(self) -> Self:
        """Close the open ends without a step: steps written after the branch do not follow this one."""
        return self._with(msgspec.structs.replace(self._draft, ends=(), fork=None))

    @usage_example('.go_to("send_email")')
    def go_to(self, node: str) -> Self:
        """Continue at an existing step, given its id."""
        return self._with(with_ends_at(self._draft, node))

    @usage_example('.step("add_tag", {"tag": "vip", "label": "VIP"})')
    def step(self, kind: str, data: Mapping[str, object], *, node: str | None = None) -> Self:
        """Add a node of any kind with any data, including keys that no other method writes."""
        return self._add(kind, dict(data), node)

    def _add(self, kind: str, data: JsonObject, node: str | None) -> Self:
        all_handles = handles_of(kind, data)
        followed = tuple(handle for handle in all_handles if handle not in side_handles(kind))
        draft = with_node(self._draft, kind, data, followed, node)
        handles = tuple(handle for handle in all_handles if handle is not None)
        if not handles:  # a kind that does not branch
            return self._with(draft)
        return self._with(msgspec.structs.replace(draft, fork=Fork(draft.nodes[-1]["id"], handles)))

    def _along(self, handles: tuple[str, ...], steps: "Branch", hint: str) -> Self:
        """Add steps after one handle of the last fork; raise InvalidAutomationError with `hint` without one.

        Also raises InvalidAutomationError if `steps` is not a function that returns the steps of a branch.
        """
        draft, fork = self._draft, self._draft.fork
        handle = next((handle for handle in fork.handles if handle in handles), None) if fork is not None else None
        if fork is None or handle is None:
            raise InvalidAutomationError(hint)
        end: OpenEnd = (fork.node_id, handle)
        try:
            inspect.signature(steps).bind(None)
        except (TypeError, ValueError):  # not callable, or not with one argument
            raise InvalidAutomationError(
                'a branch is a function with one argument: .then(lambda b: b.add_tag("vip"))'
            ) from None
        result = steps(BranchSteps(msgspec.structs.replace(draft, ends=(end,), fork=None)))
        if isinstance(result, When):
            raise InvalidAutomationError("the condition inside the branch has no steps: write .then(…) after it")
        if not isinstance(result, BranchSteps):
            raise InvalidAutomationError('a branch function must return its steps: .then(lambda b: b.add_tag("vip"))')
        branch = result._draft
        # The ends of the branch take the place of its handle, so that edges are in the order of the branches.
        index = draft.ends.index(end) if end in draft.ends else len(draft.ends)
        ends = (*draft.ends[:index], *branch.ends, *draft.ends[index + 1 :])
        rest = Fork(fork.node_id, tuple(other for other in fork.handles if other != handle))
        return self._with(msgspec.structs.replace(branch, ends=ends, fork=rest))


def _topics(topic: str | None, confirms: str | None = None) -> JsonObject:
    return {key: name for key, name in (("topic", topic), ("confirms", confirms)) if name is not None}


def _missing(choice: OnMissing) -> JsonObject:
    return {} if choice == "fail" else {"onMissing": choice}  # "fail" is the default of the language


class AutomationVerbs(StepVerbs):
    """The methods for the trigger of an automation and for the rules that hold for all its entries."""

    @usage_example('.on("deposit") or .on("deposit", "trade")')
    def on(self, *events: str, node: str | None = None) -> Self:
        """Start the automation on events with one of these names. Filters and steps written before are dropped."""
        if not events:
            raise InvalidAutomationError(
                'name at least one event: .on("deposit"). For every event, write .on_any_event()'
            )
        return self._with(new_draft(self._draft.name, events, node))

    @usage_example(".on_any_event()")
    def on_any_event(self, *, node: str | None = None) -> Self:
        """Start the automation on every event of the organization. Filters and steps written before are dropped."""
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
        """Start the automation on a log of a contract. Filters and steps written before are dropped.

        `event`: a signature as in Solidity, such as
        `Transfer(address indexed from, address indexed to, uint256 value)`, or one of `wb.abi("…")`.
        `to_contact`: the parameter that holds the wallet of the contact.
        `confirmations`: the number of blocks on top of the log's own before it counts. With 0 the automation starts at
        once; if a reorganization drops the log, the entry is cancelled, but messages already sent stay sent.
        `create_contacts`: also start for unknown wallets, and create their contacts, up to the number per hour that the
        operator allows (by default 10,000).

        Filters and templates can use the parameters and `chainId`, `contract`, `txHash`, `logIndex`, `blockNumber`.
        Numbers of more than 48 bits are strings: `.where("value", eq="1000000")`.
        """
        spec = {
            "type": "onchain_event",
            "chainId": chain_id,
            "contract": contract,
            "signature": event.signature if isinstance(event, ContractEvent) else event,
            "walletArg": to_contact,
            "confirmations": confirmations,
            "createContacts": create_contacts,
        }
        return self._with(start_draft(self._draft.name, spec, node))

    @usage_example('.on_segment_entered("vip")')
    def on_segment_entered(self, segment: str, *, node: str | None = None) -> Self:
        """Start the automation when a contact enters a segment. Filters and steps written before are dropped.

        The entry begins in the refresh that makes the contact a member. Filters and texts can use `segment`,
        `contactId` and the contact's identifiers; `.when("contact.plan", …)` tests its attributes.
        """
        return self._with(start_draft(self._draft.name, {"type": "segment_entered", "segment": segment}, node))

    @usage_example('.on_segment_left("vip")')
    def on_segment_left(self, segment: str, *, node: str | None = None) -> Self:
        """Start the automation when a contact leaves a segment, as for `.on_segment_entered`."""
        return self._with(start_draft(self._draft.name, {"type": "segment_left", "segment": segment}, node))

    @usage_example(".on_broadcast()")
    def on_broadcast(self, *, node: str | None = None) -> Self:
        """Start the automation with `.send_to("vip")`, for all contacts of a segment at once.

        Filters and steps written before are dropped. Texts can use `segment`, `contactId` and the contact's
        identifiers.
        """
        return self._with(start_draft(self._draft.name, {"type": "broadcast"}, node))

    @usage_example('.on_schedule("0 9 * * mon", timezone="Europe/Zurich", segment="vip")')
    def on_schedule(
        self,
        cron: str,
        *,
        timezone: str = "UTC",
        segment: str | None = None,
        missed: Literal["once", "skip"] = "once",
        node: str | None = None,
    ) -> Self:
        """Start the automation for all contacts of a segment, or of the organization, at certain times.

        Filters and steps written before are dropped. `cron` has five fields: minute, hour, day of the month, month, day
        of the week; `"0 9 * * mon"` is every Monday at 09:00 in the time zone. `missed`: a run that was missed while no
        engine ran is made late, once for all that were missed, or skipped.
        """
        spec: JsonObject = {"type": "schedule", "cron": cron, "timezone": timezone, "missed": missed}
        return self._with(start_draft(self._draft.name, spec | ({"segment": segment} if segment else {}), node))

    @usage_example(f'.where("amountUsd", gt=500) or .where("amountUsd > 500"); operators: {OPERATOR_USAGE}')
    def where(self, path: str, **operator: Unpack[FilterArguments]) -> Self:
        """Start only if a value of the event passes this filter. With several filters, all must pass.

        `path` is a key of the payload (`amountUsd`, `order.total`), or `event`, `walletAddress`, `email`, `externalId`
        or `contactId`. The operator is one of `eq`, `neq`, `is_in`, `contains`, `exists`, `gt`, `gte`, `lt` and `lte`;
        `.where("amountUsd")` asks whether the value is set. Values are not converted: the number 100 is not equal to
        the text "100". For values of the contact use `.when("contact.plan", …)`.

        `.where('amountUsd > 500 and asset != "DAI"')` takes an expression in the language of texts. A comparison with a
        missing value, or of values of two types, is false.
        """
        if not self._draft.nodes:
            raise InvalidAutomationError('start with the event: .on("deposit")')
        return self._with(with_filter(self._draft, read_filter(path, operator)))

    @usage_example('.reentry("once"), .reentry(every="7d") or .reentry("after_exit")')
    def reentry(
        self, policy: Literal["once", "after_exit"] | None = None, *, every: str | timedelta | None = None
    ) -> Self:
        """Limit how often a contact enters. By default every event enters.

        `"once"`: the first event only. `"after_exit"`: again only after its entry has ended. `every="7d"`: again only
        after that many days of 24 hours since it last entered.
        """
        if (policy is None) == (every is None) or policy not in (None, "once", "after_exit"):
            raise InvalidAutomationError(
                'write one of .reentry("once"), .reentry("after_exit") or .reentry(every="7d")'
            )
        if every is None:
            # The contract's word for "after_exit" is `not_while_running`.
            return self._with_setting("reentry", {"policy": "once" if policy == "once" else "not_while_running"})
        days, rest = divmod(seconds_of(every, "every"), 86_400)  # the setting is in whole days
        if rest:
            raise InvalidAutomationError(f'every={every!r} must be whole days, like "7d"')
        return self._with_setting("reentry", {"policy": "once_per", "days": days})

    @usage_example('.goal("purchase") or .goal("purchase", where={"plan": "pro"})')
    def goal(self, event: str, *, where: WhereArgument | None = None) -> Self:
        """End the entry as soon as the contact sends this event, or a contract logs one about it (`"0x…:Transfer"`).

        `.stats()` then counts the contact as having reached the goal. `where` is as for `.wait_for`.
        """
        return self._with_setting("goal", {"event": awaited_name(event), **condition_fields(read_where(where))})

    @usage_example('.quiet_hours("22:00", "08:00")')
    def quiet_hours(self, start: str, end: str, *, timezone: str = "timezone") -> Self:
        """Hold messages to contacts, all but webhooks, during these hours of their local time; send them afterwards.

        `timezone` is the attribute with the contact's time zone, like `Europe/Zurich`. Contacts without it have that of
        `.timezone(…)`, otherwise that of the organization, otherwise UTC.
        """
        return self._with_setting("quietHours", {"from": start, "to": end, "timezoneAttribute": timezone})

    @usage_example('.timezone("Europe/Zurich")')
    def timezone(self, zone: str) -> Self:
        """Set the time zone of contacts without one, for quiet hours and steps until a time.

        The default is that of the organization (`wb.timezone`), or UTC.
        """
        return self._with_setting("timezone", zone)

    @usage_example('.frequency_cap(3, per="1d") or .frequency_cap(1, per="day")')
    def frequency_cap(self, messages: int, *, per: str | timedelta, timezone: str | None = None) -> Self:
        """Skip a message if the contact got `messages` of them within `per`, from all automations; not a webhook.

        `"1d"` is 24 hours, `"day"` a day of the calendar, by the contact's clock: `timezone` is the attribute with its
        time zone, as for `.quiet_hours(…)`. The steps after a skipped message run.
        """
        if per == "day":
            day = {"messages": messages, "per": per, "timezoneAttribute": timezone or TIMEZONE_ATTRIBUTE}
            return self._with_setting("frequencyCap", day)
        if timezone is not None:
            raise InvalidAutomationError(f'timezone={timezone!r} has no effect without per="day"')
        return self._with_setting("frequencyCap", {"messages": messages, "seconds": seconds_of(per, "per")})

    @usage_example('.locale_attribute("language")')
    def locale_attribute(self, attribute: str) -> Self:
        """Choose the texts of messages by this attribute of the contact. By default it is `locale`.

        A contact with `de-AT` or `de_at` gets the texts of `de-AT`, otherwise those of `de`, otherwise the default
        texts.
        """
        return self._with_setting("localeAttribute", attribute)

    @usage_example('.default_locale("en")')
    def default_locale(self, locale: str) -> Self:
        """Name the locale of the default texts, so that `.check()` does not report its contacts as without texts."""
        return self._with_setting("defaultLocale", locale)

    @usage_example(".holdout(10)")
    def holdout(self, percent: int) -> Self:
        """Leave out `percent` (1 to 50) of the contacts, always the same ones. `.stats()` compares the two groups."""
        return self._with_setting("holdout", percent)

    def _with_setting(self, name: str, value: JsonObject | int | str) -> Self:
        return self._with(with_setting(self._draft, name, value))


class BranchSteps(StepVerbs):
    """The argument of a branch function. The function adds steps to it and returns the result."""


Branch: TypeAlias = Callable[[BranchSteps], BranchSteps]
S = TypeVar("S", bound=StepVerbs)


class When(MethodHints, Generic[S]):
    """A condition without steps yet: `.then(…)` adds them."""

    _hint = 'write .then(…) right after .when(…): .then(lambda b: b.add_tag("vip"))'

    def __init__(self, before: S, filters: tuple[JsonObject, ...], node: str | None = None) -> None:
        self._before = before
        self._filters = filters
        self._node = node

    @usage_example(f'.and_("amountUsd", exists=True); operators: {OPERATOR_USAGE}')
    def and_(self, path: str, **operator: Unpack[FilterArguments]) -> "When[S]":
        """Add one more filter. All must pass."""
        return When(self._before, (*self._filters, read_filter(path, operator)), self._node)

    @usage_example('.then(lambda b: b.add_tag("vip"))')
    def then(self, steps: Branch) -> S:
        """Add the steps for contacts for which all filters pass."""
        condition = self._before._add("condition", condition_fields(self._filters), self._node)
        return condition._along(("true",), steps, "")

    def __repr__(self) -> str:
        return "a condition without steps: continue with .then(lambda b: b.add_tag(…))"
