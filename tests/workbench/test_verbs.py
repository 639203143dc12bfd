"""The verbs write exactly the contract's payload, and it round-trips."""

import inspect
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import Automation, InvalidArgumentError, InvalidAutomationError
from workbench.draft import Draft
from workbench.language.check import errors


def new(name: str = "Thanks") -> Automation:
    return Automation(Draft(name))


def thanks() -> Automation:
    return new().on("deposit").where("amountUsd", eq=100).send_inapp(title="Thanks", body="{{ amountUsd }} USD arrived")


def branching() -> Automation:
    return (
        new("Branching")
        .on("deposit", "trade")
        .when("contact.plan", eq="pro")
        .and_("amountUsd", exists=True)
        .then(lambda b: b.add_tag("Pro customer"))
        .otherwise(lambda b: b.send_inapp(title="Upgrade?", body="Go pro"))
        .add_tag("seen")
    )


def edges(automation: Automation) -> set[tuple[str, str | None, str]]:
    return {
        (edge["source"], edge.get("sourceHandle"), edge["target"]) for edge in automation.to_json()["graph"]["edges"]
    }


def test_an_automation_is_written_as_the_contracts_payload() -> None:
    payload = thanks().to_json()
    assert payload == {
        "name": "Thanks",
        "triggerSpec": {
            "type": "app_event",
            "event": "deposit",
            "filters": [{"path": "amountUsd", "operator": "eq", "value": 100}],
        },
        "graph": {
            "nodes": [
                {
                    "id": "trigger",
                    "type": "app_event",
                    "position": {"x": 0, "y": 0},
                    "data": {"actionType": "app_event", "event": "deposit"},
                },
                {
                    "id": "send_inapp",
                    "type": "send_inapp",
                    "position": {"x": 0, "y": 130},
                    "data": {
                        "actionType": "send_inapp",
                        "recipientMode": "triggering_profile",
                        "title": "Thanks",
                        "body": "{{ amountUsd }} USD arrived",
                        "onMissing": "skip",
                    },
                },
            ],
            "edges": [{"id": "trigger-send_inapp", "source": "trigger", "target": "send_inapp"}],
        },
    }


def test_a_message_is_skipped_by_default_and_fails_as_the_contract_says_if_asked() -> None:
    automation = (
        new()
        .on("deposit")
        .send_inapp("Hi", "there", data={"a": 1}, on_missing="fail")
        .send_email("Hi", "there")
        .send_webhook("https://a.example", {"a": 1})
        .send_webhook("https://a.example", on_missing="fail")
    )
    choices = [node["data"].get("onMissing") for node in automation.to_json()["graph"]["nodes"][1:]]
    assert choices == [None, "skip", "skip", None]
    assert automation.describe().splitlines()[1:] == [
        '  • Send the in-app message “Hi” with {"a": 1}: “there”.',
        "  • Send the email “Hi” if nothing is missing: “there”.",
        '  • Post to https://a.example if nothing is missing with {"a": 1}.',
        "  • Post to https://a.example.",
    ]
    assert automation.to_python().count('on_missing="fail"') == 2
    (problem,) = new().on("x").send_email("a", "b", on_missing="stop").check()  # type: ignore[arg-type]
    assert str(problem) == "send_email: must be fail or skip"


def test_the_links_of_an_email_are_tracked_if_asked() -> None:
    automation = new().on("deposit").send_email("Hi", "https://a.example", track_clicks=True)
    assert automation.to_json()["graph"]["nodes"][1]["data"]["trackClicks"] is True
    sentence = "  • Send the email “Hi” with tracked links if nothing is missing: “https://a.example”."
    assert automation.describe().splitlines()[1] == sentence
    assert "track_clicks=True" in automation.to_python()
    (problem,) = new().on("x").step("send_email", {"subject": "a", "body": "b", "trackClicks": 1}).check()
    assert str(problem) == "send_email: must be true or false"


def test_a_message_has_texts_by_locale() -> None:
    texts = {"subject": "Danke {{ contact.name }}", "body": "Wir haben es"}
    automation = (
        new()
        .on("deposit")
        .locale_attribute("tongue")
        .default_locale("en")
        .send_email("Thanks", "It is here", locales={"de": texts})
    )
    assert automation.to_json()["graph"]["nodes"][1]["data"]["locales"] == {"de": texts}
    assert automation.to_json()["graph"]["settings"] == {"localeAttribute": "tongue", "defaultLocale": "en"}
    assert automation.describe().splitlines()[1:] == [
        "  (texts in the locale of tongue)",
        "  (default texts in en)",
        "  • Send the email “Thanks”, for de (subject “Danke {{ contact.name }}”, body “Wir haben es”)"
        " if nothing is missing: “It is here”.",
    ]
    assert "also in de" in automation.svg()
    (problem,) = new().on("x").send_inapp("a", "b", locales={"english": {"title": "a", "body": "b"}}).check()
    assert str(problem) == "send_inapp: must be a locale: a language such as de, or one with a region such as de-AT"


