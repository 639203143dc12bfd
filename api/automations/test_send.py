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
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from api.automations.automations import Author, Refusal, invalid, limited, record, unknown
from api.automations.trial import PreparedTrial, Trial, TrialBody, TrialContext, UnsavedTrialBody, prepare, run
from api.channels.outcome import AddressRule, Delivery, Failed, Outcome, Retry, Sent, Unknown
from api.channels.outgoing import OUTGOING, Transports
from api.clock import Clock, monotonic_ns, to_us, uuid7, uuid7_from
from api.crypto import Keyring, OrgKeys
from api.store.automations import find_automation
from api.store.contacts import find_contact_state
from api.store.database import Database, Transaction
from api.store.locks import TESTING, take_turn
from api.store.messages import add_test_push, announce_messages, count_test_sends
from api.store.query import run as run_statement
from workbench.language.actions import MAX_ID_LENGTH, STEP_ACTIONS, MessageAction
from workbench.language.channel import CHANNELS, INAPP, ChannelName, InappMessage, Message, channel_of, is_evm_wallet
from workbench.language.codec import encode
from workbench.language.event import Identifiers
from workbench.language.problem import Problem, Problems
from workbench.language.responses import TestMessageView
from workbench.language.simulate import SIMULATED_ID, without_holdout

MAX_TESTS_PER_MINUTE = 10  # of an organization
MAX_MESSAGES = 20  # of one test
TIMEOUT_S = 20.0
MARK = "[Test] "

_INAPP_ADDRESS = AddressRule(
    index="wallet",
    read=lambda wallet: wallet.lower() if is_evm_wallet(wallet) else None,
    reason="must be an EVM wallet (0x…): no other can sign in",
    names=lambda wallet: (wallet,),
    identifier="wallet",
    is_used=None,
    unknown="does not belong to any of your contacts",
)
_ADDRESSES = {INAPP.name: _INAPP_ADDRESS} | {name: outgoing.address for name, outgoing in OUTGOING.items()}
_RECEIVER_FIELDS = [channel.receiver for channel in CHANNELS.values()]
_HINT = "; the operator can allow it (WORKBENCH_TEST_RECEIVERS)"

_log = logging.getLogger("workbench.delivery")
_late: set[asyncio.Task["TestMessageView"]] = set()  # sends that outlived the timeout; they end by themselves

Receivers: TypeAlias = dict[ChannelName, str]
"""The receivers of a test: an address for each channel that is tested."""


def _read_receivers(value: Any, path: str) -> Receivers | Problems:
    if not isinstance(value, dict) or not value.keys() <= set(_RECEIVER_FIELDS) or not any(value.values()):
        return (Problem(path, f"must name at least one of {', '.join(_RECEIVER_FIELDS)}"),)
    problems: list[Problem] = []
    receivers: Receivers = {}
    for channel, field in zip(CHANNELS.values(), _RECEIVER_FIELDS, strict=True):
        if (written := value.get(field)) is None:
            continue
        rule = _ADDRESSES[channel.name]
        address = rule.read(written) if isinstance(written, str) else None
        if address is None:
            problems.append(Problem(f"{path}.{field}", rule.reason))
        else:
            receivers[channel.name] = address
    return tuple(problems) or receivers


_RECEIVERS_SCHEMA = {
    "type": "object",
    "properties": {field: {"type": ["string", "null"]} for field in _RECEIVER_FIELDS},
    "additionalProperties": False,
    "minProperties": 1,
}


_NO_ADDRESS = {channel.recipient.cause for channel in CHANNELS.values() if channel.recipient is not None}

_To: TypeAlias = Annotated[Receivers, Meta(extra={"read": _read_receivers, "schema": _RECEIVERS_SCHEMA})]
_NodeId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH)]


class TestBody(TrialBody, frozen=True, rename="camel", kw_only=True):
    """A simulation; its messages, or those of one node, are sent to the receivers."""

    to: _To
    node_id: _NodeId | None = None


class UnsavedTestBody(UnsavedTrialBody, frozen=True, rename="camel", kw_only=True):
    """A simulation of an unsaved automation; its messages, or those of one node, are sent to the receivers."""

    to: _To
    node_id: _NodeId | None = None


class TestSendServices(msgspec.Struct, frozen=True):
    """`receivers`: the addresses, wallets, domains and hosts that the operator allows; `*` allows all."""

    database: Database
    keyring: Keyring
    clock: Clock
    transports: Transports
    receivers: frozenset[str]


