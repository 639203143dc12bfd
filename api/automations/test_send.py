"""Test sends: the messages of a simulation, sent through the real channels to receivers that the author names.

The simulation is the usual one, except that the contact is not held out, capped or refused for an earlier entry. All
messages go only to the named receivers, marked as tests. They belong to no entry and no contact and are neither
metered nor counted. A test stores one audit row (receivers as blind indexes), and an in-app message until its wallet
has it, for at most a day.

An author may send tests without publishing anything, so they may only go where the organization sends already: to its
own contacts, to hosts of its published automations, and to receivers that the operator allows
(WORKBENCH_TEST_RECEIVERS).
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from api.auth.keys import webhook_secret
from api.automations.automations import Author, Refusal, invalid, limited, record, unknown
from api.automations.body import Fields, read_fields
from api.automations.trial import PreparedTrial, Trial, TrialContext, prepare, run, trial_in
from api.channels.outcome import Failed, Mail, Outcome, Retry, Sent, Unknown
from api.channels.signing import Unsubscription, unsubscribe_url
from api.channels.webhook import Webhook
from api.clock import Clock, monotonic_ns, to_us, uuid7, uuid7_from
from api.crypto import Keyring, OrgKeys
from api.engine.deliver import Transports
from api.store import messages as store
from api.store.automations import find_automation
from api.store.contacts import find_contact_state
from api.store.database import Database, Transaction
from api.store.locks import TESTING, take_turn
from api.store.messages import TestPushRow, add_test_push, announce_messages, count_test_sends, find_published_urls
from api.store.query import run as run_statement
from workbench.language.actions import is_webhook_url
from workbench.language.codec import encode
from workbench.language.event import Identifiers, normalise_email
from workbench.language.problem import Problem, Problems
from workbench.language.run import Channel, EmailMessage, InappMessage, Message, WebhookMessage, channel_of
from workbench.language.simulate import SIMULATED_ID, without_holdout

MAX_TESTS_PER_MINUTE = 10  # of an organization
MAX_MESSAGES = 20  # of one test
TIMEOUT_S = 20.0
MARK = "[Test] "
MAX_WALLET = 128

_RECEIVER_FIELDS = {"email", "walletAddress", "url"}
_CHANNELS: dict[str, Channel] = {"send_inapp": "inapp", "send_email": "email", "send_webhook": "webhook"}
_HINT = "; the operator can allow it (WORKBENCH_TEST_RECEIVERS)"

_log = logging.getLogger("workbench.delivery")
_late: set[asyncio.Task["TestMessageView"]] = set()  # sends that outlived the timeout; they end by themselves

TestOutcome: TypeAlias = Literal["sent", "failed", "unknown", "skipped"]


class TestAddresses(msgspec.Struct, frozen=True):
    """The receivers of a test, at most one per channel."""

    email: str | None = None
    wallet: str | None = None
    url: str | None = None


class TestSendRequest(msgspec.Struct, frozen=True):
    """A trial, the receivers of its messages, and the one node to send (None: all)."""

    trial: Trial
    to: TestAddresses
    node_id: str | None


class TestMessageView(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one message. `unknown`: it may have arrived. `reason` and `detail` say why it was not sent."""

    node_id: str
    channel: Channel
    outcome: TestOutcome
    reason: str | None = None
    detail: str = ""
    id: str | None = None
    title: str | None = None


class AllowedReceivers(msgspec.Struct, frozen=True):
    """The receivers that the operator allows: addresses, wallets, domains and hosts; `*` allows all.

    `emails_stay_local`: without a mail server, emails are only written to a folder, so any address is harmless.
    """

    names: frozenset[str] = frozenset()
    emails_stay_local: bool = False

    def include(self, *names: str) -> bool:
        return not self.names.isdisjoint({"*", *names})


class TestSendServices(msgspec.Struct, frozen=True):
    database: Database
    keyring: Keyring
    clock: Clock
    transports: Transports
    receivers: AllowedReceivers