def test_branches_join_in_the_step_after_them() -> None:
    assert edges(branching()) == {
        ("trigger", None, "if_plan"),
        ("if_plan", "true", "add_tag_pro_customer"),
        ("if_plan", "false", "send_inapp"),
        ("add_tag_pro_customer", None, "add_tag_seen"),
        ("send_inapp", None, "add_tag_seen"),
    }


def test_without_otherwise_the_false_branch_leads_to_the_next_step() -> None:
    automation = new().on("deposit").when("a", eq=1).then(lambda b: b.add_tag("one")).add_tag("all")
    assert ("if_a", "false", "add_tag_all") in edges(automation)


def test_nothing_follows_an_exit() -> None:
    automation = new().on("deposit").when("a", eq=1).then(lambda b: b.exit()).add_tag("others")
    assert edges(automation) == {
        ("trigger", None, "if_a"),
        ("if_a", "true", "exit"),
        ("if_a", "false", "add_tag_others"),
    }


def test_conditions_can_be_nested() -> None:
    inner = new().on("deposit").when("a", eq=1).then(lambda b: b.when("b", eq=2).then(lambda c: c.add_tag("both")))
    assert edges(inner.add_tag("end")) >= {
        ("if_b", "true", "add_tag_both"),
        ("if_b", "false", "add_tag_end"),
        ("if_a", "false", "add_tag_end"),
    }


def test_equal_steps_get_numbered_ids() -> None:
    automation = new().on("deposit").send_inapp(title="a", body="a").send_inapp(title="b", body="b")
    assert [node["id"] for node in automation.to_json()["graph"]["nodes"]] == ["trigger", "send_inapp", "send_inapp_2"]


def test_an_automation_read_from_json_continues_like_the_one_that_was_written() -> None:
    read = Automation.from_json(branching().to_json())
    assert read.delay("1h").to_json() == branching().delay("1h").to_json()
    forked = new().on("deposit").when("a").then(lambda b: b.add_tag("x")).wait_for("trade", within="1d")
    assert Automation.from_json(forked.to_json()).exit().to_json() == forked.exit().to_json()
    open_branch = new().on("deposit").when("a").then(lambda b: b.add_tag("x"))
    assert "Beside" not in Automation.from_json(open_branch.to_json()).add_tag("y").describe()


def test_every_operator_is_written_as_in_the_contract() -> None:
    automation = (
        new()
        .on("x")
        .where("a", eq=None)
        .where("b", neq=1.5)
        .where("c", is_in=("x", "y"))
        .where("d", contains="z")
        .where("e", exists=True)
        .where("f")
    )
    assert automation.to_json()["triggerSpec"]["filters"] == [
        {"path": "a", "operator": "eq", "value": None},
        {"path": "b", "operator": "neq", "value": 1.5},
        {"path": "c", "operator": "in", "value": ["x", "y"]},
        {"path": "d", "operator": "contains", "value": "z"},
        {"path": "e", "operator": "exists"},
        {"path": "f", "operator": "exists"},
    ]


def test_a_condition_without_an_operator_is_exists() -> None:
    explicit, bare = new().on("x").when("a", exists=True), new().on("x").when("a").and_("b")
    drawn = [condition.then(lambda b: b.add_tag("t")).to_json()["graph"]["nodes"][1] for condition in (explicit, bare)]
    assert [node["data"]["filters"] for node in drawn] == [
        [{"path": "a", "operator": "exists"}],
        [{"path": "a", "operator": "exists"}, {"path": "b", "operator": "exists"}],
    ]


def test_a_verb_does_not_change_its_automation() -> None:
    before = thanks()
    payload = before.to_json()
    before.add_tag("more")
    assert before.to_json() == payload


def test_on_starts_over_so_that_a_cell_can_run_twice() -> None:
    assert thanks().on("trade").add_tag("x").to_json() == new().on("trade").add_tag("x").to_json()


