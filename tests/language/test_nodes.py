"""Every node kind has its outcomes; `test_advance` covers conditions, added tags and in-app messages."""

import typing
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from tests.inapp.wallet import evm_wallet
from workbench.language.actions import (
    MAX_WAIT,
    Action,
    Branch,
    Collect,
    Condition,
    Delay,
    Exit,
    MessageAction,
    RemoveTag,
    SendEmail,
    SendInapp,
    SendVia,
    SendWebhook,
    Split,
    UpdateContact,
    WaitForEvent,
    WaitUntil,
)
from workbench.language.advance import advance
from workbench.language.channel import (
    EMAIL,
    INAPP,
    ConnectionMessage,
    EmailMessage,
    InappMessage,
    Message,
    WebhookMessage,
)
from workbench.language.codec import decode, utc_text
from workbench.language.contact import ContactState
from workbench.language.decision import Decision
from workbench.language.event import Identifiers, mask_email
from workbench.language.facts import ContactHistory, Facts, LaterEvent, apply_effects
from workbench.language.filter import Filter, Where
from workbench.language.graph import DEFAULT_SETTINGS, AutomationSettings, Edge, FrequencyCap, Graph, Node, QuietHours
from workbench.language.local_time import LONGEST_DAY
from workbench.language.nodes import HANDLERS, bucket
from workbench.language.run import ContactUpdated, Run, State, Step, TagRemoved, delay_after, message_id

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ANN = ContactState("c1", Identifiers(evm_wallet("c"), "ann@b.co"), {"tier": "gold", "timezone": "Asia/Tokyo"}, ("old",))
RECEIVED = datetime(2026, 11, 20, 9, 59, tzinfo=UTC)
FACTS = Facts(
    "paid", Identifiers(), {"amount": Decimal("2.50"), "evil": "a\r\nBcc: x@y.co", "html": "<b>"}, ANN, at=RECEIVED
)
AT = Run("e1", "a1", State.RUNNING, "n", 1, 1)


def around(action: Action, settings: AutomationSettings = DEFAULT_SETTINGS) -> Graph:
    """Return a graph in which every handle of the node `n` leads to a node with the name of the handle."""
    ways = action.handles
    nodes = [Node(str(way), "exit", Exit()) for way in ways]
    edges = [Edge("", "n", str(way), way) for way in ways]
    return Graph((Node("n", "kind", action), Node("t", "exit", Exit()), *nodes), tuple(edges), settings)


def at(
    action: Action,
    facts: Facts = FACTS,
    now: datetime = NOW,
    run: Run = AT,
    settings: AutomationSettings = DEFAULT_SETTINGS,
) -> Decision:
    return advance(around(action, settings), run, facts, now)


def detail(decision: Decision) -> dict[str, Any]:
    assert decision.step is not None
    return decision.step.detail


def test_every_action_has_a_handler() -> None:
    assert set(HANDLERS) == set(typing.get_args(Action))


def test_an_email_is_rendered_for_the_contact() -> None:
    decision = at(SendEmail("Hi {{ contact.tier }}", "{{ amount }} {{ html }}"))
    message = EmailMessage(message_id("e1", "n"), "n", "ann@b.co", "Hi gold", "2.50 <b>", html=False)
    step = Step("n", "kind", NOW, "sent", detail={"messageId": message.id})
    assert decision == Decision(AT.at("None"), step, (message,))


ID = message_id("e1", "n")


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (SendInapp("{{ amount }}", "b", data={"a": 1}), InappMessage(ID, "n", evm_wallet("c"), "2.50", "b", {"a": 1})),
        (
            SendEmail("s", "<p>", track_clicks=True),
            EmailMessage(ID, "n", "ann@b.co", "s", "<p>", html=True, track_clicks=True),
        ),
        (SendWebhook("https://a.co", "b"), WebhookMessage(ID, "n", "https://a.co", "b")),
        (
            SendVia("chat", {"text": "{{ amount }}", "n": "{{ amount }}!"}),
            ConnectionMessage(ID, "n", "chat", '{"n":"2.50!","text":2.50}'),
        ),
    ],
)
def test_each_channel_has_its_message(action: Action, message: Message) -> None:
    step = Step("n", "kind", NOW, "sent", detail={"messageId": ID})
    assert at(action) == Decision(AT.at("None"), step, (message,))


