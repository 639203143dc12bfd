"""Sentences and Python: both say everything, and reading them gives the same automation to the last digit."""

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from api.language.codec import normalise
from tests.language.drawing import any_graphs, filters, sound_graphs
from tests.workbench.test_waiting_and_rules import winback
from tests.workbench.test_writing import STEPS, branching, new, thanks, write
from workbench import Automation, DraftError
from workbench.exact import same
from workbench.texts.besides import read, written

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.decimals(-9, 9, places=3) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
KEYS = st.dictionaries(
    st.sampled_from(["label", "a = b", "data", "x.y", '"', "\\\n", "position", "measured"]), JSON, max_size=2
)


@st.composite
def payloads(draw: st.DrawFn) -> dict[str, Any]:
    """Return the payload of any automation: drawn elsewhere, with keys, ids, texts and places of its own."""
    graph = draw(sound_graphs() | any_graphs())
    called = {str(number): draw(st.sampled_from([str(number), f"n {number}", f"é.{number}"])) for number in range(9)}
    for node in graph["nodes"]:
        node["id"] = called[node["id"]]
        if "data" in node:
            node["data"] = {name: draw(TEXTS) if name in _TOLD else each for name, each in node["data"].items()} | draw(
                KEYS
            )
        if draw(st.booleans()):
            node["position"] = {"x": draw(st.integers(-500, 500)), "y": draw(st.decimals(0, 9, places=2))}
    for edge in graph["edges"]:
        edge.update({end: called.get(edge[end], edge[end]) for end in ("source", "target")} | draw(KEYS))
    spec = {
        "type": draw(st.sampled_from(["app_event", "custom-event", "onchain_event", "“”"])),
        "filters": draw(filters),
    } | draw(
        st.sampled_from(
            [
                {},
                _LOGS,
                _LOGS | {"confirmations": 1, "createContacts": True},
                {"event": "Deposit"},
                {"event": "a.b"},
                {"eventNames": ["b", "a:", "a"]},
                {"event": "or", "x": 1},
            ]
        )
    )
    return normalise({"name": draw(TEXTS), "triggerSpec": spec, "graph": graph | draw(KEYS)})


_LOGS = {"chainId": 1, "contract": f"0x{'ab' * 20}", "signature": "A(address to)", "walletArg": "to"}
_TOLD = frozenset({"title", "body", "subject", "url", "tag"})


def again(automation: Automation) -> Automation:
    """Return what the Python of an automation builds."""
    names = {"wb": SimpleNamespace(automation=new), "Decimal": Decimal}
    exec(automation.to_python(), names)
    return names["a"]  # type: ignore[return-value]


@settings(max_examples=50, deadline=None)
@given(payloads())
def test_every_form_of_an_automation_says_all_of_it(payload: dict[str, Any]) -> None:
    automation = Automation.from_json(payload)
    assert same(automation.to_json(), payload)
    told = automation.describe()
    assert same(Automation.from_sentences(told, name=payload["name"]).to_json(), payload), told
    assert same(again(automation).to_json(), payload), automation.to_python()


@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_what_the_verbs_write_needs_nothing_beside_the_words(steps: Any) -> None:
    automation = write(steps, new().on("x"))
    graph = automation.to_json()["graph"]
    assume(len({edge["target"] for edge in graph["edges"]}) == len(graph["nodes"]) - 1)  # every step is reached
    for form in (automation.describe(), automation.to_python()):
        assert "eside" not in form
    assert Automation.from_sentences(automation.describe(), name="Thanks").to_json() == automation.to_json()
    assert again(automation).to_json() == automation.to_json()


def test_a_drawn_automation_stays_where_it_was_drawn() -> None:
    payload = branching().to_json()
    payload["graph"]["nodes"][1] |= {
        "id": "n1",
        "position": {"x": 40, "y": 7.5},
        "data": {**payload["graph"]["nodes"][1]["data"], "label": "Pro?"},
    }
    for edge in payload["graph"]["edges"]:
        edge.update({end: "n1" for end in ("source", "target") if edge[end] == "if_plan"} | {"id": f"e-{edge['id']}"})
    told = Automation.from_json(payload).describe()
    assert told == (
        "When a deposit or trade event arrives:\n"
        "  • If contact.plan is “pro” and amountUsd is present: [n1]\n"
        "    • Add the tag “Pro customer”.\n"
        "    Otherwise:\n"
        "    • Send the in-app message “Upgrade?”: “Go pro”.\n"
        "  • Add the tag “seen”.\n"
        "\n"
        "Beside the words:\n"
        '  positions = {"n1": [40, 7.5]}\n'
        "  nodes.n1.data.label = “Pro?”\n"
        "  edges.trigger-n1.id = “e-trigger-if_plan”\n"
        "  edges.n1-true-add_tag_pro_customer.id = “e-if_plan-true-add_tag_pro_customer”\n"
        "  edges.n1-false-send_inapp.id = “e-if_plan-false-send_inapp”\n"
        "  edges.add_tag_pro_customer-add_tag_seen.id = “e-add_tag_pro_customer-add_tag_seen”\n"
        "  edges.send_inapp-add_tag_seen.id = “e-send_inapp-add_tag_seen”"
    )


def test_sentences_may_be_changed_and_read() -> None:
    text = winback().describe().replace("“buyer”", "“loyal”").replace("Wait 3 days", "Wait 1 day 12 hours")
    automation = new("Win back").retold(text)
    assert automation.name == "Win back"
    assert [node["id"] for node in automation.to_json()["graph"]["nodes"]][1:4:2] == [
        "delay_1_day_12_hours",
        "add_tag_loyal",
    ]