async def send_test(
    services: TestSendServices,
    author: Author,
    context: TrialContext,
    source: str | UnsavedTrialBody,
    trial: Trial,
    to: Receivers,
    node_id: str | None = None,
) -> list[TestMessageView] | Refusal:
    """Send the messages of a simulation to the test receivers; return the result of each within TIMEOUT_S.

    `source`: as for `simulate_trial`. A message that lacks something is skipped, so that those after it are sent.
    A message that is under way at the timeout is `unknown`; one that has not begun to leave by then is not sent.
    """
    until_ns = monotonic_ns() + round(TIMEOUT_S * 1e9)
    prepared = await prepare(services.database, context, source, trial)
    if isinstance(prepared, Refusal):
        return prepared
    automation = prepared.automation
    graph = automation.graph
    if graph is not None:
        nodes = [
            replace(node, action=replace(node.action, on_missing="skip"))
            if isinstance(node.action, MessageAction)
            else node
            for node in graph.nodes
        ]
        graph = replace(without_holdout(graph), nodes=tuple(nodes))
    # Without its history, the contact is neither capped nor refused for an earlier entry.
    automation = replace(automation, graph=graph)
    treated = PreparedTrial(automation, prepared.contact, prepared.event, owners=prepared.owners)
    trace = await asyncio.to_thread(run, treated, context, trial)
    if not trace.matched:
        return invalid((Problem("event", "does not start this automation; simulate shows why"),))
    messages = [message for message in trace.messages if node_id in (None, message.node_id)]
    # Messages that the automation itself does not send: no address, an opt-out, a template error.
    # The channel follows from the kind of the step, because a draft may have nodes that cannot run.
    channels = {kind: action.channel for kind, action in STEP_ACTIONS.items()}
    last_steps = {step.node_id: (step, channel) for step in trace.steps if (channel := channels.get(step.kind))}
    skipped = [
        TestMessageView(
            step.node_id,
            channel.name,
            "skipped",
            step.detail.get("cause"),
            "" if step.detail.get("cause") in _NO_ADDRESS else step.detail.get("error", ""),
        )
        for step, channel in last_steps.values()
        if step.outcome in ("failed", "skipped", "undeliverable") and node_id in (None, step.node_id)
    ]
    if node_id is not None and not messages and not skipped:
        return invalid((Problem("nodeId", "no message is sent at this node for this event"),))
    contact_id = prepared.contact.id if prepared.contact.id != SIMULATED_ID else None
    sending = _TestSend(services, author, to, contact_id)
    automation_id = source.automation_id if isinstance(source, UnsavedTrialBody) else source
    refusal = await sending.begin(automation_id, messages[:MAX_MESSAGES])
    if refusal is not None:
        return refusal
    sent = await sending.send(messages[:MAX_MESSAGES], until_ns)
    left_out = [
        TestMessageView(message.node_id, channel_of(message).name, "skipped", "too_many", title=_title(message))
        for message in messages[MAX_MESSAGES:]
    ]
    return [*skipped, *sent, *left_out]