def test_the_email_address_of_the_event_wins() -> None:
    facts = Facts("paid", Identifiers(email="eve@b.co"), {}, ANN)
    assert [effect.email for effect in at(SendEmail("s", "b"), facts).effects if isinstance(effect, EmailMessage)] == [
        "eve@b.co"
    ]


def test_m7_values_are_escaped_in_html_and_unchanged_in_text() -> None:
    (message,) = at(SendEmail("{{ html }}", "<p title='{{ html }}'>{{ html | upper }}</p>")).effects
    assert isinstance(message, EmailMessage)
    assert (message.subject, message.body, message.html) == ("<b>", "<p title='&lt;b&gt;'>&lt;B&gt;</p>", True)


def test_without_an_email_address_the_step_is_retried_by_the_schedule_of_emails() -> None:
    facts = Facts("paid", Identifiers(), {}, ContactState("c1"))
    decision = at(SendEmail("s", "b"), facts)
    assert (decision.run.state, decision.run.error) == (
        State.RETRYING,
        "no_email: neither the event nor the contact has an email address",
    )
    assert decision.run.due_at == NOW + (delay_after(EMAIL.delays_s, 1, "a1/") or timedelta())
    last = at(SendEmail("s", "b"), facts, run=msgspec.structs.replace(AT, attempt=7))
    assert (last.run.state, last.run.outcome) == (State.DEAD, "no_email")


@pytest.mark.parametrize(
    "subject",
    [
        "{{ evil }}",
        "a\nb",
        "a\rb",
        "a\x0bb",
        "a\u2028b",
        "a\u0085b",
        "a\x7fb",
        "=?utf-8?q?=0D=0ABcc:_v?=",
        "x =?UTF-8?B?YQ==?=",
    ],
)
def test_j8_a_subject_that_would_break_the_header_is_refused(subject: str) -> None:
    decision = at(SendEmail(subject, "b"))
    error = "invalid_header: the subject contains a line break, a control character or an encoded word"
    assert (decision.run.state, decision.run.error, decision.effects) == (State.DEAD, error, ())


def test_a_webhook_posts_json_in_which_a_single_expression_keeps_its_type() -> None:
    """Keys have the order of jsonb, in which a published version is stored, so a draft posts the same text."""
    body = {"amount": "{{ amount }}", "text": "got {{ amount }}", "tags": "{{ contact.tags }}", "n": [1, None, True]}
    (message,) = at(SendWebhook("https://a.co/{{ html | urlencode }}", body)).effects
    assert isinstance(message, WebhookMessage)
    assert (message.id, message.url) == (message_id("e1", "n"), "https://a.co/%3Cb%3E")
    assert message.body == '{"n":[1,null,true],"tags":["old"],"text":"got 2.50","amount":2.50}'


def test_a_webhook_with_a_text_posts_the_text() -> None:
    (message,) = at(SendWebhook("https://a.co", "amount={{ amount }}")).effects
    assert isinstance(message, WebhookMessage)
    assert message.body == "amount=2.50"