def read_test_request(body: bytes, now: datetime) -> TestSendRequest | Problems:
    """Return the test in a body (the fields of a trial, `to`, `nodeId`), or all its problems."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    to, node_id = _read_addresses(fields), fields.text("nodeId", 128)
    trial = trial_in(fields, now)
    return TestSendRequest(trial, to, node_id) if isinstance(trial, Trial) else trial


def _read_addresses(fields: Fields) -> TestAddresses:
    value = fields.value("to")
    if not isinstance(value, dict) or not value.keys() <= _RECEIVER_FIELDS or not any(value.values()):
        fields.refuse("to", "must name at least one of email, walletAddress, url")
        return TestAddresses()
    email, wallet, url = (value.get(name) for name in ("email", "walletAddress", "url"))
    normal_email = normalise_email(email) if isinstance(email, str) else None
    if email is not None and normal_email is None:
        fields.refuse("to.email", "not a valid email address")
    if wallet is not None and not (isinstance(wallet, str) and 0 < len(wallet) <= MAX_WALLET):
        fields.refuse("to.walletAddress", f"must be a text of 1 to {MAX_WALLET} characters")
    if url is not None and not (isinstance(url, str) and is_webhook_url(url)):
        fields.refuse("to.url", "must be an http or https URL")
    return TestAddresses(
        normal_email, wallet.lower() if isinstance(wallet, str) else None, url if isinstance(url, str) else None
    )


async def send_test(
    services: TestSendServices,
    author: Author,
    context: TrialContext,
    automation_id: str,
    test_request: TestSendRequest,
) -> list[TestMessageView] | Refusal:
    """Send the messages of a simulation to the test receivers; return the result of each within TIMEOUT_S.

    A message that is under way at the timeout is `unknown`; one that has not begun to leave by then is not sent.
    """
    until_ns = monotonic_ns() + round(TIMEOUT_S * 1e9)
    trial, node_id = test_request.trial, test_request.node_id
    prepared = await prepare(services.database, context, automation_id, trial)
    if isinstance(prepared, Refusal):
        return prepared
    automation = prepared.automation
    graph = None if automation.graph is None else without_holdout(automation.graph)
    # Without its history, the contact is neither capped nor refused for an earlier entry.
    treated = PreparedTrial(msgspec.structs.replace(automation, graph=graph), prepared.contact, prepared.event)
    trace = await asyncio.to_thread(run, treated, context, trial)
    if not trace.matched:
        return invalid((Problem("event", "does not start this automation; simulate shows why"),))
    messages = [message for message in trace.messages if node_id in (None, message.node_id)]
    # Messages that the automation itself does not send: no address, an opt-out, a template error.
    last_steps = {step.node_id: step for step in trace.steps if step.kind in _CHANNELS}
    skipped = [
        TestMessageView(step.node_id, _CHANNELS[step.kind], "skipped", step.detail.get("cause"))
        for step in last_steps.values()
        if step.outcome in ("failed", "skipped") and node_id in (None, step.node_id)
    ]
    if node_id is not None and not messages and not skipped:
        return invalid((Problem("nodeId", "no message is sent at this node for this event"),))
    contact_id = prepared.contact.id if prepared.contact.id != SIMULATED_ID else None
    sending = _TestSend(services, author, test_request.to, contact_id)
    refusal = await sending.begin(automation_id, messages[:MAX_MESSAGES])
    if refusal is not None:
        return refusal
    sent = await sending.send(messages[:MAX_MESSAGES], until_ns)
    left_out = [
        TestMessageView(message.node_id, channel_of(message), "skipped", "too_many", title=_title(message))
        for message in messages[MAX_MESSAGES:]
    ]
    return [*skipped, *sent, *left_out]


class _TestSend:
    """One test: what is checked and stored in a transaction first, then the messages that leave the server."""

    def __init__(self, services: TestSendServices, author: Author, to: TestAddresses, contact_id: str | None) -> None:
        self._services = services
        self._author = author
        self._to = to
        self._contact_id = contact_id
        self._push_ids: dict[int, str] = {}
        self._opted_out: frozenset[Channel] = frozenset()
        self._is_over = False

    async def begin(self, automation_id: str, messages: Sequence[Message]) -> Refusal | None:
        """Check the receivers and the rate, write the audit row and store in-app messages."""
        author, keys = self._author, self._services.keyring.of(self._author.org_id)
        async with self._services.database.transaction() as tx:
            await take_turn(tx, TESTING, author.org_id)  # one test at a time, so that the rate cannot be exceeded
            if await find_automation(tx, author.org_id, automation_id) is None:
                return unknown("automation")
            opted_out = await opted_out_channels(tx, author.org_id, keys, self._services.receivers, self._to)
            if isinstance(opted_out, tuple):
                return invalid(opted_out)
            self._opted_out = opted_out
            a_minute_ago = uuid7_from(to_us(author.now - timedelta(minutes=1)), bytes(8))
            if await count_test_sends(tx, author.org_id, a_minute_ago) >= MAX_TESTS_PER_MINUTE:
                return limited(f"at most {MAX_TESTS_PER_MINUTE} tests a minute; wait a little")
            channels = sorted({channel_of(message) for message in messages})
            detail = {"channels": channels, "messages": len(messages), "to": digests(keys, self._to)}
            await record(tx, author, "automation.test", automation_id, detail)
            wallet = self._to.wallet
            if wallet is None or "inapp" in opted_out:
                return None
            for index, message in enumerate(messages):
                if isinstance(message, InappMessage):
                    # Each message is a microsecond later than the one before it, so that the inbox keeps their order.
                    self._push_ids[index] = push_id = uuid7(author.now_us + index)
                    data = encode({**(message.data or {}), "test": True}).decode()
                    texts = (wallet, MARK + message.title, message.body, data)
                    await add_test_push(tx, TestPushRow(author.org_id, push_id, self._contact_id, *texts, author.now))
            if self._push_ids:
                await run_statement(tx, announce_messages(author.org_id, {wallet}))
        return None

    async def send(self, messages: Sequence[Message], until_ns: int) -> list[TestMessageView]:
        """Send all messages concurrently; return the result of each, as far as it is known at `until_ns`."""
        tasks = [asyncio.create_task(self._send(index, message)) for index, message in enumerate(messages)]
        if tasks:
            await asyncio.wait(tasks, timeout=max(until_ns - monotonic_ns(), 0) / 1e9)
        self._is_over = True  # from now on `_may_leave` stops messages whose sending has not begun
        results = []
        for message, task in zip(messages, tasks, strict=True):
            if task.done():
                results.append(task.result())
            else:
                _late.add(task)
                task.add_done_callback(_log_failure)
                results.append(_view(message, Unknown("no_answer", f"after {TIMEOUT_S:g} s"), None))
        return results

    async def _send(self, index: int, message: Message) -> TestMessageView:
        services, author, to = self._services, self._author, self._to
        message_id = uuid7(services.clock.unique_now_us())
        match message:
            case InappMessage():
                push_id = self._push_ids.get(index)
                if push_id is not None:
                    return _view(message, Sent(), push_id)
                return _view(message, "opted_out" if "inapp" in self._opted_out else None, None)
            case EmailMessage():
                if to.email is None:
                    return _view(message, None, None)
                if "email" in self._opted_out:
                    return _view(message, "opted_out", None)
                address = Unsubscription(author.org_id, services.keyring.of(author.org_id).digest("email", to.email))
                url = unsubscribe_url(services.transports.public_url, services.keyring, address)
                content = (to.email, MARK + message.subject, message.body, message.html, url)
                mail = Mail(message_id, author.now, *content, test=True)
                return _view(message, await services.transports.mailer.send(mail, self._may_leave), message_id)
            case WebhookMessage():
                if to.url is None:
                    return _view(message, None, None)
                # The id is signed; the header that marks a test is not.
                hook_id = f"test_{message_id}"
                secret = await webhook_secret(services.database, services.keyring, author.org_id, author.now_us)
                hook = Webhook(author.org_id, hook_id, to.url, message.body, (secret,), test=True)
                outcome = await services.transports.webhooks.send(hook, services.clock.now(), self._may_leave)
                return _view(message, outcome, hook_id)

    def _may_leave(self) -> bool:
        return not self._is_over


async def opted_out_channels(
    tx: Transaction, org_id: int, keys: OrgKeys, receivers: AllowedReceivers, to: TestAddresses
) -> frozenset[Channel] | Problems:
    """Return the channels that the receivers opted out of, or a problem for each receiver that is not allowed."""
    problems, opted_out = [], set[str]()
    if to.email is not None:
        email_owner = await find_contact_state(tx, org_id, keys, Identifiers(email=to.email))
        is_allowed = receivers.emails_stay_local or receivers.include(to.email, to.email.rpartition("@")[2])
        if email_owner is None and not is_allowed:
            problems.append(Problem("to.email", f"does not belong to any of your contacts{_HINT}"))
        if email_owner is not None and "email" in email_owner.opted_out:
            opted_out.add("email")
        if await store.find_suppressed(tx, "email", {(org_id, keys.digest("email", to.email))}):
            opted_out.add("email")
    if to.wallet is not None:
        wallet_owner = await find_contact_state(tx, org_id, keys, Identifiers(wallet=to.wallet))
        if wallet_owner is None and not receivers.include(to.wallet):
            problems.append(Problem("to.walletAddress", f"does not belong to any of your contacts{_HINT}"))
        if wallet_owner is not None and "inapp" in wallet_owner.opted_out:
            opted_out.add("inapp")
    if to.url is not None and not receivers.include(host := _host(to.url)):
        published_hosts = {_host(url) for url in await find_published_urls(tx, org_id)}
        if host not in published_hosts:
            problems.append(Problem("to.url", f"no published automation sends to this host{_HINT}"))
    return tuple(problems) or frozenset(msgspec.convert(opted_out, set[Channel]))


def digests(keys: OrgKeys, to: TestAddresses) -> dict[str, str]:
    """Return the blind index of each receiver: an address can be found by its index, but not read from it."""
    kinds = {"email": ("email", to.email), "walletAddress": ("wallet", to.wallet), "url": ("url", to.url)}
    return {name: keys.digest(kind, value) for name, (kind, value) in kinds.items() if value is not None}


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _view(message: Message, outcome: Outcome | Literal["opted_out"] | None, message_id: str | None) -> TestMessageView:
    node, title = (message.node_id, channel_of(message)), _title(message)
    match outcome:
        case None:
            return TestMessageView(*node, "skipped", "no_address", title=title)
        case "opted_out":
            return TestMessageView(*node, "skipped", "opted_out", title=title)
        case Sent(detail):
            return TestMessageView(*node, "sent", None, detail, message_id, title)
        case Unknown(reason, detail):
            return TestMessageView(*node, "unknown", reason, detail, message_id, title)
        case Retry(reason=reason, detail=detail) | Failed(reason, detail):
            return TestMessageView(*node, "failed", reason, detail, message_id, title)


def _title(message: Message) -> str | None:
    match message:
        case InappMessage(title=title):
            return title
        case EmailMessage(subject=subject):
            return subject
        case WebhookMessage():
            return None


def _log_failure(task: asyncio.Task[TestMessageView]) -> None:
    _late.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("test_send_failed", extra={"reason": type(error).__name__})