class _TestSend:
    """One test: a transaction checks and stores it, then the messages leave the server."""

    def __init__(self, services: TestSendServices, author: Author, to: Receivers, contact_id: str | None) -> None:
        self._services = services
        self._author = author
        self._to = to
        self._contact_id = contact_id
        self._push_ids: dict[int, str] = {}
        self._opted_out: frozenset[ChannelName] = frozenset()
        self._secrets: dict[str, tuple[str, ...]] = {}
        self._is_over = False

    async def begin(self, automation_id: str | None, messages: Sequence[Message]) -> Refusal | None:
        """Check the receivers and the rate, write the audit row and store in-app messages."""
        author, keys = self._author, self._services.keyring.of(self._author.org_id)
        async with self._services.database.transaction() as tx:
            await take_turn(tx, TESTING, author.org_id)  # one test at a time, so that the rate cannot be exceeded
            if automation_id is not None and await find_automation(tx, author.org_id, automation_id) is None:
                return unknown("automation")
            opted_out = await opted_out_channels(tx, author.org_id, keys, self._services, self._to)
            if isinstance(opted_out, tuple):
                return invalid(opted_out)
            self._opted_out = opted_out
            a_minute_ago = uuid7_from(to_us(author.now - timedelta(minutes=1)), bytes(8))
            if await count_test_sends(tx, author.org_id, a_minute_ago) >= MAX_TESTS_PER_MINUTE:
                return limited(f"at most {MAX_TESTS_PER_MINUTE} tests a minute; wait a little")
            channels = sorted({channel_of(message).name for message in messages})
            detail = {"channels": channels, "messages": len(messages), "to": digests(keys, self._to)}
            await record(tx, author, "automation.test", automation_id, detail)
            for name, outgoing in OUTGOING.items():
                if outgoing.find_secrets is not None and name in self._to:
                    self._secrets[name] = await outgoing.find_secrets(
                        tx, self._services.keyring, author.org_id, author.now
                    )
            wallet = self._to.get(INAPP.name)
            if wallet is None or INAPP.name in opted_out:
                return None
            for index, message in enumerate(messages):
                if isinstance(message, InappMessage):
                    # Each message is a microsecond later than the one before it, so that the inbox keeps their order.
                    self._push_ids[index] = push_id = uuid7(author.now_us + index)
                    data = encode({**(message.data or {}), "test": True}).decode()
                    texts = (wallet, MARK + message.title, message.body, data)
                    await add_test_push(tx, author.org_id, push_id, self._contact_id, *texts, author.now)
            if self._push_ids:
                await run_statement(tx, announce_messages(author.org_id, {wallet}))
        return None

    async def send(self, messages: Sequence[Message], until_ns: int) -> list[TestMessageView]:
        """Send all messages concurrently; return the result of each, as far as it is known at `until_ns`."""
        tasks = [asyncio.create_task(self._send(index, message)) for index, message in enumerate(messages)]
        if tasks:
            await asyncio.wait(tasks, timeout=max(until_ns - monotonic_ns(), 0) / 1e9)
        self._is_over = True  # messages that are not being sent yet are not sent any more
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
        services, author, channel = self._services, self._author, channel_of(message)
        address = self._to.get(channel.name)
        if address is None:
            return _view(message, None, None)
        if channel.name in self._opted_out:
            return _view(message, "opted_out", None)
        if isinstance(message, InappMessage):
            return _view(message, Sent(), self._push_ids[index])
        columns = {column: getattr(message, field) for field, column in channel.columns.items()}
        subject, body, html = columns.get("subject"), columns["body"], columns.get("html", False)
        # The id of a signed message is marked, because the header that marks a test is not signed.
        secrets = self._secrets.get(channel.name, ())
        message_id = f"{'test_' if secrets else ''}{uuid7(services.clock.unique_now_us())}"
        texts = (address, "" if subject is None else MARK + subject, body, html)
        delivery = Delivery(
            *(author.org_id, message_id, author.now, *texts),
            secrets=secrets,
            test=True,
            track_clicks=columns.get("track_clicks", False),
        )
        outcome = await services.transports.send(
            channel.name, services.database, services.keyring, delivery, services.clock, lambda: not self._is_over
        )
        return _view(message, outcome, message_id)


async def opted_out_channels(
    tx: Transaction, org_id: int, keys: OrgKeys, services: TestSendServices, to: Receivers
) -> frozenset[ChannelName] | Problems:
    """Return the channels that the receivers opted out of, or a problem for each receiver that is not allowed."""
    problems: list[Problem] = []
    opted_out: set[ChannelName] = set()
    for channel, address in to.items():
        rule, sender = _ADDRESSES[channel], services.transports.senders.get(channel)
        is_allowed = not services.receivers.isdisjoint({"*", *rule.names(address)}) or (
            sender is not None and sender.is_local
        )
        if rule.identifier is not None:
            owner = await find_contact_state(tx, org_id, keys, Identifiers(**{rule.identifier: address}))
            is_allowed = is_allowed or owner is not None
            if owner is not None and channel in owner.opted_out:
                opted_out.add(channel)
        if CHANNELS[channel].unsubscribes and await OUTGOING[channel].find_closed(
            tx, org_id, {keys.digest(rule.index, address)}
        ):
            opted_out.add(channel)
        if not is_allowed and not (rule.is_used is not None and await rule.is_used(tx, org_id, address)):
            problems.append(Problem(f"to.{CHANNELS[channel].receiver}", f"{rule.unknown}{_HINT}"))
    return tuple(problems) or frozenset(opted_out)


def digests(keys: OrgKeys, to: Receivers) -> dict[str, str]:
    """Return the blind index of each receiver: an address can be found by its index, but not read from it."""
    return {CHANNELS[name].receiver: keys.digest(_ADDRESSES[name].index, address) for name, address in to.items()}


def _view(message: Message, outcome: Outcome | Literal["opted_out"] | None, message_id: str | None) -> TestMessageView:
    node, title = (message.node_id, channel_of(message).name), _title(message)
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
    """Return the text that is stored as the subject."""
    columns = channel_of(message).columns
    return next((getattr(message, field) for field, column in columns.items() if column == "subject"), None)


def _log_failure(task: asyncio.Task[TestMessageView]) -> None:
    _late.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("test_send_failed", extra={"reason": type(error).__name__})
