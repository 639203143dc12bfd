"""The interpreter decides node by node, also on random graphs."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.inapp.wallet import evm_wallet
from workbench.language.actions import Action, AddTag, Condition, Exit, InvalidAction, SendInapp, TriggerNode
from workbench.language.advance import advance
from workbench.language.channel import InappMessage, RetryPolicy
from workbench.language.contact import ContactState, merge_identifiers
from workbench.language.decision import Decision
from workbench.language.event import Identifiers
from workbench.language.facts import Facts, apply_effects, full_context
from workbench.language.filter import Filter
from workbench.language.graph import Edge, Graph, Node
from workbench.language.problem import Problem
from workbench.language.run import TRANSITIONS, Effect, Run, State, Step, TagAdded, delay_after, message_id

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
ANN = ContactState("c1", Identifiers(evm_wallet("c"), "ann@b.co", "u1"), {"tier": "gold"}, ("old",), ("whales",))
FACTS = Facts("paid", Identifiers(), {"amount": Decimal("2.50")}, ANN)
START = Run("e1", "a1").claimed()


def line(*actions: Action) -> Graph:
    """Return a graph: trigger > first action > second …, with ids `0`, `1`, `2` …"""
    nodes = [Node(str(index), _kind(action), action) for index, action in enumerate((TriggerNode(), *actions))]
    edges = [Edge("", str(index), str(index + 1), _handle(nodes[index])) for index in range(len(actions))]
    return Graph(tuple(nodes), tuple(edges))


def _kind(action: Action) -> str:
    kinds = {TriggerNode: "app_event", SendInapp: "send_inapp", AddTag: "add_tag", Condition: "condition", Exit: "exit"}
    return kinds.get(type(action), "odd")


def _handle(node: Node) -> str | None:
    return "true" if isinstance(node.action, Condition) else None


def at(node_id: str, step: int = 1, attempt: int = 1) -> Run:
    return Run("e1", "a1", State.RUNNING, node_id, step, attempt)


def decide_all(graph: Graph, facts: Facts) -> list[Decision]:
    """Return the decisions of a new run until it waits or ends; each one sees the effects of the earlier ones."""
    run, decisions = START, list[Decision]()
    while run.state is State.RUNNING:
        decisions.append(advance(graph, run, facts, NOW))
        run, facts = decisions[-1].run, apply_effects(facts, decisions[-1].effects, NOW)
    return decisions


def test_the_trigger_is_entered() -> None:
    decision = advance(line(Exit()), START, FACTS, NOW)
    assert decision == Decision(at("1"), Step("0", "app_event", NOW, "entered"))


def test_a_tag_is_an_effect_that_later_nodes_see() -> None:
    decision = advance(line(AddTag("vip")), at("1"), FACTS, NOW)
    done = Run("e1", "a1", State.COMPLETED, "1", 2, 1, "completed")
    assert decision == Decision(done, Step("1", "add_tag", NOW, "tagged", detail={"tag": "vip"}), (TagAdded("vip"),))
    assert apply_effects(FACTS, decision.effects, NOW).contact.tags == ("old", "vip")
    assert apply_effects(FACTS, (TagAdded("old"),), NOW) is FACTS


def test_a_condition_follows_true_or_false_and_records_its_verdicts() -> None:
    graph = line(Condition((Filter("amount", "eq", Decimal("2.5")),)), Exit())
    decision = advance(graph, at("1"), FACTS, NOW)
    verdict = {"path": "amount", "operator": "eq", "value": Decimal("2.5"), "passed": True, "present": True}
    detail = {"verdicts": [verdict | {"actual": Decimal("2.50")}]}
    assert decision == Decision(at("2", 2), Step("1", "condition", NOW, "branched", handle="true", detail=detail))


def test_i10_a_condition_on_a_missing_value_is_false() -> None:
    graph = line(Condition((Filter("contact.country", "eq", "CH"),)), Exit())
    decision = advance(graph, at("1"), FACTS, NOW)
    assert decision.step is not None
    assert decision.step.handle == "false"
    assert (decision.run.state, decision.run.outcome) == (State.COMPLETED, "completed")


def test_a_condition_without_filters_is_true() -> None:
    assert advance(line(Condition(()), Exit()), at("1"), FACTS, NOW).run.node_id == "2"


def test_addresses_are_masked_in_recorded_verdicts() -> None:
    paths = ("email", "contact.email", "contact.email.x", "contact")
    decision = advance(line(Condition(tuple(Filter(path, "exists") for path in paths)), Exit()), at("1"), FACTS, NOW)
    assert decision.step is not None
    email, own, nothing, whole = (verdict["actual"] for verdict in decision.step.detail["verdicts"])
    assert (email, own, nothing, whole["email"]) == ("a•••@b.co", "a•••@b.co", None, "a•••@b.co")


def test_an_exit_ends_the_entry() -> None:
    decision = advance(line(Exit(), AddTag("vip")), at("1"), FACTS, NOW)
    assert decision == Decision(Run("e1", "a1", State.EXITED, "1", 2, 1, "exit"), Step("1", "exit", NOW, "exited"), ())


def test_a_message_is_rendered_for_the_contacts_wallet() -> None:
    graph = line(SendInapp("Hi {{ contact.tier }}", "You paid {{ amount }}", {"k": 1}))
    decision = advance(graph, at("1", attempt=3), FACTS, NOW)
    message = InappMessage(message_id("e1", "1"), "1", evm_wallet("c"), "Hi gold", "You paid 2.50", {"k": 1})
    assert decision.effects == (message,)
    assert decision.step == Step("1", "send_inapp", NOW, "sent", 3, detail={"messageId": message.id})


def test_i7_the_wallet_of_the_event_wins() -> None:
    facts = Facts("paid", Identifiers(evm_wallet("e")), {}, ANN)
    decision = advance(line(SendInapp("t", "b")), at("1"), facts, NOW)
    assert [effect.wallet_address for effect in decision.effects if isinstance(effect, InappMessage)] == [
        evm_wallet("e")
    ]


def test_i6_without_a_wallet_the_step_is_retried_and_ends_as_dead() -> None:
    facts = Facts("paid", Identifiers(), {}, ContactState("c1"), retries=RetryPolicy((10, 60)))
    graph = line(SendInapp("t", "b"))
    first = advance(graph, at("1"), facts, NOW)
    assert first.run.state is State.RETRYING
    assert first.run.due_at == NOW + (delay_after((10, 60), 1, "a1/") or timedelta(0))
    assert first.run.error == "no_wallet: neither the event nor the contact has a wallet"
    last = advance(graph, at("1", attempt=3), facts, NOW)
    assert (last.run.state, last.run.outcome, last.run.node_id, last.run.step) == (State.DEAD, "no_wallet", "1", 1)
    assert last.step is not None
    assert (last.step.outcome, last.step.attempt, last.step.detail["cause"]) == ("failed", 3, "no_wallet")
    assert not last.effects


def test_i6_a_wallet_found_between_attempts_is_used() -> None:
    decision = advance(line(SendInapp("t", "b")), at("1", attempt=2), FACTS, NOW)
    assert decision.run.state is State.COMPLETED


def test_a_template_error_is_dead_at_once_with_its_reason() -> None:
    decision = advance(line(SendInapp("t", "{{ nope }}")), at("1"), FACTS, NOW)
    assert (decision.run.state, decision.run.outcome) == (State.DEAD, "template_error")
    assert decision.run.error == "template_error: the value 'nope' is missing"


def test_i2_without_a_published_version_an_entry_completes_without_a_step() -> None:
    decision = advance(None, START, FACTS, NOW)
    assert decision == Decision(Run("e1", "a1", State.COMPLETED, attempt=1, outcome="no_published_version"))


def test_a_cancelled_automation_cancels_before_anything_else() -> None:
    facts = Facts("paid", Identifiers(), {}, ANN, cancelled="automation_inactive")
    decision = advance(None, at("1"), facts, NOW)
    assert decision == Decision(Run("e1", "a1", State.CANCELLED, "1", 1, 1, "automation_inactive"))


def test_a_missing_node_is_dead() -> None:
    for graph, run, node_id in [(line(Exit()), at("gone"), "'gone'"), (Graph(), START, "None")]:
        error = f"node_missing: {node_id} is not in the graph"
        dead = msgspec.structs.replace(run, state=State.DEAD, outcome="node_missing", error=error)
        assert advance(graph, run, FACTS, NOW) == Decision(dead)


def test_a_pause_uses_up_no_attempt() -> None:
    paused = msgspec.structs.replace(FACTS, paused=True)
    for attempt in (1, 3):
        run = at("1", attempt=attempt)
        after = msgspec.structs.replace(run, state=State.PAUSED, attempt=attempt - 1)
        assert advance(line(Exit()), run, paused, NOW) == Decision(after)


def test_attempts_without_an_outcome_run_out() -> None:
    decision = advance(line(AddTag("vip")), at("1", attempt=7), FACTS, NOW)
    assert (decision.run.state, decision.run.outcome) == (State.DEAD, "attempts_exhausted")


def test_an_invalid_node_is_dead_unless_it_replaces_the_trigger() -> None:
    invalid = InvalidAction((Problem("f", "is odd"),))
    assert advance(line(invalid), at("1"), FACTS, NOW).run.error == "node_invalid: f: is odd"
    stand_in = Graph((Node("a", "my_trigger", invalid), Node("b", "exit", Exit())), (Edge("", "a", "b"),))
    entered = advance(stand_in, START, FACTS, NOW)
    assert entered.run.node_id == "b"
    assert entered.step is not None
    assert (entered.step.kind, entered.step.outcome) == ("app_event", "entered")
    broken = Graph((Node("a", "send_inapp", invalid),), ())
    assert advance(broken, START, FACTS, NOW).run.outcome == "node_invalid"


def test_a_loop_in_a_draft_ends() -> None:
    ring = Graph(
        (Node("a", "add_tag", AddTag("x")), Node("b", "add_tag", AddTag("y"))), (Edge("", "a", "b"), Edge("", "b", "a"))
    )
    decisions = decide_all(ring, FACTS)
    assert [decision.run.outcome for decision in decisions] == [None, None, "loop"]
    error = "the graph leads back to a node that was visited before"
    assert decisions[-1].run == Run("e1", "a1", State.DEAD, "a", 2, 1, "loop", f"loop: {error}")


def test_all_steps_without_a_wait_run_in_one_go() -> None:
    graph = line(AddTag("vip"), Condition((Filter("contact.tags", "contains", "vip"),)), SendInapp("t", "b"), Exit())
    decisions = decide_all(graph, FACTS)
    assert [decision.step.outcome for decision in decisions if decision.step] == [
        "entered",
        "tagged",
        "branched",
        "sent",
        "exited",
    ]
    assert decisions[-1].run == Run("e1", "a1", State.EXITED, "4", 5, 1, "exit")


def test_conditions_and_texts_see_the_flat_context_and_the_real_contact() -> None:
    payload: dict[str, Any] = {"contact": "mine", "payload": 5, "email": "x", "amount": 1}
    facts = Facts("paid", Identifiers(evm_wallet("e"), None, "u2"), payload, ANN)
    assert full_context(facts) == {
        "event": "paid",
        "contactId": "c1",
        "walletAddress": evm_wallet("e"),
        "email": "x",
        "externalId": "u2",
        "amount": 1,
        "payload": payload,
        "contact": {
            "id": "c1",
            "tier": "gold",
            "walletAddress": evm_wallet("c"),
            "email": "ann@b.co",
            "externalId": "u1",
            "tags": ["old"],
            "segments": ["whales"],
        },
    }


def test_attributes_do_not_override_identifiers() -> None:
    contact = ContactState("c1", Identifiers(email="ann@b.co"), {"email": "x", "id": "y", "tags": "z", "segments": 1})
    context = full_context(Facts("paid", Identifiers(), {}, contact))["contact"]
    assert context == {"email": "ann@b.co", "id": "c1", "tags": [], "segments": []}


def test_identifiers_of_the_event_take_precedence() -> None:
    identifiers = merge_identifiers(Identifiers("w", None, None, "W"), Identifiers("v", "e", "x", "V"))
    assert identifiers == Identifiers("w", "e", "x")


actions = st.one_of(
    st.builds(AddTag, st.sampled_from(["a", "b", "old"])),
    st.builds(SendInapp, st.just("t"), st.sampled_from(["b", "{{ amount }}", "{{ nope }}"])),
    st.builds(
        Condition,
        st.tuples(st.builds(Filter, st.sampled_from(["amount", "contact.tags"]), st.just("contains"), st.just("a"))),
    ),
    st.just(Exit()),
    st.just(InvalidAction((Problem("f", "is odd"),))),
)


@st.composite
def acyclic_graphs(draw: st.DrawFn) -> Graph:
    """Return a graph without cycles, which need not be valid otherwise."""
    chosen = draw(st.lists(actions, max_size=8))
    nodes = [Node(str(index), _kind(action), action) for index, action in enumerate([TriggerNode(), *chosen])]
    pairs = [(low, high) for high in range(len(nodes)) for low in range(high)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=12)) if pairs else []
    handles = st.sampled_from([None, "true", "false"])
    return Graph(tuple(nodes), tuple(Edge("", str(low), str(high), draw(handles)) for low, high in edges))


@st.composite
def facts(draw: st.DrawFn) -> Facts:
    """Return facts that a step may depend on."""
    sent = draw(st.sampled_from([Identifiers(), Identifiers(evm_wallet("e"))]))
    contact = draw(st.sampled_from([ANN, ContactState("c2"), ContactState("c3", tags=("a",))]))
    cancelled = draw(st.sampled_from([None, None, None, "automation_inactive"]))
    return Facts("paid", sent, {"amount": Decimal("2.50")}, contact, cancelled)


@given(acyclic_graphs(), facts())
def test_decisions_follow_the_edges_to_a_legal_state(graph: Graph, facts_before: Facts) -> None:
    run, decisions = START, decide_all(graph, facts_before)
    for decision in decisions:
        assert decision.run.state is State.RUNNING or (run.state, decision.run.state) in TRANSITIONS
        assert run.step <= decision.run.step <= run.step + 1
        run = decision.run
    assert run.state not in (State.RUNNING, State.PENDING)
    assert (run.due_at is not None) is (run.state is State.RETRYING)
    steps = [decision.step for decision in decisions if decision.step]
    assert len(steps) <= len(graph.nodes)
    for step, following in pairwise(steps):
        assert graph.next_node_ids[step.node_id, step.handle] == following.node_id


@given(acyclic_graphs(), facts())
def test_decisions_depend_only_on_their_arguments(graph: Graph, facts_before: Facts) -> None:
    first = decide_all(graph, facts_before)
    assert decide_all(graph, facts_before) == first
    ids = [effect.id for decision in first for effect in decision.effects if isinstance(effect, InappMessage)]
    assert len(ids) == len(set(ids))


@given(acyclic_graphs(), facts())
def test_a_run_resumed_from_its_record_makes_the_same_decisions(graph: Graph, facts_before: Facts) -> None:
    """The engine does the same after a crash: it loads run and facts, and advances once."""
    decisions = decide_all(graph, facts_before)
    run, current = START, facts_before
    effects: list[Effect] = []
    while run.state is State.RUNNING:
        decision = advance(graph, Run(*(getattr(run, name) for name in Run.__struct_fields__)), current, NOW)
        effects += decision.effects
        run, current = decision.run, apply_effects(current, decision.effects, NOW)
    assert run == decisions[-1].run
    assert effects == [effect for decision in decisions for effect in decision.effects]