def test_a_wildcard_needs_its_own_method() -> None:
    assert new().on_any_event().add_tag("x").to_json()["triggerSpec"] == {"type": "app_event"}
    with pytest.raises(InvalidArgumentError, match="on_any_event"):
        new().on()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r"^\S*value: nan is not a number that JSON has"),
        (datetime(2026, 1, 1), r"^\S*value: a time needs its zone"),  # noqa: DTZ001
    ],
)
def test_a_value_that_json_would_change_is_refused_where_it_is_written(value: object, message: str) -> None:
    with pytest.raises(InvalidAutomationError, match=message):
        new().on("deposit").where("amountUsd", eq=value)
    with pytest.raises(InvalidAutomationError, match=message):
        new().on("deposit").when("amountUsd", eq=value).then(lambda b: b.add_tag("x"))


@pytest.mark.parametrize("automation", [thanks(), branching(), new().on_any_event().exit()])
def test_json_round_trips(automation: Automation) -> None:
    payload = automation.to_json()
    assert Automation.from_json(payload).to_json() == payload


def test_foreign_json_is_unchanged() -> None:
    payload = {
        "name": "From elsewhere",
        "triggerSpec": {"type": "custom-event", "eventNames": ["A"], "extra": [1]},
        "graph": {
            "nodes": [{"id": "n1", "type": "app_event", "data": {}, "measured": {"width": 3}}],
            "edges": [],
            "viewport": {"zoom": 2},
        },
    }
    assert Automation.from_json(payload).to_json() == payload


def test_an_automation_read_from_json_can_be_extended() -> None:
    read = Automation.from_json(branching().to_json()).add_tag("later")
    assert ("add_tag_seen", None, "add_tag_later") in edges(read)
    assert not errors(read.check())


STEPS = st.recursive(
    st.sampled_from(["tag", "send", "translate", "insist", "exit"]).map(lambda kind: [kind]),
    lambda inner: st.tuples(inner, st.none() | inner, inner).map(lambda parts: [("if", parts[0], parts[1]), *parts[2]]),
    max_leaves=8,
)


def write(steps, into):
    for step in steps:
        match step:
            case "tag":
                into = into.add_tag("t")
            case "send":
                into = into.send_inapp(title="t", body="b")
            case "translate":
                into = into.send_email(
                    "t", "b", locales={"de-AT": {"subject": "“t”", "body": "a\nb"}, "x": {"y z": ""}}
                )
            case "insist":
                into = into.send_webhook("https://a.example", body={"a": 1}, on_missing="fail")
            case "exit":
                into = into.add_tag("before").exit()
            case (_, then, otherwise):
                into = into.when("a", eq=1).then(lambda b, then=then: write(then, b))
                if otherwise is not None:
                    into = into.otherwise(lambda b, otherwise=otherwise: write(otherwise, b))
    return into


@given(STEPS)
def test_any_written_automation_round_trips_and_can_be_described_and_drawn(steps) -> None:
    automation = write(steps, new().on("x"))
    payload = automation.to_json()
    assert Automation.from_json(payload).to_json() == payload
    assert automation.describe().startswith("When a x event arrives:")
    assert automation.svg().startswith("<svg")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda: new().add_tag("x"), "start .Thanks. with its event"),
        (lambda: new().where("a", eq=1), "start with the event"),
        (lambda: new().on("two words"), "not an event name"),
        (lambda: thanks().where("a", eq=1, neq=2), "write one operator for 'a'"),
        (lambda: thanks().where("a", exists=False), "otherwise"),
        (lambda: thanks().where("a", is_in="abc"), "takes a list"),
        (lambda: thanks().where("a", eq=object()), "written as JSON"),
        (lambda: thanks().add_tag("\ud800"), "written as JSON"),
        (lambda: thanks().otherwise(lambda b: b), "right after"),
        (lambda: thanks().when("a", eq=1).then(lambda b: None), "must return its steps"),
        (lambda: thanks().publish(), "not connected"),
        (lambda: new().on(["deposit", "trade"]), r"\.on\('deposit', 'trade'\)"),
        (lambda: new().on(5), "5 is not an event name"),
        (
            lambda: thanks().where("amountUsd", above=5),
            r"'above'.*eq=…, neq=…, is_in=\[…\], contains=…, exists=True, gt=…, gte=…, lt=… or lte=…",
        ),
        (lambda: thanks().where("amountUsd >"), r"'amountUsd >' is not an expression: line 1: unexpected"),
        (lambda: thanks().where("amountUsd | big"), "unknown filter 'big'"),
        (lambda: thanks().where("amountUsd", gt=[5]), "compare with a number or a text"),
        (lambda: thanks().where("amount-usd", gt=5), "its keys must be names"),
        (lambda: thanks().when(5, eq=1), "5 is not a path"),
        (lambda: thanks().send_inapp("hi"), r"'body'.*send_inapp\(title="),
        (lambda: thanks().add_tag(), r"'tag'.*\.add_tag\(\"vip\"\)"),
        (lambda: thanks().when("a", eq=1).add_tag("x"), r"write \.then\(…\)"),
        (lambda: thanks().when("a", eq=1).publish(), r"write \.then\(…\)"),
        (lambda: thanks().when("a", eq=1).then(lambda b: b.when("b", eq=1)), r"write \.then\(…\)"),
        (lambda: thanks().when("a", eq=1).then("x"), "is a function"),
        (lambda: thanks().when("a", eq=1).then(lambda: None), "is a function"),
        (lambda: thanks().send_inap(title="a", body="b"), r"did you mean \.send_inapp"),
        (lambda: Automation.from_json("x"), "triggerSpec and graph"),
        (lambda: Automation.from_json({"name": "x"}), "triggerSpec and graph"),
    ],
)
def test_wrong_calls_raise_an_error_that_shows_the_right_one(write, words) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        write()


