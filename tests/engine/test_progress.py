"""What one slice of entries decides, as the rows to write; and what the outcome of a delivery means for its entry."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from api.channels.outcome import DeliveryOutcome, Failed, NotSent, Retry, Sent, Unknown
from api.engine import progress as engine
from api.engine.deliver import judge
from api.engine.facts import BatchFacts, WatchedFacts
from api.engine.progress import (
    EntryProgress,
    PendingDelivery,
    advance_slice,
    attribute_changes,
    dead_entry,
    entry_joins,
    new_message,
    progress_of,
    tag_changes,
)
from api.engine.record import OutgoingMessage
from api.store.entries import Claim, EntryStepRow, EntryUpdate, TagChange
from api.store.events import ATTRIBUTES_TOO_LARGE
from api.store.messages import AttemptResult, NewMessage
from tests.inapp.wallet import evm_wallet
from tests.language.strategies import graph_of
from workbench.language.channel import (
    ConnectionMessage,
    EmailMessage,
    InappMessage,
    Message,
    RetryPolicy,
    WebhookMessage,
)
from workbench.language.contact import ContactState
from workbench.language.decision import Decision
from workbench.language.event import Identifiers
from workbench.language.facts import Facts
from workbench.language.graph import Graph
from workbench.language.run import (
    ContactUpdated,
    Effect,
    EntryJoined,
    Run,
    State,
    Step,
    TagAdded,
    TagRemoved,
    message_id,
)

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
SECOND, WALLET = timedelta(seconds=1), evm_wallet("A")
CLAIM = Claim("e1", "a1", "v1", NOW, "c1", None, 1, 0, 1, 7, NOW + 10 * SECOND, NOW, None, None, 1)
RUN = Run("e1", "a1", State.RUNNING, None, 0, 1, since_id="v1", event_id="v1")
CONTACT = ContactState("c1", Identifiers(WALLET, "ann@b.co"), {"ends": "2026-12-01"})
FACTS = Facts("paid", Identifiers(), {"amount": 5}, CONTACT, retries=RetryPolicy((0.5,)))
INAPP = InappMessage("m1", "m", WALLET, "Hi", "you", {"k": 1})


class OneGraph(msgspec.Struct):
    """The same graph for every claim."""

    graph: Graph | None

    def of(self, org_id: int, claim: Claim, /) -> Graph | None:
        assert (org_id, claim.automation_id) == (1, "a1")
        return self.graph


def line(*nodes: tuple[str, dict[str, Any]], **settings: Any) -> Graph:
    """Return a graph: trigger `0` > first node `1` > second …"""
    written = [{"id": str(index), "type": kind, "data": data} for index, (kind, data) in enumerate(nodes, start=1)]
    edges = [{"source": str(index), "target": str(index + 1)} for index in range(len(nodes))]
    trigger = {"id": "0", "type": "app_event"}
    return graph_of({"nodes": [trigger, *written], "edges": edges, "settings": settings})


def advanced(graph: Graph | None, *claims: Claim, **facts: Any) -> list[EntryProgress]:
    claims = claims or (CLAIM,)
    of_claim = msgspec.structs.replace(FACTS, **facts)
    batch = BatchFacts(NOW, {}, {claim.entry_id: of_claim for claim in claims}, WatchedFacts({}, {}, {}, {}))
    return advance_slice(1, list(claims), OneGraph(graph), batch)


def row(step: int, node_id: str, kind: str, outcome: str, detail: str = "{}", **more: Any) -> EntryStepRow:
    written = EntryStepRow("e1", 7, step, 1, node_id, kind, outcome, None, detail, NOW)
    return msgspec.structs.replace(written, **more)


def entry(*effects: Effect, contact_id: str = "c1", **more: Any) -> EntryProgress:
    claim = msgspec.structs.replace(CLAIM, contact_id=contact_id)
    return EntryProgress(claim, RUN, effects=effects, **more)


def test_an_entry_runs_to_its_end_and_its_rows_carry_the_token() -> None:
    nodes = ("add_tag", {"tag": "vip"}), ("send_inapp", {"title": "Hi", "body": "{{ amount }}"})
    graph = line(*nodes, goal={"event": "done"})
    (progress,) = advanced(graph)
    sent = message_id("e1", "2")
    message = InappMessage(sent, "2", WALLET, "Hi", "5")
    steps = (
        row(0, "0", "app_event", "entered"),
        row(1, "1", "add_tag", "tagged", '{"tag":"vip"}'),
        row(2, "2", "send_inapp", "sent", f'{{"messageId":"{sent}"}}'),
    )
    ended = Run("e1", "a1", State.COMPLETED, "2", 3, 1, "completed", since_id="v1", event_id="v1")
    assert progress == EntryProgress(CLAIM, ended, steps, (TagAdded("vip"), message))
    assert progress.messages == (NewMessage(sent, "c1", "a1", "e1", "2", "inapp", 7, WALLET, None, "Hi", "5"),)
    assert progress.update == EntryUpdate("e1", 7, "completed", "completed", "2", 3, 1, None, None)
    assert progress.characters == len("Hi5") + sum(len(step.detail) for step in steps)
    already = msgspec.structs.replace(steps[2], outcome="already_sent")
    assert progress.steps_to_log({sent}) == list(steps)
    assert progress.steps_to_log({"another"}) == [*steps[:2], already]


def test_an_entry_stops_before_an_email_that_is_to_be_delivered() -> None:
    text = {"subject": "Hi", "body": "{{ contact.tags | join(',') }}"}
    graph = line(("add_tag", {"tag": "vip"}), ("send_email", text), ("add_tag", {"tag": "mailed"}))
    (progress,) = advanced(graph)
    assert progress.steps == (row(0, "0", "app_event", "entered"), row(1, "1", "add_tag", "tagged", '{"tag":"vip"}'))
    assert progress.run == Run("e1", "a1", State.RUNNING, "2", 2, 1, since_id="v1", event_id="v1")
    assert (progress.effects, progress.awaits, progress.skipped) == ((TagAdded("vip"),), frozenset(), ())
    pending = progress.pending
    assert pending is not None
    assert pending.effect == EmailMessage(message_id("e1", "2"), "2", "ann@b.co", "Hi", "vip")
    assert (pending.decision.effects, pending.decision.run.node_id) == ((pending.effect,), "3")
    assert (pending.facts.contact.tags, pending.topic) == (("vip",), None)


def test_a_pending_delivery_has_the_topic_of_its_node() -> None:
    text = {"subject": "Hi", "body": "Bye", "topic": "news"}
    (progress,) = advanced(line(("send_email", text)))
    assert progress.pending is not None
    assert progress.pending.topic == "news"
    (webhook,) = advanced(line(("send_webhook", {"url": "https://a.example/"})))
    assert webhook.pending is not None
    assert webhook.pending.topic is None


@pytest.mark.parametrize(
    ("node", "contact", "channel", "cause", "outcome"),
    [
        (("send_email", {"subject": "a", "body": "b"}), {"opted_out": ("email",)}, "email", "opted_out", "skipped"),
        (("send_inapp", {"title": "a", "body": "b"}), {"opted_out": ("inapp",)}, "inapp", "opted_out", "skipped"),
        (
            ("send_inapp", {"title": "a", "body": "b"}),
            {"identifiers": Identifiers("So1anaWallet")},
            "inapp",
            "undeliverable",
            "undeliverable",
        ),
    ],
)
def test_a_message_that_is_not_sent_is_stored_with_its_cause(
    node: tuple[str, dict[str, Any]], contact: dict[str, Any], channel: str, cause: str, outcome: str
) -> None:
    (progress,) = advanced(line(node), contact=msgspec.structs.replace(CONTACT, **contact))
    assert [step.outcome for step in progress.steps] == ["entered", outcome]
    skipped = NewMessage(message_id("e1", "1"), "c1", "a1", "e1", "1", channel, cause=cause)
    assert progress.skipped == (skipped,)
    assert msgspec.json.decode(progress.steps[1].detail)["cause"] == cause


def test_a_waiting_entry_awaits_what_wakes_it() -> None:
    graph = line(("wait_for_event", {"event": "bought", "timeoutSeconds": 60}), goal={"event": "done"})
    (progress,) = advanced(graph)
    assert progress.awaits == {"bought", "done"}
    until = NOW + 60 * SECOND
    assert progress.update == EntryUpdate(
        "e1", 7, "waiting", None, "1", 1, 0, until, None, NOW, "v1", awaits="bought,done"
    )
    (dated,) = advanced(line(("wait_until", {"attribute": "contact.ends", "time": "09:00"})))
    assert dated.awaits == {"@ends", "@timezone"}
    (collecting,) = advanced(line(("collect", {"seconds": 60})), joined=())
    assert collecting.awaits == {"+e1"}
    (delayed,) = advanced(line(("delay", {"seconds": 60})))
    assert (delayed.run.state, delayed.awaits, delayed.update.awaits) == (State.WAITING, frozenset(), None)


def test_an_entry_without_a_wait_keeps_no_id_of_an_event() -> None:
    assert entry().update == EntryUpdate("e1", 7, "running", None, None, 0, 1, None, None)
    failed = msgspec.structs.replace(RUN, error="refused: no", due_at=NOW)
    assert EntryProgress(CLAIM, failed).update == EntryUpdate("e1", 7, "running", None, None, 0, 1, NOW, "refused: no")


def test_an_entry_of_an_automation_that_was_not_published_ends() -> None:
    ended = msgspec.structs.replace(RUN, state=State.COMPLETED, outcome="no_published_version")
    assert advanced(None) == [EntryProgress(CLAIM, ended)]
    # The graph of a waiting entry is never missing; then nothing can wake it.
    waiting = msgspec.structs.replace(RUN, state=State.WAITING, node_id="1")
    assert progress_of(CLAIM, RUN, None, [Decision(waiting)]).awaits == frozenset()


def test_an_entry_that_cannot_be_decided_is_dead_and_the_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    other = msgspec.structs.replace(CLAIM, entry_id="e2", contact_id="c2")
    batch = BatchFacts(NOW, {}, {"e2": FACTS}, WatchedFacts({}, {}, {}, {}))
    dead, done = advance_slice(1, [CLAIM, other], OneGraph(line()), batch)
    ended = msgspec.structs.replace(RUN, state=State.DEAD, outcome="internal_error", error="internal_error: KeyError")
    assert dead == EntryProgress(CLAIM, ended) == dead_entry(CLAIM, "KeyError")
    assert (done.claim, done.run.state) == (other, State.COMPLETED)
    (record,) = caplog.records
    assert (record.message, record.__dict__["entry_id"], record.exc_info is None) == ("advance_failed", "e1", False)


def test_an_entry_with_attributes_that_have_no_room_says_so() -> None:
    error = f"invalid_attribute: {ATTRIBUTES_TOO_LARGE}"
    dead = msgspec.structs.replace(RUN, state=State.DEAD, outcome="invalid_attribute", error=error)
    assert dead_entry(CLAIM, ATTRIBUTES_TOO_LARGE) == EntryProgress(CLAIM, dead)


@pytest.mark.parametrize(("limit", "value"), [("SLICE_CHARACTERS", 9), ("SLICE_NS", -1)])
def test_a_slice_ends_when_it_is_large_or_long(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    graph = line(("send_inapp", {"title": "Hi", "body": "you"}))
    claims = [msgspec.structs.replace(CLAIM, entry_id=f"e{number}", contact_id=f"c{number}") for number in range(3)]
    assert [progress.claim for progress in advanced(graph, *claims)] == claims
    monkeypatch.setattr(engine, limit, value)
    assert [progress.claim for progress in advanced(graph, *claims)] == claims[:1]


def test_a_slice_may_have_as_many_characters_as_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = line(("send_inapp", {"title": "Hi", "body": "you"}))
    claims = [msgspec.structs.replace(CLAIM, entry_id=f"e{number}", contact_id=f"c{number}") for number in range(3)]
    each = advanced(graph)[0].characters
    monkeypatch.setattr(engine, "SLICE_CHARACTERS", 2 * each - 1)
    assert [progress.claim for progress in advanced(graph, *claims)] == claims[:2]
    monkeypatch.setattr(engine, "SLICE_CHARACTERS", 2 * each)
    assert [progress.claim for progress in advanced(graph, *claims)] == claims


def test_steps_are_numbered_from_the_run_that_the_entry_was_claimed_with() -> None:
    claim = msgspec.structs.replace(CLAIM, node_id="m", step=4, attempt=2)
    start = Run("e1", "a1", State.RUNNING, "m", 4, 2)
    step = Step("m", "branch", NOW, "branched", 2, "yes", {"share": 3})
    progress = progress_of(claim, start, None, [Decision(start.at("n"), step), Decision(start.at("n"))])
    written = row(4, "m", "branch", "branched", '{"share":3}', attempt=2, handle="yes")
    assert progress == EntryProgress(claim, start.at("n"), (written,))
    assert progress_of(claim, start, None, []) == EntryProgress(claim, start)


@pytest.mark.parametrize(
    ("message", "channel", "columns"),
    [
        (INAPP, "inapp", {"wallet_address": WALLET, "subject": "Hi", "body": "you", "data": '{"k":1}'}),
        (
            msgspec.structs.replace(INAPP, data=None),
            "inapp",
            {"wallet_address": WALLET, "subject": "Hi", "body": "you"},
        ),
        (
            EmailMessage("m1", "m", "ann@b.co", "Hi", "you", html=True, track_clicks=True),
            "email",
            {"recipient": "ann@b.co", "subject": "Hi", "body": "you", "html": True, "track_clicks": True},
        ),
        (
            WebhookMessage("m1", "m", "https://a.example/", "{}"),
            "webhook",
            {"recipient": "https://a.example/", "body": "{}"},
        ),
        (ConnectionMessage("m1", "m", "chat", "{}"), "connection", {"recipient": "chat", "body": "{}"}),
    ],
)
def test_a_message_has_its_fields_in_the_columns_of_its_channel(
    message: Message, channel: str, columns: dict[str, Any]
) -> None:
    assert new_message(CLAIM, message) == NewMessage("m1", "c1", "a1", "e1", "m", channel, 7, **columns)
    assert new_message(CLAIM, message, "news") == NewMessage(
        "m1", "c1", "a1", "e1", "m", channel, 7, topic="news", **columns
    )


def test_the_changes_of_a_slice_are_collected_by_contact_and_the_last_one_wins() -> None:
    batch = [
        entry(
            TagAdded("a"), TagRemoved("b"), TagAdded("b"), TagAdded("a"), ContactUpdated({"plan": "free", "size": 1})
        ),
        entry(TagAdded("x"), TagRemoved("x"), TagRemoved("y"), contact_id="c2"),
        entry(TagRemoved("a"), ContactUpdated({"plan": "pro"}), INAPP),
        entry(EntryJoined("e0", is_last=True), contact_id="c3"),
    ]
    assert tag_changes(batch) == [TagChange("c1", '["b","a"]', '["b"]'), TagChange("c2", '["x","y"]', "[]")]
    assert attribute_changes(batch) == {"c1": {"plan": "pro", "size": 1}}
    assert entry_joins(batch) == [(batch[3], EntryJoined("e0", is_last=True))]


AFTER = Run("e1", "a1", State.RUNNING, "n", 2, 1, event_id="v1")
AT_NODE = Run("e1", "a1", State.RUNNING, "1", 1, 1, event_id="v1")
SENT = Decision(AFTER, Step("1", "send_webhook", NOW, "sent", detail={"messageId": "m1"}))


def judged(outcome: DeliveryOutcome, run: Run = AT_NODE) -> tuple[Decision, AttemptResult | None]:
    effect = WebhookMessage("m1", "1", "https://a.example/", "{}")
    progress = EntryProgress(CLAIM, run)
    message = OutgoingMessage(progress, PendingDelivery(SENT, effect, FACTS, "news"), None, False, ())
    return judge(message, line(("send_webhook", {"url": "https://a.example/"})), outcome, NOW)


def with_outcome(outcome: str, detail: dict[str, Any]) -> Decision:
    return Decision(AFTER, Step("1", "send_webhook", NOW, outcome, detail=detail))


@pytest.mark.parametrize(
    ("outcome", "decision", "result"),
    [
        (Sent("250"), SENT, AttemptResult("sent", "sent")),
        (NotSent("already_sent"), with_outcome("already_sent", {"messageId": "m1"}), None),
        (
            NotSent("skipped", "opted_out"),
            with_outcome("skipped", {"cause": "opted_out"}),
            AttemptResult("skipped", "skipped", "opted_out"),
        ),
        (
            NotSent("skipped", "declined_topic"),
            with_outcome("skipped", {"cause": "declined_topic", "topic": "news"}),
            AttemptResult("skipped", "skipped", "declined_topic"),
        ),
    ],
)
def test_a_message_that_is_not_tried_again_lets_its_entry_continue(
    outcome: DeliveryOutcome, decision: Decision, result: AttemptResult | None
) -> None:
    assert judged(outcome) == (decision, result)


@pytest.mark.parametrize(("after_s", "delay_s"), [(None, 5), (30.0, 30)])
def test_an_endpoint_that_is_busy_costs_no_attempt(after_s: float | None, delay_s: int) -> None:
    decision, result = judged(Retry("busy", after_s), msgspec.structs.replace(AT_NODE, attempt=2, since=NOW))
    assert decision == Decision(
        Run(
            *("e1", "a1", State.RETRYING, "1", 1, 1),
            error="busy: too many deliveries are waiting for this endpoint",
            due_at=NOW + delay_s * SECOND,
            event_id="v1",
        )
    )
    assert result == AttemptResult("queued", None)


def failed_step(reason: str, error: str, attempt: int = 1) -> Step:
    return Step("1", "send_webhook", NOW, "failed", attempt, detail={"cause": reason, "error": error})


@pytest.mark.parametrize(
    ("outcome", "reason", "error", "status", "log_outcome"),
    [
        (Retry("refused", 90.0, "HTTP 500"), "refused", "rejected by the receiver (HTTP 500)", "queued", "retrying"),
        (Retry("unreachable", 90.0), "unreachable", "could not connect", "queued", "retrying"),
        (Retry("unreachable"), "unreachable", "could not connect", "queued", "retrying"),
        (Unknown("no_answer"), "no_answer", "no response: the message may have arrived", "unknown", "unknown"),
    ],
)
def test_a_failed_attempt_is_repeated_and_not_before_the_receiver_asked_for(
    outcome: DeliveryOutcome, reason: str, error: str, status: Any, log_outcome: Any
) -> None:
    decision, result = judged(outcome)
    retrying = Run("e1", "a1", State.RETRYING, "1", 1, 1, error=f"{reason}: {error}", event_id="v1")
    assert decision.run.due_at is not None
    after = decision.run.due_at - NOW
    asked = isinstance(outcome, Retry) and outcome.after_seconds is not None
    assert after == 90 * SECOND if asked else 0.4 * SECOND <= after <= 0.6 * SECOND
    assert decision == Decision(msgspec.structs.replace(retrying, due_at=NOW + after), failed_step(reason, error))
    assert result == AttemptResult(status, log_outcome, reason)


@pytest.mark.parametrize(
    ("outcome", "attempt", "error"),
    [
        (Failed("gone", "HTTP 410"), 1, "the address or endpoint no longer exists (HTTP 410)"),
        (Retry("gone"), 2, "the address or endpoint no longer exists"),
    ],
)
def test_an_attempt_that_is_the_last_ends_the_entry(outcome: DeliveryOutcome, attempt: int, error: str) -> None:
    decision, result = judged(outcome, msgspec.structs.replace(AT_NODE, attempt=attempt))
    dead = Run("e1", "a1", State.DEAD, "1", 1, attempt, "gone", f"gone: {error}", event_id="v1")
    assert decision == Decision(dead, failed_step("gone", error, attempt))
    assert result == AttemptResult("failed", "failed", "gone")