def test_a_webhook_without_a_body_posts_the_event() -> None:
    (message,) = at(SendWebhook("https://a.co")).effects
    assert isinstance(message, WebhookMessage)
    ids = {
        "contactId": "c1",
        "automationId": "a1",
        "entryId": "e1",
        "walletAddress": evm_wallet("c"),
        "email": "ann@b.co",
    }
    assert decode(message.body.encode()) == {
        "type": "paid",
        "timestamp": "2026-11-20T09:59:00Z",
        "data": ids | {"payload": FACTS.payload},
    }


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (
            SendWebhook("https://a.co/{{ evil }}"),
            "invalid_url: the URL is not valid after its values were filled in; write {{ value | urlencode }}",
        ),
        (SendWebhook("https://a.co/{{ nope }}"), "template_error: the value 'nope' is missing"),
        (SendWebhook("https://a.co/", {"a": ["{{ nope }}"]}), "template_error: the value 'nope' is missing"),
        (
            SendWebhook("https://a.co/", {"a": "{{ payload.loop }}"}),
            "template_error: the value before it has no key 'loop'",
        ),
        (UpdateContact({"a": "{{ nope }}"}), "template_error: the value 'nope' is missing"),
        (
            UpdateContact({"a": "{{ contact.tags }}"}),
            "invalid_attribute: attributes.a: must be a string, number or boolean",
        ),
        (UpdateContact({"a": "{{ none }}"}), "invalid_attribute: attributes.a: must be a string, number or boolean"),
        (UpdateContact({"a": "x" * 1_000 + "{{ contact.tier * 1 }}"}), "template_error: needs a number, not a text"),
        (
            UpdateContact({"a": "x" * 1_024 + "{{ amount }}"}),
            "invalid_attribute: attributes.a: must be at most 1024 bytes",
        ),
        (SendEmail("{{ nope }}", "b"), "template_error: the value 'nope' is missing"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_dead_at_once(action: Action, error: str) -> None:
    outcome, _, reason = error.partition(": ")
    run = msgspec.structs.replace(AT, state=State.DEAD, outcome=outcome, error=error)
    step = Step("n", "kind", NOW, "failed", detail={"cause": outcome, "error": reason})
    assert at(action) == Decision(run, step)


def test_all_texts_of_a_webhook_share_one_budget() -> None:
    facts = Facts("paid", Identifiers(), {"text": "x" * 16_000}, ANN)
    decision = at(SendWebhook("https://a.co", ["{{ text }}"] * 20), facts)
    assert (decision.run.outcome, decision.run.error) == (
        "template_error",
        "template_error: makes more than 262144 characters",
    )
    loops = ["{% for x in contact.tags %}" * 9 + "x" + "{% endfor %}" * 9] * 200
    assert at(SendWebhook("https://a.co", loops)).run.outcome == "template_error"


def test_a_removed_tag_is_missing_for_later_nodes() -> None:
    decision = at(RemoveTag("old"))
    assert (decision.step, decision.effects) == (
        Step("n", "kind", NOW, "untagged", detail={"tag": "old"}),
        (TagRemoved("old"),),
    )
    assert apply_effects(FACTS, decision.effects, NOW).contact.tags == ()
    assert apply_effects(FACTS, (TagRemoved("other"),), NOW) is FACTS


def test_merged_attributes_are_visible_to_later_nodes() -> None:
    decision = at(UpdateContact({"tier": "iron", "paid": "{{ amount }}", "said": "got {{ amount }}", "n": 3}))
    values = {"tier": "iron", "paid": Decimal("2.50"), "said": "got 2.50", "n": 3}
    step = Step("n", "kind", NOW, "updated", detail={"attributes": ["tier", "paid", "said", "n"]})
    assert decision == Decision(AT.at("None"), step, (ContactUpdated(values),))
    assert apply_effects(FACTS, decision.effects, NOW).contact.attributes == {"timezone": "Asia/Tokyo"} | values


def test_a_contact_at_the_attribute_limit_is_not_updated() -> None:
    full = Facts(
        "paid", Identifiers(), {}, ContactState("c1", attributes={str(number): number for number in range(1_000)})
    )
    assert at(UpdateContact({"1": 2}), full).run.state is State.RUNNING
    error = "invalid_attribute: the contact has reached the limit on attributes"
    assert at(UpdateContact({"more": 2}), full).run.error == error


def test_a_condition_is_judged_when_it_is_reached() -> None:
    yesterday = Condition((Where("payload.day | days_since == 1"),))
    facts = Facts("paid", Identifiers(), {"day": "2026-11-19"}, ANN)
    assert [at(yesterday, facts, NOW + days * DAY).run.node_id for days in (0, 1)] == ["true", "false"]


def test_a_list_in_the_payload_is_not_a_list_of_collected_events() -> None:
    facts = Facts("paid", Identifiers(), {"events": [1, 2]}, ANN)
    (verdict,) = detail(at(Condition((Filter("payload.events", "exists"),)), facts))["verdicts"]
    assert verdict["actual"] == [1, 2]
    (verdict,) = detail(at(Condition((Filter("events", "exists"),)), facts))["verdicts"]
    assert verdict["actual"] == [1, 2]


def test_steps_show_addresses_of_contacts_masked_and_other_texts_as_they_are() -> None:
    payload: dict[str, Any] = {"note": "eve@b.co", "who": {"email": "eve@b.co"}}
    paths = ("note", "payload.who", "email", "contact.email", "contact")
    condition = Condition(tuple(Filter(path, "exists") for path in paths))
    verdicts = detail(at(condition, Facts("paid", Identifiers(), payload, ANN)))["verdicts"]
    note, who, *emails, contact = [verdict["actual"] for verdict in verdicts]
    assert (note, who, emails) == ("eve@b.co", {"email": "eve@b.co"}, [mask_email("ann@b.co")] * 2)
    assert contact["email"] == mask_email("ann@b.co")


def test_a_delay_counts_from_when_it_is_reached() -> None:
    decision = at(Delay(DAY))
    waiting = Run("e1", "a1", State.WAITING, "n", 1, 0, due_at=NOW + DAY, since=NOW)
    step = Step("n", "kind", NOW, "waiting", detail={"cause": "delay", "until": "2026-11-21T10:00:00Z"})
    assert decision == Decision(waiting, step)
    early = at(Delay(DAY), now=NOW + HOUR, run=waiting.claimed())
    assert early == Decision(waiting)
    late = at(Delay(DAY), now=NOW + DAY + HOUR, run=waiting.claimed())
    assert late == Decision(AT.at("None"), Step("n", "kind", NOW + DAY + HOUR, "waited"))


WAIT = WaitForEvent("bought", (Filter("plan", "eq", "pro"), Filter("contact.tier", "eq", "gold")), DAY)
WAITING = Run("e1", "a1", State.WAITING, "n", 1, 0, due_at=NOW + DAY, since=NOW)


def purchase(after: timedelta, plan: str = "pro", event: str = "bought") -> LaterEvent:
    return LaterEvent(NOW + after, event, Identifiers(), {"plan": plan}, "v1")


def waited(now: datetime, *arrivals: LaterEvent) -> Decision:
    return at(WAIT, msgspec.structs.replace(FACTS, later_events=arrivals), now, WAITING.claimed())


def test_a_wait_begins_when_it_is_reached() -> None:
    step = Step("n", "kind", NOW, "waiting", detail={"cause": "event", "until": "2026-11-21T10:00:00Z"})
    assert at(WAIT) == Decision(WAITING, step)


def test_an_event_that_passes_the_filters_ends_the_wait() -> None:
    decision = waited(NOW + HOUR, purchase(HOUR / 2, "free"), purchase(HOUR))
    step = Step("n", "kind", NOW + HOUR, "matched", handle="matched", detail={"event": "bought", "eventId": "v1"})
    assert decision == Decision(msgspec.structs.replace(AT.at("matched"), since_id="v1"), step)


@pytest.mark.parametrize(
    "arrival",
    [purchase(HOUR, "free"), purchase(HOUR, event="sold"), purchase(timedelta()), purchase(-HOUR)],
    ids=["not the filters", "another event", "the moment it began", "before it began"],
)
def test_another_event_changes_nothing(arrival: LaterEvent) -> None:
    assert waited(NOW + 2 * HOUR, arrival) == Decision(WAITING)


@pytest.mark.parametrize(("event_id", "node_id"), [("v0", "n"), ("v1", "n"), ("v2", "matched")])
def test_events_at_the_moment_at_which_a_wait_begins_count_if_their_ids_are_later(event_id: str, node_id: str) -> None:
    facts = msgspec.structs.replace(
        FACTS, later_events=(LaterEvent(NOW, "bought", Identifiers(), {"plan": "pro"}, event_id),)
    )
    run = msgspec.structs.replace(WAITING.claimed(), since_id="v1")
    assert at(WAIT, facts, NOW, run).run.node_id == node_id


def test_the_wait_times_out() -> None:
    decision = waited(NOW + DAY)
    step = Step("n", "kind", NOW + DAY, "timed_out", handle="timeout", detail={"event": "bought"})
    assert decision == Decision(AT.at("timeout"), step)


def test_an_event_counts_by_when_it_was_received() -> None:
    late = NOW + 2 * DAY
    assert waited(late, purchase(DAY)).run.node_id == "matched"
    assert waited(late, purchase(DAY + HOUR)).run.node_id == "timeout"


def test_a_late_engine_judges_an_event_by_when_it_was_received() -> None:
    wait_for = WaitForEvent("bought", (Where("payload.plan | days_since == 1"),), 3 * DAY)
    facts = msgspec.structs.replace(FACTS, later_events=(purchase(HOUR, "2026-11-19"),))
    decision = at(wait_for, facts, NOW + DAY, WAITING.claimed())
    assert decision.run == AT.at("matched")  # an event that was not received right now does not bound the next wait


@pytest.mark.parametrize(("resumed", "state"), [(True, State.RUNNING), (False, State.WAITING)])
def test_a_time_of_day_that_came_in_a_pause_has_not_been_missed(resumed: bool, state: State) -> None:
    run = msgspec.structs.replace(WAITING.claimed(), resumed=resumed)
    assert at(WaitUntil(clock=time(9)), now=NOW + DAY, run=run).run.state is state
    assert at(Collect(clock=time(9)), now=NOW + DAY, run=run).run.state is state


def test_a_wait_for_a_time_or_a_date_begins() -> None:
    def until(date: str, **more: Any) -> dict[str, Any]:
        facts = Facts("paid", Identifiers(), {"due": date}, ANN)
        return detail(at(WaitUntil(date="payload.due", **more), facts))

    assert detail(at(WaitUntil(clock=time(9)))) == {"cause": "time", "until": "2026-11-21T00:00:00Z"}
    assert until("2026-11-21") == {"cause": "date", "until": "2026-11-20T15:00:00Z"}
    assert until("2026-11-21", weekdays=(1,)) == {"cause": "date", "until": "2026-11-22T15:00:00Z"}
    assert until(utc_text(NOW + MAX_WAIT)) == {"cause": "date", "until": utc_text(NOW + MAX_WAIT)}
    assert until(utc_text(NOW + MAX_WAIT + timedelta(seconds=1))) == {"cause": "date_too_far"}


def test_a_split_follows_the_contacts_bucket() -> None:
    branches = Split((Branch("a", 50), Branch("b", 50)))
    number = bucket("a1", "n", "c1")
    way = "a" if number < 50 else "b"
    assert at(branches) == Decision(
        AT.at(way), Step("n", "kind", NOW, "branched", handle=way, detail={"share": number})
    )


NIGHT = AutomationSettings(quiet_hours=QuietHours(time(22), time(8)))  # at NOW it is 19:00 in Tokyo, nine hours ahead
LATE = datetime(2026, 11, 20, 13, 30, tzinfo=UTC)  # half past ten in Tokyo
MORNING = datetime(2026, 11, 20, 23, tzinfo=UTC)


@pytest.mark.parametrize("action", [SendInapp("t", "b"), SendEmail("s", "b")])
def test_a_message_waits_until_the_quiet_hours_end(action: Action) -> None:
    assert at(action, settings=NIGHT).run.node_id == "None"
    decision = at(action, now=LATE, settings=NIGHT)
    waiting = Run("e1", "a1", State.WAITING, "n", 1, 0, due_at=MORNING, since=LATE)
    assert decision.run == waiting
    assert detail(decision) == {"cause": "quiet_hours", "until": "2026-11-20T23:00:00Z"}
    assert at(action, now=LATE + HOUR, run=waiting.claimed(), settings=NIGHT) == Decision(waiting)
    sent = at(action, now=MORNING, run=waiting.claimed(), settings=NIGHT)
    assert (len(sent.effects), sent.run) == (1, AT.at("None"))


def test_quiet_hours_use_up_no_attempt() -> None:
    decision = at(SendInapp("t", "b"), now=LATE, run=msgspec.structs.replace(AT, attempt=4), settings=NIGHT)
    assert decision.run.claimed().attempt == 4


def test_a_late_engine_sends_by_the_real_time() -> None:
    late, early = (msgspec.structs.replace(FACTS, real_now=real_now) for real_now in (LATE, NOW - DAY))
    message = SendInapp("t", "b")
    assert at(message, late, settings=NIGHT).run.due_at == MORNING
    sent = at(message, early, settings=NIGHT)
    assert sent.run.node_id == "None"
    times = [apply_effects(facts, sent.effects, NOW).history.messages_at for facts in (late, early)]
    assert times == [(LATE,), (NOW,)]
    delay = delay_after(INAPP.delays_s, 1, "a1/")
    assert delay is not None
    assert at(message, msgspec.structs.replace(NOBODY, real_now=LATE)).run.due_at == LATE + delay


def test_the_filters_of_a_wait_see_the_later_event() -> None:
    paths = {"event": "bought", "email": "eve@b.co", "payload.plan": "pro", "contact.tier": "gold", "contactId": "c1"}
    later = LaterEvent(NOW + HOUR, "bought", Identifiers(email="eve@b.co"), {"plan": "pro"}, "v1")
    facts = msgspec.structs.replace(FACTS, later_events=(later,), joined=(purchase(HOUR),))
    wait_for = WaitForEvent("bought", tuple(Filter(path, "eq", value) for path, value in paths.items()), DAY)
    assert at(wait_for, facts, NOW + 2 * HOUR, WAITING.claimed()).run.node_id == "matched"
    assert [event["event"] for event in facts.context_of(later)["events"]] == ["paid", "bought"]


def test_webhooks_ignore_quiet_hours() -> None:
    assert at(SendWebhook("https://a.co"), now=LATE, settings=NIGHT).run.node_id == "None"


CAP = AutomationSettings(frequency_cap=FrequencyCap(2, DAY))


def sent_at(*moments: datetime) -> Facts:
    return msgspec.structs.replace(FACTS, history=ContactHistory(messages_at=moments))


@pytest.mark.parametrize("action", [SendInapp("t", "b"), SendEmail("s", "b")])
def test_a_message_over_the_cap_is_skipped_and_the_run_continues(action: Action) -> None:
    decision = at(action, sent_at(NOW - HOUR, NOW - DAY / 2), settings=CAP)
    step = Step("n", "kind", NOW, "skipped", detail={"cause": "frequency_cap", "messages": 2})
    assert decision == Decision(AT.at("None"), step)


def test_the_period_of_the_cap_moves_with_the_clock() -> None:
    assert at(SendInapp("t", "b"), sent_at(NOW - HOUR, NOW - DAY), settings=CAP).effects
    assert not at(SendInapp("t", "b"), sent_at(NOW - HOUR, NOW - DAY + HOUR), settings=CAP).effects


@pytest.mark.parametrize(
    ("zone", "before", "day_begins"),
    [
        ("UTC", "2026-11-19T23:59:59.999999Z", "2026-11-20T00:00:00Z"),
        ("Asia/Tokyo", "2026-11-19T14:59:59.999999Z", "2026-11-19T15:00:00Z"),
        ("nowhere", "2026-11-19T22:59:59.999999Z", "2026-11-19T23:00:00Z"),  # that of the automation: Zurich
        (None, "2026-11-19T22:59:59.999999Z", "2026-11-19T23:00:00Z"),
    ],
)
def test_a_cap_by_day_counts_from_midnight_by_the_clock_of_the_contact(
    zone: str | None, before: str, day_begins: str
) -> None:
    settings = AutomationSettings(frequency_cap=FrequencyCap(1, LONGEST_DAY, "tz"), timezone="Europe/Zurich")
    contact = msgspec.structs.replace(FACTS.contact, attributes={"tz": zone})

    def outcome(sent: str) -> str:
        facts = msgspec.structs.replace(sent_at(datetime.fromisoformat(sent)), contact=contact)
        step = at(SendInapp("t", "b"), facts, now=NOW, settings=settings).step
        assert step is not None
        return step.outcome

    assert (outcome(before), outcome(day_begins)) == ("sent", "skipped")


def test_messages_of_the_run_count_towards_the_cap_and_webhooks_do_not() -> None:
    facts = sent_at()
    facts = apply_effects(facts, (WebhookMessage("w", "n", "https://a.co", ""),), NOW)
    facts = apply_effects(
        facts, (InappMessage("m", "n", evm_wallet("c"), "t", "b"), EmailMessage("k", "n", "a@b.co", "s", "b")), NOW
    )
    assert facts.history.messages_at == (NOW, NOW)
    assert at(SendWebhook("https://a.co"), facts, settings=CAP).effects
    assert not at(SendInapp("t", "b"), facts, settings=CAP).effects


def test_an_opt_out_is_checked_before_the_address() -> None:
    without_addresses = msgspec.structs.replace(sent_at(NOW, NOW), contact=ContactState("c1"))
    assert at(SendInapp("t", "b"), without_addresses, settings=CAP).run.state is State.RUNNING


@pytest.mark.parametrize(
    "wallet",
    [
        "so11111111111111111111111111111111111111112",
        "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq",
        "vitalik.eth",
        "0xann",
        "0xabc",
        f"0x{0:064x}",
    ],
)
def test_a_push_to_a_wallet_that_can_never_sign_in_is_undeliverable(wallet: str) -> None:
    facts = Facts("paid", Identifiers(wallet), {}, ContactState("c1"))
    decision = at(SendInapp("hi", "there"), facts)
    assert decision.step is not None
    assert (decision.step.outcome, decision.step.detail, decision.effects) == (
        "undeliverable",
        {"cause": "undeliverable", "error": "only EVM wallets (0x…) can sign in"},
        (),
    )
    assert decision.run == AT.at("None")


NOBODY = Facts("paid", Identifiers(), {}, ContactState("c1"))
NO_VALUE = "the value 'name' is missing"


@pytest.mark.parametrize(
    ("action", "facts", "cause", "error"),
    [
        (SendInapp("a", "b"), NOBODY, "no_wallet", "neither the event nor the contact has a wallet"),
        (SendEmail("a", "b"), NOBODY, "no_email", "neither the event nor the contact has an email address"),
        (SendInapp("{{ name }}", "b"), FACTS, "missing_value", NO_VALUE),
        (SendEmail("a", "{{ contact.name }}"), FACTS, "missing_value", "the value before it has no key 'name'"),
        (SendWebhook("https://a.co/{{ name }}"), FACTS, "missing_value", NO_VALUE),
        (SendWebhook("https://a.co", {"a": ["{{ name }}"]}), FACTS, "missing_value", NO_VALUE),
        (SendWebhook("https://a.co", "{{ [] | first }}"), FACTS, "missing_value", "an empty list has no first element"),
    ],
)
def test_a_message_that_lacks_something_is_skipped_or_fails(
    action: MessageAction, facts: Facts, cause: str, error: str
) -> None:
    decision = at(msgspec.structs.replace(action, on_missing="skip"), facts)
    assert decision == Decision(AT.at("None"), Step("n", "kind", NOW, "skipped", detail=detail(decision)))
    assert detail(decision)["cause"] == cause
    assert detail(decision)["error"].startswith(error.removesuffix(" element"))
    failed = at(action, facts)
    assert failed.run.state is (State.DEAD if cause == "missing_value" else State.RETRYING)
    assert detail(failed) == {"cause": "template_error" if cause == "missing_value" else cause} | {
        "error": detail(decision)["error"]
    }


@pytest.mark.parametrize("text", ["{{ amount + html }}", "{{ 1 / 0 }}", "{% for x in amount %}{% endfor %}"])
def test_a_text_with_a_wrong_value_fails_where_a_missing_one_is_skipped(text: str) -> None:
    decision = at(SendEmail("a", text, on_missing="skip"))
    assert (decision.run.state, decision.run.outcome) == (State.DEAD, "template_error")


def test_a_fallback_takes_the_place_of_a_missing_value() -> None:
    (message,) = at(SendEmail("a", "{{ name | default('you') }}", on_missing="skip")).effects
    assert isinstance(message, EmailMessage)
    assert message.body == "you"