def test_title_and_body_can_be_positional() -> None:
    assert new().on("x").send_inapp("a", "b").to_json() == new().on("x").send_inapp(title="a", body="b").to_json()


def test_an_error_about_a_tag_names_the_tag() -> None:
    diagnostics = errors(thanks().add_tag("").add_tag("x" * 65).check())
    assert [diagnostic.message.partition(" must")[0] for diagnostic in diagnostics] == [
        "the tag ''",
        f"the tag '{'x' * 47}…",
    ]


def test_a_verb_shows_its_keywords() -> None:
    assert list(inspect.signature(new().where).parameters) == [
        "path", "eq", "neq", "is_in", "contains", "exists", "gt", "gte", "lt", "lte",
    ]  # fmt: skip
    assert not hasattr(new(), "there_is_no_such_verb")


def test_check_names_the_invalid_node() -> None:
    automation = thanks().send_inapp(title="", body="{% macro x() %}{% endmacro %}")
    assert [(diagnostic.level, diagnostic.node_id) for diagnostic in errors(automation.check())] == [
        ("error", "send_inapp_2")
    ] * 2


def test_an_automation_is_described_in_sentences() -> None:
    assert branching().describe() == (
        "When a deposit or trade event arrives:\n"
        "  • If contact.plan is “pro” and amountUsd is set:\n"
        "    • Add the tag “Pro customer”.\n"
        "    Otherwise:\n"
        "    • Send the in-app message “Upgrade?” if nothing is missing: “Go pro”.\n"
        "  • Add the tag “seen”."
    )


def test_comparisons_are_written_as_an_expression_next_to_the_filters() -> None:
    automation = (
        new()
        .on("deposit")
        .where("amountUsd", gt=500)
        .where("plan", eq="pro")
        .where('asset == "USDC" or asset == "DAI"')
        .goal("paid", where="amountUsd >= 10")
        .wait_for("trade", within="2h", where=[{"asset": "X"}, "size < 0.1"])
        .then(lambda b: b.add_tag("traded"))
        .when("contact.country", lte="M")
        .and_("contact.age", exists=True)
        .and_("contact.age >= 18")
        .then(lambda b: b.add_tag("adult"))
    )
    payload = automation.to_json()
    assert payload["triggerSpec"]["where"] == 'amountUsd > 500 and (asset == "USDC" or asset == "DAI")'
    assert payload["triggerSpec"]["filters"] == [{"path": "plan", "operator": "eq", "value": "pro"}]
    assert payload["graph"]["settings"]["goal"] == {"event": "paid", "filters": [], "where": "amountUsd >= 10"}
    wait, condition = (
        next(node["data"] for node in payload["graph"]["nodes"] if node["type"] == kind)
        for kind in ("wait_for_event", "condition")
    )
    assert (wait["filters"], wait["where"]) == ([{"path": "asset", "operator": "eq", "value": "X"}], "size < 0.1")
    assert condition["filters"] == [{"path": "contact.age", "operator": "exists"}]
    assert condition["where"] == 'contact.country <= "M" and contact.age >= 18'
    assert errors(automation.check()) == ()
    code = automation.to_python()
    assert '.where(\'amountUsd > 500 and (asset == "USDC" or asset == "DAI")\')' in code
    assert '.goal("paid", where="amountUsd >= 10")' in code
    assert 'where=[{"asset": "X"}, "size < 0.1"]' in code
    assert "it holds that “contact.country" in str(automation)
