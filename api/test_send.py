"""Test sends: what an automation would send for an event, sent to its author instead, through the real channels.

The interpreter makes the messages, as a simulation does; nobody is held out, capped, or refused for having been in before. Whatever their receiver would be, they go to the
addresses that were given and nowhere else, marked as tests. They are no entry, no message of a contact, not metered, in no
count; what is kept is that somebody sent one to whom (`audit_log`, as blind indexes), and an in-app message until its wallet has it,
for a day. Whose addresses may be given: `authoring.receivers`.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from api.access.webhooks import secret
from api.authoring.automations import Author, record
from api.authoring.fields import Fields, read_fields
from api.authoring.receivers import Receivers, To, digests, unwilling
from api.authoring.refusal import Refusal, invalid, limited, unknown
from api.authoring.trial import Prepared, Surroundings, Trial, prepare, run, trial_in
from api.clock import Clock, monotonic_ns, to_us, uuid7, uuid7_from
from api.delivery.mail import Mail
from api.delivery.outcome import Failed, Outcome, Retry, Sent, Unknown
from api.delivery.unsubscribe import Unsubscribed, make_url
from api.delivery.webhook import Hook
from api.engine.outside import Transports
from api.keyring import Keyring
from api.language.action import is_address
from api.language.codec import encode
from api.language.described import SIMULATED
from api.language.effect import EmailMessage, InappMessage, Message, WebhookMessage, channel_of
from api.language.email import normal_email
from api.language.problem import Problem, Problems
from api.language.retry import Channel
from api.language.simulate import Trace, without_holdout
from api.store.authoring import find_automation
from api.store.calls import run as call
from api.store.database import Database, Transaction
from api.store.inbox import announce_messages
from api.store.locks import TESTING, take_turn
from api.store.test_sends import PushRow, add_test_push, count_test_sends

MOST_A_MINUTE = 10  # of an organization
MOST_MESSAGES = 20  # of one test
DEADLINE = 20.0  # seconds until the answer
MARK = "[Test] "
MAX_WALLET = 128

_log = logging.getLogger("workbench.delivery")

Ended: TypeAlias = Literal["sent", "failed", "unknown", "skipped"]


class Wish(msgspec.Struct, frozen=True):
    """What is tried, where its messages go, and the one node that is meant (None: all)."""

    trial: Trial
    to: To
    node_id: str | None


class TriedView(msgspec.Struct, frozen=True, rename="camel"):
    """What became of one message. `unknown`: it may have arrived. `reason`, `detail`: why it was not sent, in a word and a code."""

    node_id: str
    channel: Channel
    outcome: Ended
    reason: str | None = None
    detail: str = ""
    id: str | None = None
    title: str | None = None


_late: set[asyncio.Task[TriedView]] = set()  # what was on its way at the deadline; it ends by itself


class House(msgspec.Struct, frozen=True):
    """What tests are sent with."""

    database: Database
    keyring: Keyring
    clock: Clock
    ways: Transports
    receivers: Receivers


def read_wish(body: bytes, now: datetime) -> Wish | Problems:
    """Return the wish in a body (a trial's fields, `to`, `nodeId`), or everything that is wrong with it."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    to, node_id = _to(fields), fields.text("nodeId", 128)
    trial = trial_in(fields, now)
    return Wish(trial, to, node_id) if isinstance(trial, Trial) else trial


def _to(fields: Fields) -> To:
    value = fields.value("to")
    if not isinstance(value, dict) or not value.keys() <= _ADDRESSES or not any(value.values()):
        fields.refuse("to", "must name at least one of email, walletAddress, url")
        return To()
    email, wallet, url = (value.get(name) for name in ("email", "walletAddress", "url"))
    normal = normal_email(email) if isinstance(email, str) else None
    if email is not None and normal is None:
        fields.refuse("to.email", "not a valid email address")
    if wallet is not None and not (isinstance(wallet, str) and 0 < len(wallet) <= MAX_WALLET):
        fields.refuse("to.walletAddress", f"must be a text of 1 to {MAX_WALLET} characters")
    if url is not None and not (isinstance(url, str) and is_address(url)):
        fields.refuse("to.url", "must be an http or https address")
    return To(normal, wallet.lower() if isinstance(wallet, str) else None, url if isinstance(url, str) else None)


_ADDRESSES = {"email", "walletAddress", "url"}


async def send_test(
    house: House, author: Author, around: Surroundings, automation_id: str, wish: Wish
) -> list[TriedView] | Refusal:
    """Send what the automation would, to the author; return what became of each message, in the order of sending.

    That takes `DEADLINE` at most: what is on its way then is unknown, and what has not begun to leave by then does not.
    """
    until_ns = monotonic_ns() + round(DEADLINE * 1e9)
    prepared = await prepare(house.database, around, automation_id, wish.trial)
    if isinstance(prepared, Refusal):
        return prepared
    trace = await asyncio.to_thread(_tried, prepared, around, wish.trial)
    if not trace.matched:
        return invalid((Problem("event", "it does not start this automation; simulate says why"),))
    messages = [each for each in trace.messages if wish.node_id in (None, each.node_id)]
    withheld = [each for each in _withheld(trace) if wish.node_id in (None, each.node_id)]
    if wish.node_id is not None and not messages and not withheld:
        return invalid((Problem("nodeId", "with this event, no message is sent there"),))
    contact_id = prepared.contact.id if prepared.contact.id != SIMULATED else None
    sending = _Sending(house, author, wish.to, contact_id)
    refusal = await sending.begin(automation_id, messages[:MOST_MESSAGES])
    if refusal is not None:
        return refusal
    sent = await sending.send(messages[:MOST_MESSAGES], until_ns)
    return [*withheld, *sent, *map(_left_out, messages[MOST_MESSAGES:])]


def _tried(prepared: Prepared, around: Surroundings, trial: Trial) -> Trace:
    automation = prepared.automation
    graph = None if automation.graph is None else without_holdout(automation.graph)
    treated = Prepared(msgspec.structs.replace(automation, graph=graph), prepared.contact, prepared.event)
    return run(treated, around, trial)


def _withheld(trace: Trace) -> Iterator[TriedView]:
    """Yield the messages that the automation would not have sent, and why: no address, an opt-out, a text that has no value."""
    last = {step.node_id: step for step in trace.steps if step.kind in _CHANNELS}
    for step in last.values():
        if step.outcome in ("failed", "skipped"):
            yield TriedView(step.node_id, _CHANNELS[step.kind], "skipped", step.detail.get("cause"))


def _left_out(message: Message) -> TriedView:
    return TriedView(message.node_id, channel_of(message), "skipped", "too_many", title=_title(message))


def _title(message: Message) -> str | None:
    match message:
        case InappMessage(title=title):
            return title
        case EmailMessage(subject=subject):
            return subject
        case WebhookMessage():
            return None


_CHANNELS: dict[str, Channel] = {"send_inapp": "inapp", "send_email": "email", "send_webhook": "webhook"}


class _Sending:
    """One test on its way: what is noted and stored in a transaction first, then what leaves the house."""

    def __init__(self, house: House, author: Author, to: To, contact_id: str | None) -> None:
        self._house = house
        self._author = author
        self._to = to
        self._contact_id = contact_id
        self._pushed: dict[int, str] = {}
        self._opted_out: frozenset[Channel] = frozenset()
        self._is_over = False

    async def begin(self, automation_id: str, messages: Sequence[Message]) -> Refusal | None:
        """Note that a test is sent and store what goes to the wallet; refused when there were too many lately, or for strangers."""
        author, keys = self._author, self._house.keyring.of(self._author.org_id)
        async with self._house.database.transaction() as tx:
            await take_turn(tx, TESTING, author.org_id)
            if await find_automation(tx, author.org_id, automation_id) is None:
                return unknown("automation")
            judged = await unwilling(tx, author.org_id, keys, self._house.receivers, self._to)
            if isinstance(judged, tuple):
                return invalid(judged)
            self._opted_out = judged
            a_minute_ago = uuid7_from(to_us(author.now - timedelta(minutes=1)), bytes(8))
            if await count_test_sends(tx, author.org_id, a_minute_ago) >= MOST_A_MINUTE:
                return limited(f"at most {MOST_A_MINUTE} tests a minute: wait a little")
            channels = sorted({channel_of(each) for each in messages})
            detail = {"channels": channels, "messages": len(messages), "to": digests(keys, self._to)}
            await record(tx, author, "automation.test", automation_id, detail)
            await self._push(tx, messages)
        return None

    async def send(self, messages: Sequence[Message], until_ns: int) -> list[TriedView]:
        """Send what leaves the house, all at once; return what is known of every message at a moment."""
        tasks = [asyncio.create_task(self._send(index, each)) for index, each in enumerate(messages)]
        if tasks:
            await asyncio.wait(tasks, timeout=max(until_ns - monotonic_ns(), 0) / 1e9)
        self._is_over = True
        return [
            task.result() if task.done() else self._unknown(each, task)
            for each, task in zip(messages, tasks, strict=True)
        ]

    def _unknown(self, message: Message, task: asyncio.Task[TriedView]) -> TriedView:
        _late.add(task)
        task.add_done_callback(_ended)
        return self._view(message, Unknown("no_answer", f"after {DEADLINE:g} s"), None)

    async def _push(self, tx: Transaction, messages: Iterable[Message]) -> None:
        wallet, author = self._to.wallet, self._author
        if wallet is None or "inapp" in self._opted_out:
            return
        for index, each in enumerate(messages):
            if isinstance(each, InappMessage):
                self._pushed[index] = push_id = uuid7(author.now_us + index)
                extra = encode({**(each.data or {}), "test": True}).decode()
                texts = (wallet, MARK + each.title, each.body, extra)
                await add_test_push(tx, PushRow(author.org_id, push_id, self._contact_id, *texts, author.now))
        if self._pushed:
            await call(tx, announce_messages(author.org_id, {wallet}))

    async def _send(self, index: int, message: Message) -> TriedView:
        match message:
            case InappMessage():
                return self._view(message, self._outcome(index), self._pushed.get(index))
            case EmailMessage():
                mail_id = uuid7(self._house.clock.unique_now_us())
                return self._view(message, await self._mail(message, mail_id), mail_id)
            case WebhookMessage():
                hook_id = (
                    f"test_{uuid7(self._house.clock.unique_now_us())}"  # signed, as the header that says so is not
                )
                return self._view(message, await self._hook(message, hook_id), hook_id)

    def _outcome(self, index: int) -> Outcome | Literal["opted_out"] | None:
        if index in self._pushed:
            return Sent()
        return "opted_out" if "inapp" in self._opted_out else None

    def _may_leave(self) -> bool:
        return not self._is_over

    async def _mail(self, message: EmailMessage, mail_id: str) -> Outcome | Literal["opted_out"] | None:
        to, house, org_id = self._to.email, self._house, self._author.org_id
        if to is None:
            return None
        if "email" in self._opted_out:
            return "opted_out"
        url = make_url(
            house.ways.public_url, house.keyring, Unsubscribed(org_id, house.keyring.of(org_id).digest("email", to))
        )
        content = (to, MARK + message.subject, message.body, message.html, url)
        return await house.ways.mailer.send(Mail(mail_id, self._author.now, *content, test=True), self._may_leave)

    async def _hook(self, message: WebhookMessage, hook_id: str) -> Outcome | None:
        url, house, author = self._to.url, self._house, self._author
        if url is None:
            return None
        signed_with = await secret(house.database, house.keyring, author.org_id, author.now_us)
        hook = Hook(author.org_id, hook_id, url, message.body, (signed_with,), test=True)
        return await house.ways.webhooks.send(hook, house.clock.now(), self._may_leave)

    def _view(
        self, message: Message, ended: Outcome | Literal["opted_out"] | None, message_id: str | None
    ) -> TriedView:
        told, title = (message.node_id, channel_of(message)), _title(message)
        match ended:
            case None:
                return TriedView(*told, "skipped", "no_address", title=title)
            case "opted_out":
                return TriedView(*told, "skipped", "opted_out", title=title)
            case Sent(detail):
                return TriedView(*told, "sent", None, detail, message_id, title)
            case Unknown(reason, detail):
                return TriedView(*told, "unknown", reason, detail, message_id, title)
            case Retry(reason=reason, detail=detail) | Failed(reason, detail):
                return TriedView(*told, "failed", reason, detail, message_id, title)


def _ended(task: asyncio.Task[TriedView]) -> None:
    """Let go of what ended after the answer, whatever became of it."""
    _late.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("test_send_failed", extra={"reason": type(error).__name__})
