"""Sentences and Python code contain the whole automation: reading them returns an identical payload."""

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.language.strategies import WHERES, any_graphs, filters, sound_graphs
from tests.workbench.test_verbs import STEPS, branching, new, thanks, write
from tests.workbench.test_verbs_and_settings import winback
from workbench import Automation, InvalidAutomationError
from workbench.language.codec import normalize, same_json
from workbench.text.remainder import read, written

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
    """Return the payload of an automation from another program, with extra keys and any ids, texts and positions."""
    graph = draw(sound_graphs() | any_graphs())
    names = {str(number): draw(st.sampled_from([str(number), f"n {number}", f"é.{number}"])) for number in range(9)}
    for node in graph["nodes"]:
        node["id"] = names[node["id"]]
        if "data" in node:
            node["data"] = {
                name: draw(TEXTS) if name in _TEXT_FIELDS else value for name, value in node["data"].items()
            } | draw(KEYS)
        if draw(st.booleans()):
            node["position"] = {"x": draw(st.integers(-500, 500)), "y": draw(st.decimals(0, 9, places=2))}
    for edge in graph["edges"]:
        edge.update({end: names.get(edge[end], edge[end]) for end in ("source", "target")} | draw(KEYS))
    spec = {
        "type": draw(
            st.sampled_from(
                [
                    "app_event",
                    "custom-event",
                    "onchain_event",
                    "segment_entered",
                    "segment_left",
                    "broadcast",
                    "schedule",
                    "“”",
                ]
            )
        ),
        "filters": draw(filters),
        **draw(st.sampled_from([{}, {"where": "plan"}, {"where": "size >"}, {"where": 5}])),
        **draw(st.fixed_dictionaries({}, optional={"where": WHERES})),
    } | draw(
        st.sampled_from(
            [
                {},
                _LOGS,
                _LOGS | {"confirmations": 1, "createContacts": True},
                {"segment": "vip"},
                {"cron": "0 9 * * mon", "segment": "vip", "missed": "skip"},
                {"cron": "0 9 * * mon", "timezone": "Europe/Zurich"},
                {"event": "Deposit"},
                {"event": "a.b"},
                {"eventNames": ["b", "a:", "a"]},
                {"event": "or", "x": 1},
            ]
        )
    )
    return normalize({"name": draw(TEXTS), "triggerSpec": spec, "graph": graph | draw(KEYS)})


_LOGS = {"chainId": 1, "contract": f"0x{'ab' * 20}", "signature": "A(address to)", "walletArg": "to"}
_TEXT_FIELDS = frozenset({"title", "body", "subject", "url", "tag"})


def rebuilt(automation: Automation) -> Automation:
    """Return the automation that the Python code of an automation builds."""
    names = {"wb": SimpleNamespace(automation=new), "Decimal": Decimal}
    exec(automation.to_python(), names)
    return names["a"]  # type: ignore[return-value]


@settings(max_examples=50, deadline=None)
@given(payloads())
def test_sentences_and_python_keep_the_whole_automation(payload: dict[str, Any]) -> None:
    automation = Automation.from_json(payload)
    assert same_json(automation.to_json(), payload)
    sentences = automation.describe()
    assert same_json(Automation.from_sentences(sentences, name=payload["name"]).to_json(), payload), sentences
    assert same_json(rebuilt(automation).to_json(), payload), automation.to_python()


@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_automations_written_with_verbs_need_no_extra_fields(steps: Any) -> None:
    automation = write(steps, new().on("x"))
    graph = automation.to_json()["graph"]
    assume(len({edge["target"] for edge in graph["edges"]}) == len(graph["nodes"]) - 1)  # every step is reached
    for form in (automation.describe(), automation.to_python()):
        assert "xtra" not in form
    assert Automation.from_sentences(automation.describe(), name="Thanks").to_json() == automation.to_json()
    assert rebuilt(automation).to_json() == automation.to_json()


@pytest.mark.parametrize("body", [[], {}, 0, False, [1], "text"])
def test_every_body_of_a_webhook_is_written(body: Any) -> None:
    automation = new().on("a").send_webhook("https://a.example/x", body=body)
    for form in (automation.describe(), automation.to_python()):
        assert "xtra" not in form
    assert Automation.from_sentences(automation.describe(), name="Thanks").to_json() == automation.to_json()
    assert rebuilt(automation).to_json() == automation.to_json()


def test_sentences_have_control_and_format_characters_as_escapes() -> None:
    hostile = "\x1b[31m\x9b2J\u202e\u2028"
    automation = new().on("a").where(hostile, eq=hostile).send_inapp(title=hostile, body=f"a\n{hostile}")
    assert automation.describe().replace("\n", "").isprintable()
    assert Automation.from_sentences(automation.describe(), name="Thanks").to_json() == automation.to_json()