def test_a_trigger_of_another_kind_is_not_taken_for_any_event() -> None:
    payload = thanks().to_json()
    payload["triggerSpec"] = {"type": "onchain_event", "chainId": 1, "filters": []}
    payload["graph"]["nodes"][0] |= {"type": "onchain_event", "data": {"actionType": "onchain_event"}}
    told = Automation.from_json(payload).describe()
    assert told.startswith("When “onchain_event” happens:\n  • Send the in-app message “Thanks”")
    assert same(Automation.from_sentences(told, name="Thanks").to_json(), payload)


def test_sentences_may_be_typed_on_any_keyboard() -> None:
    typed = 'When a a event arrives:\r\n  - Add the tag "vip".\r\n  * If x is 1:\r\n      - Stop.\r\n'
    assert Automation.from_sentences(typed, name="x").describe() == (
        "When a a event arrives:\n  • Add the tag “vip”.\n  • If x is 1:\n    • Stop."
    )


def test_a_step_that_is_gone_takes_its_place_with_it() -> None:
    text = branching().besides({"positions": {"send_inapp": [1, 2], "add_tag_seen": [3, 4]}}).describe()
    shorter = Automation.from_sentences(
        text.replace("    • Send the in-app message “Upgrade?”: “Go pro”.\n", ""), name="x"
    )
    places = {node["id"]: node["position"] for node in shorter.to_json()["graph"]["nodes"]}
    assert places["add_tag_seen"] == {"x": 3, "y": 4}
    assert "send_inapp" not in places


def test_ways_that_join_and_leave_are_written_with_verbs() -> None:
    automation = (
        new("Knots")
        .on("a", node="t1")
        .split({"a": 20, "b": 30, "c": 50})
        .branch("a", lambda b: b.add_tag("first", node="n1"))
        .branch("b", lambda b: b.end())
        .branch("c", lambda b: b.go_to("n1"))
        .step("teleport", {"to": "moon"})
        .exit()
    )
    assert same(again(automation).to_json(), automation.to_json())
    assert automation.to_python() == (
        "a = (\n"
        '    wb.automation("Knots")\n'
        '    .on("a", node="t1")\n'
        '    .split({"a": 20, "b": 30, "c": 50})\n'
        '    .branch("b", lambda b: b.end())\n'
        '    .add_tag("first", node="n1")\n'
        '    .step("teleport", {"to": "moon"})\n'
        "    .exit()\n"
        ")"
    )
    assert "50 % go along “c”:\n    • Nothing more.\n  • Add the tag “first”. [n1]" in automation.describe()


def test_a_step_that_several_ways_lead_back_to_is_referred_to() -> None:
    automation = (
        new("Back")
        .on("a")
        .split({"a": 20, "b": 30, "c": 50})
        .branch("a", lambda b: b.add_tag("first"))
        .branch("b", lambda b: b.delay("1d").go_to("add_tag_first"))
        .branch("c", lambda b: b.delay("2d"))
    )
    assert "• Go on with [add_tag_first]." in automation.describe()
    assert '.branch("b", lambda b: b.delay("1d").go_to("add_tag_first"))' in automation.to_python()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected sentences"),
        ("If a deposit comes", "line 1, column 1: expected “When”, found If a deposit comes"),
        ("When a deposit event arrives, and amount is high:", r"line 1, column 45: expected a value: “a text”, a number"),
        ("When a x event arrives:\n  • Sing a song.", "line 2, column 5: expected how a step begins: Send the in-app message, "),
        ("When a x event arrives:\n\n  • Wait 3 moons.", "line 3, column 10: expected a span of time, like 2 days 3 hours, found 3 moons"),
        ("When a x event arrives:\n  • Add the tag vip.", "line 2, column 17: expected a tag in “quotes”"),
        ("When a x event arrives:\n  • Add the tag “vip", "line 2, column 17: expected a tag closed with ”"),
        ("When a x event arrives:\n  • Stop. Please", r"line 2, column 11: expected the end of the line, found Please"),
        ("When a x event arrives:\n  • Stop.\n    • Stop.", "line 3, column 5: expected a step that begins with •"),
        ("When a x event arrives:\n  • Send the email “a”:", "line 2, column 24: expected a text in “quotes”, or below it"),
        ("When a x event arrives:\n  • Go on with [n9].", "line 2: there is no step 'n9' so far"),
        ("When a x event arrives:\n  (twice)", "line 2, column 4: expected “once per contact” or “once in”"),
        ("When a x event arrives:\n  • Stop. [a]\n  • Stop. [a]", "line 3: there is a step 'a' already"),
        ("When a x event arrives:\n  • Stop.\nBeside the words:\n  nodes.n9.data.a = 1", r"nodes\.n9\.data\.a: there is no nodes\.n9\.data any more"),
        ("When a x event arrives:\n  • Stop.\nBeside the words:\n  positions = 3", "positions are written like"),
        ("When a x event arrives:\n  • Stop.\nBeside the words:\n  nonsense", "line 4, column 11: expected “=”, found the end of the line"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_by_its_line(text: str, words: str) -> None:
    with pytest.raises(DraftError, match=words):
        Automation.from_sentences(text, name="x")


@given(st.lists(TEXTS, min_size=1))
def test_paths_read_back(keys: list[str]) -> None:
    assert list(read(written(keys))) == keys


@pytest.mark.parametrize("path", ["", ".", "a.", "a b", 'a."b', "a.3.{}"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(DraftError, match="no path"):
        read(path)