def test_sentences_keep_positions_and_ids_of_a_drawn_automation() -> None:
    payload = branching().to_json()
    payload["graph"]["nodes"][1] |= {
        "id": "n1",
        "position": {"x": 40, "y": 7.5},
        "data": {**payload["graph"]["nodes"][1]["data"], "label": "Pro?"},
    }
    for edge in payload["graph"]["edges"]:
        edge.update({end: "n1" for end in ("source", "target") if edge[end] == "if_plan"} | {"id": f"e-{edge['id']}"})
    sentences = Automation.from_json(payload).describe()
    assert sentences == (
        "When a deposit or trade event arrives:\n"
        "  • If contact.plan is “pro” and amountUsd is set: [n1]\n"
        "    • Add the tag “Pro customer”.\n"
        "    Otherwise:\n"
        "    • Send the in-app message “Upgrade?” if nothing is missing: “Go pro”.\n"
        "  • Add the tag “seen”.\n"
        "\n"
        "Extra fields:\n"
        '  positions = {"n1": [40, 7.5]}\n'
        "  nodes.n1.data.label = “Pro?”\n"
        "  edges.trigger-n1.id = “e-trigger-if_plan”\n"
        "  edges.n1-true-add_tag_pro_customer.id = “e-if_plan-true-add_tag_pro_customer”\n"
        "  edges.n1-false-send_inapp.id = “e-if_plan-false-send_inapp”\n"
        "  edges.add_tag_pro_customer-add_tag_seen.id = “e-add_tag_pro_customer-add_tag_seen”\n"
        "  edges.send_inapp-add_tag_seen.id = “e-send_inapp-add_tag_seen”"
    )


def test_edited_sentences_are_read() -> None:
    text = winback().describe().replace("“buyer”", "“loyal”").replace("Wait 3 days", "Wait 1 day 12 hours")
    automation = new("Win back").from_text(text)
    assert automation.name == "Win back"
    assert [node["id"] for node in automation.to_json()["graph"]["nodes"]][1:4:2] == [
        "delay_1_day_12_hours",
        "add_tag_loyal",
    ]


def test_a_trigger_without_a_verb_is_not_read_as_any_event() -> None:
    payload = thanks().to_json()
    payload["triggerSpec"] = {"type": "onchain_event", "chainId": 1, "filters": []}
    payload["graph"]["nodes"][0] |= {"type": "onchain_event", "data": {"actionType": "onchain_event"}}
    sentences = Automation.from_json(payload).describe()
    assert sentences.startswith("When “onchain_event” happens:\n  • Send the in-app message “Thanks”")
    assert same_json(Automation.from_sentences(sentences, name="Thanks").to_json(), payload)


def test_sentences_may_use_ascii_bullets_and_quotes() -> None:
    typed = 'When a a event arrives:\r\n  - Add the tag "vip".\r\n  * If x is 1:\r\n      - Stop.\r\n'
    assert Automation.from_sentences(typed, name="x").describe() == (
        "When a a event arrives:\n  • Add the tag “vip”.\n  • If x is 1:\n    • Stop."
    )


def test_the_position_of_a_removed_step_is_ignored() -> None:
    text = branching().with_extras({"positions": {"send_inapp": [1, 2], "add_tag_seen": [3, 4]}}).describe()
    shorter = Automation.from_sentences(
        text.replace("    • Send the in-app message “Upgrade?” if nothing is missing: “Go pro”.\n", ""), name="x"
    )
    places = {node["id"]: node["position"] for node in shorter.to_json()["graph"]["nodes"]}
    assert places["add_tag_seen"] == {"x": 3, "y": 4}
    assert "send_inapp" not in places


def test_a_wait_for_a_date_reads_as_a_sentence() -> None:
    automation = (
        new("Trial")
        .on("signup")
        .timezone("Europe/Zurich")
        .wait_until("09:00", weekdays=["mon", "tue"])
        .wait_until("09:00", date="contact.trial_ends", shift="-3d")
        .then(lambda b: b.add_tag("ending"))
        .otherwise(lambda b: b)
        .add_tag("asked")
    )
    assert automation.describe() == (
        "When a signup event arrives:\n"
        "  (by the clock of Europe/Zurich if the contact has no time zone)\n"
        "  • Wait until: at 09:00 on Monday or Tuesday.\n"
        "  • Wait until: the date contact.trial_ends, 3 days earlier at 09:00. If reached:\n"
        "    • Add the tag “ending”.\n"
        "  • Add the tag “asked”."
    )
    assert Automation.from_sentences(automation.describe(), name="Trial").to_json() == automation.to_json()
    assert rebuilt(automation).to_json() == automation.to_json()
    assert ".otherwise(lambda b: b)" in automation.to_python()


def test_a_collect_reads_as_a_sentence() -> None:
    automation = (
        new("Digest")
        .on("trade")
        .collect("1h 30m", key="pair", max=10)
        .collect(until="09:00")
        .send_email("Trades", "{% for e in events %}{{ e.pair }}{% endfor %}")
    )
    assert automation.describe() == (
        "When a trade event arrives:\n"
        "  • Collect events: for 1 hour 30 minutes with the same pair, at most 10 events.\n"
        "  • Collect events: until 09:00.\n"
        "  • Send the email “Trades” if nothing is missing: “{% for e in events %}{{ e.pair }}{% endfor %}”."
    )
    assert Automation.from_sentences(automation.describe(), name="Digest").to_json() == automation.to_json()
    assert rebuilt(automation).to_json() == automation.to_json()
    assert '.collect("1h 30m", key="pair", max=10)' in automation.to_python()
    assert '.collect(until="09:00")' in automation.to_python()


def test_branches_that_join_and_end_are_written_with_verbs() -> None:
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
    assert same_json(rebuilt(automation).to_json(), automation.to_json())
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
    assert "50 % to “c”:\n    • Nothing more.\n  • Add the tag “first”. [n1]" in automation.describe()


def test_a_step_that_several_branches_lead_to_is_written_once() -> None:
    automation = (
        new("Back")
        .on("a")
        .split({"a": 20, "b": 30, "c": 50})
        .branch("a", lambda b: b.add_tag("first"))
        .branch("b", lambda b: b.delay("1d").go_to("add_tag_first"))
        .branch("c", lambda b: b.delay("2d"))
    )
    assert "• Continue at [add_tag_first]." in automation.describe()
    assert '.branch("b", lambda b: b.delay("1d").go_to("add_tag_first"))' in automation.to_python()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected sentences"),
        ("If a deposit comes", "line 1, column 1: expected “When”, found If a deposit comes"),
        ("When deposit arrives:", "line 1, column 6: expected “any event” or “a”, found deposit arrives:"),
        ("When contract 0x12 on chain 1", "line 1, column 15: expected the address: 0x and 40 hex digits in “quotes”"),
        ("When “other”:", "line 1, column 13: expected “happens”, found :"),
        ("When a deposit event arrives, and amount is high:", r"line 1, column 45: expected a value: “a text”, "),
        ("When a x event arrives:\n  • Sing a song.",
         "line 2, column 5: expected the start of a step: Send the in-app message, "),
        ("When a x event arrives:\n\n  • Wait 3 moons.",
         "line 3, column 10: expected a duration, like 2 days 3 hours, found 3 moons"),
        ("When a x event arrives:\n  • Add the tag vip.", "line 2, column 17: expected a tag in “quotes”"),
        ("When a x event arrives:\n  • Add the tag “vip", "line 2, column 17: expected a tag closed with ”"),
        ("When a x event arrives:\n  • Stop. Please", r"line 2, column 11: expected the end of the line, found Please"),
        ("When a x event arrives:\n  • Stop.\n    • Stop.", "line 3, column 5: expected a step that begins with •"),
        ("When a x event arrives:\n  • Send the email “a”:",
         "line 2, column 24: expected a text in “quotes”, or below it"),
        ("When a x event arrives:\n  • Continue at [n9].", "line 2: step not found: 'n9'"),
        ("When a x event arrives:\n  (twice)", "line 2, column 4: expected “once per contact” or “once in”"),
        ("When a x event arrives:\n  • Stop. [a]\n  • Stop. [a]", "line 3: another step has the id 'a'"),
        ("When a x event arrives:\n  • Stop.\nExtra fields:\n  nodes.n9.data.a = 1",
         r"nodes\.n9\.data\.a: nodes\.n9\.data does not exist"),
        ("When a x event arrives:\n  • Stop.\nExtra fields:\n  positions = 3", "positions are written like"),
        ("When a x event arrives:\n  • Stop.\nExtra fields:\n  nonsense",
         "line 4, column 11: expected “=”, found the end of the line"),
    ],
)  # fmt: skip
def test_errors_name_the_line_and_what_was_expected(text: str, words: str) -> None:
    with pytest.raises(InvalidAutomationError, match=words):
        Automation.from_sentences(text, name="x")


@given(st.lists(TEXTS, min_size=1))
def test_paths_read_back(keys: list[str]) -> None:
    assert list(read(written(keys))) == keys


@pytest.mark.parametrize("path", ["", ".", "a.", "a b", 'a."b', "a.3.{}"])
def test_an_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidAutomationError, match="is not a path"):
        read(path)
