"""In a page without JupyterLab, edits of a canvas reach the automation, and untrusted text stays text."""

import json
import math
import sys

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.bare_page import BarePage, open_canvas
from tests.browser.mouse import Mouse
from workbench import Automation
from workbench.draft import Draft
from workbench.language.template import render

pytestmark = pytest.mark.browser

EVIL = '"><img src=x onerror=window.hurt=1><script>window.hurt=1</script>'


def greeting() -> Automation:
    return (
        Automation(Draft("Greeting"))
        .on("deposit")
        .when("amountUsd", eq=100)
        .then(lambda b: b.send_inapp(title="Thanks", body="for {{ amountUsd }}"))
        .otherwise(lambda b: b.add_tag("small"))
    )


def card(view: BarePage, key: str) -> Locator:
    return view.page.locator(f'.react-flow__node[data-id="{key}"]').first


def data_of(automation: Automation, node_id: str) -> dict[str, object]:
    return next(node["data"] for node in automation.to_json()["graph"]["nodes"] if node["id"] == node_id)


def wait_until_sent(view: BarePage) -> None:
    """Wait until Python has acknowledged all edits of the view."""
    expect(view.page.locator('.ewc[data-unsent="true"]')).to_have_count(0)


def test_typed_text_appears_in_the_automation_and_on_the_card(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation) as view:
        card(view, "send_inapp").click()
        page.get_by_label("Title", exact=True).fill("Thank you!")
        expect(card(view, "send_inapp")).to_contain_text("Thank you!")
        assert data_of(automation, "send_inapp")["title"] == "Thank you!"
        assert "Thank you!" in automation.describe()


def test_each_inserted_value_has_a_field_for_its_fallback(page: Page) -> None:
    text = "{{ a }} {{contact.b|d('x')}} {{ a }} {{ c | upper }} {% if d %}{{ payload[\"e f\"] }}{% endif %}"
    automation = Automation(Draft("Fallbacks")).on("deposit").send_email("Hi {{ event", text)
    with open_canvas(page, automation) as view:
        card(view, "send_email").click()
        fallbacks = page.get_by_label("Fallback for")
        expect(fallbacks).to_have_count(3)
        expect(page.get_by_label("Fallback for contact.b in Text")).to_have_value("x")
        page.get_by_label("Fallback for a in Text").fill('say "}} \\')
        page.get_by_label("Fallback for contact.b in Text").fill("")
        page.get_by_label('Fallback for payload["e f"] in Text').fill("é")
        wait_until_sent(view)
        fallback = '{{ a | default("say \\"}} \\\\") }}'
        body = f"{fallback} {{{{ contact.b }}}} {fallback} {{{{ c | upper }}}} "
        assert data_of(automation, "send_email")["body"] == (
            body + '{% if d %}{{ payload["e f"] | default("é") }}{% endif %}'
        )
        expect(page.get_by_label("Fallback for a in Text")).to_have_value('say "}} \\')
    body = str(data_of(automation, "send_email")["body"])
    assert render(body, {"c": "c", "d": False, "contact": {"b": 1}}) == 'say "}} \\ 1 say "}} \\ C '


def test_a_message_is_skipped_or_fails_as_the_form_says(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation) as view:
        card(view, "send_inapp").click()
        choice = page.get_by_label("If the wallet or a value is missing")
        expect(choice).to_have_value("skip")
        choice.select_option("Fail the entry")
        wait_until_sent(view)
        assert "onMissing" not in data_of(automation, "send_inapp")
        choice.select_option("Skip this message")
        wait_until_sent(view)
        assert data_of(automation, "send_inapp")["onMissing"] == "skip"


def test_the_links_of_an_email_are_tracked_as_the_form_says(page: Page) -> None:
    automation = greeting().send_email("Hi", "https://a.example")
    with open_canvas(page, automation) as view:
        card(view, "send_email").click()
        choice = page.get_by_label("Track clicks")
        expect(choice).not_to_be_checked()
        choice.press("Space")
        wait_until_sent(view)
        assert data_of(automation, "send_email")["trackClicks"] is True
        choice.uncheck()
        wait_until_sent(view)
        assert "trackClicks" not in data_of(automation, "send_email")


def test_texts_of_a_locale_are_written_previewed_and_removed_with_the_keyboard(page: Page) -> None:
    automation = Automation(Draft("Locales")).on("deposit").send_email("Thanks", "It is here")
    with open_canvas(page, automation) as view:
        card(view, "send_email").click()
        page.get_by_text("Texts in other locales", exact=True).press("Enter")
        page.get_by_label("Locale to add").fill("de-AT")
        page.keyboard.press("Enter")
        expect(page.get_by_label("Texts in de-AT").get_by_text("must be a non-empty text")).to_have_count(2)
        page.get_by_label("Subject in de-AT", exact=True).fill("Danke")
        page.get_by_label("Text in de-AT", exact=True).fill("Es ist da")
        wait_until_sent(view)
        assert data_of(automation, "send_email")["locales"] == {"de-AT": {"subject": "Danke", "body": "Es ist da"}}
        page.get_by_label("Texts in", exact=True).select_option("de-AT")
        expect(page.get_by_label("Preview")).to_contain_text("Danke")
        page.get_by_label("Remove de-AT").press("Enter")
        expect(page.get_by_label("Texts in de-AT")).to_have_count(0)
        wait_until_sent(view)
        assert "locales" not in data_of(automation, "send_email")


def test_fields_of_a_connection_are_written_with_the_keyboard(page: Page) -> None:
    automation = Automation(Draft("Chat")).on("deposit").send_via("chat", text="Hi")
    with open_canvas(page, automation) as view:
        card(view, "send_via_chat").click()
        page.get_by_label("Field to add").fill("room")
        page.keyboard.press("Enter")
        page.get_by_label("room", exact=True).fill("{{ contact.plan }}")
        page.get_by_text("Fields in other locales", exact=True).press("Enter")
        page.get_by_label("Locale to add").fill("de")
        page.keyboard.press("Enter")
        page.get_by_label("text in de", exact=True).fill("Hallo")
        wait_until_sent(view)
        assert data_of(automation, "send_via_chat")["fields"] == {"text": "Hi", "room": "{{ contact.plan }}"}
        assert data_of(automation, "send_via_chat")["locales"] == {"de": {"text": "Hallo"}}
        expect(card(view, "send_via_chat")).to_contain_text("chat")


def test_concurrent_edits_in_python_and_the_browser_are_both_kept(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation) as view:
        card(view, "send_inapp").click()
        page.get_by_label("Title", exact=True).press("End")
        page.keyboard.type("!!")
        view.canvas.automation = automation.add_tag("more")  # before the typed text has arrived
        view.deliver()
        expect(card(view, "add_tag_more")).to_be_visible()
        wait_until_sent(view)
        assert data_of(automation, "send_inapp")["title"] == "Thanks!!"
        assert automation.to_json() == view.canvas.automation.to_json()
        expect(page.get_by_label("Title", exact=True)).to_have_value("Thanks!!")


CENTRED = """() => {
    const middle = (name) => {
        const box = document.querySelector(name).getBoundingClientRect();
        return box.x + box.width / 2;
    };
    return Math.abs(middle(".react-flow__node[data-id=if_amountusd]") - middle(".react-flow")) < 2;
}"""


def test_the_graph_stays_centred_until_the_user_moves_the_viewport(page: Page) -> None:
    page.set_viewport_size({"width": 700, "height": 700})
    with open_canvas(page, greeting()):
        page.wait_for_function(CENTRED)
        page.set_viewport_size({"width": 1300, "height": 700})
        page.wait_for_function(CENTRED)
        page.get_by_role("button", name="zoom in").click()
        zoomed = page.locator(".react-flow__viewport").get_attribute("style")
        page.set_viewport_size({"width": 1200, "height": 700})
        page.wait_for_function("document.querySelector('.ewc').getBoundingClientRect().right <= 1200")
        assert page.locator(".react-flow__viewport").get_attribute("style") == zoomed


def test_two_views_show_the_same(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation, views=2) as view:
        one, two = page.locator("#one"), page.locator("#two")
        one.locator('.react-flow__node[data-id="add_tag_small"]').click()
        one.get_by_label("Tag", exact=True).fill("tiny")
        expect(two.locator('.react-flow__node[data-id="add_tag_small"]')).to_contain_text("tiny")
        two.locator('.react-flow__node[data-id="add_tag_small"]').click()
        two.get_by_label("Tag", exact=True).fill("tiniest")
        expect(one.get_by_label("Tag", exact=True)).to_have_value("tiniest")
        assert data_of(view.automation, "add_tag_small")["tag"] == "tiniest"


FOREIGN = {
    "name": "From elsewhere",
    "triggerSpec": {"type": "custom-event", "eventNames": ["A", "b"], "extra": {"$exact": "1"}},
    "graph": {
        "nodes": [
            {"id": "7", "type": "custom_event", "data": {}, "position": {"x": 0.5, "y": 0}, "measured": {"width": 3}},
            {
                "id": "1",
                "type": "condition",
                "data": {"filters": [{"path": "n", "operator": "eq", "value": 12345678901234567890}], "note": 1.10},
                "position": {"x": 0, "y": 120},
            },
            {"id": "odd", "type": "their_own", "data": {"deep": [{"x": None}]}, "position": {"x": -160, "y": 240}},
            {"id": "odd", "type": "exit", "data": None, "position": {"x": 160, "y": 240}},
        ],
        "edges": [
            {"source": "7", "target": "1", "animated": True},
            {"source": "1", "target": "odd", "sourceHandle": "true"},
        ],
        "viewport": {"zoom": 2},
    },
}


def test_rows_of_comparisons_write_an_expression_and_other_expressions_are_a_text(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation) as view:
        card(view, "trigger").click()
        add = page.get_by_role("combobox", name="Only if: add")
        for path in ("plan", "amountUsd"):
            add.fill(path)
            add.press("Enter")
        operator = page.get_by_label("Only if: how, line 1")
        operator.focus()
        page.keyboard.type("is greater")  # chooses the option that begins with it
        # The comparison follows the filters, and its operator keeps the focus.
        moved = page.get_by_label("Only if: how, line 2")
        expect(moved).to_have_value("where >")
        expect(moved).to_be_focused()
        page.get_by_label("value", exact=True).fill("500")
        wait_until_sent(view)
        spec = automation.to_json()["triggerSpec"]
        assert spec["where"] == "plan > 500"
        assert spec["filters"] == [{"path": "amountUsd", "operator": "exists"}]
        expect(card(view, "trigger")).to_contain_text("plan > 500")
        page.get_by_label("Only if: how, line 2").select_option("eq")
        page.get_by_label("Only if: how, line 1").select_option("where <=")
        wait_until_sent(view)
        spec = automation.to_json()["triggerSpec"]
        assert spec["where"] == "amountUsd <= 0"
        assert spec["filters"] == [{"path": "plan", "operator": "eq", "value": 500}]
        page.get_by_role("button", name="write an expression").first.press("Enter")
        text = page.get_by_label("Only if: expression")
        expect(text).to_be_focused()
        text.fill("amountUsd > 500 or nope")
        wait_until_sent(view)
        assert automation.to_json()["triggerSpec"]["where"] == "amountUsd > 500 or nope"
        text.fill("amountUsd >")
        expect(page.locator(".ewc-form")).to_contain_text("unexpected 'end of the expression'")
        text.fill("")
        wait_until_sent(view)
        assert "where" not in automation.to_json()["triggerSpec"]


def test_an_edit_keeps_all_other_fields_exactly(page: Page) -> None:
    automation = Automation.from_json(FOREIGN)
    with open_canvas(page, automation) as view:
        card(view, "1").click()
        page.get_by_label("value", exact=True).fill("12345678901234567891")
        expect(card(view, "1")).to_contain_text("12345678901234567891")
        expected = json.loads(json.dumps(FOREIGN))
        expected["graph"]["nodes"][1]["data"]["filters"][0]["value"] = 12345678901234567891
        assert json.dumps(automation.to_json(), default=float) == json.dumps(expected)


def test_steps_are_added_connected_moved_and_removed_with_undo(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation) as view:
        before = automation.to_json()
        card(view, "add_tag_small").click()
        page.locator("[data-kind=delay]").click()
        expect(card(view, "delay")).to_be_visible()
        wait_until_sent(view)
        assert ("add_tag_small", "delay") in links(automation)
        drag(page, card(view, "send_inapp").locator(".ewc-out"), card(view, "delay").locator(".ewc-card"))
        wait_until_sent(view)
        assert ("send_inapp", "delay") in links(automation)
        box = card(view, "delay").bounding_box()
        drag(page, card(view, "delay"), page.locator(".react-flow__pane"), (30, 30))
        wait_until_sent(view)
        assert card(view, "delay").bounding_box() != box
        page.keyboard.press("Delete")
        expect(card(view, "delay")).to_have_count(0)
        for _ in range(4):
            page.keyboard.press("Control+z")
        wait_until_sent(view)
        assert {node["id"] for node in automation.to_json()["graph"]["nodes"]} == {
            node["id"] for node in before["graph"]["nodes"]
        }
        assert links(automation) == {(edge["source"], edge["target"]) for edge in before["graph"]["edges"]}
        for _ in range(4):
            page.keyboard.press("Control+Shift+z")
        expect(card(view, "delay")).to_have_count(0)


def links(automation: Automation) -> set[tuple[str, str]]:
    return {(edge["source"], edge["target"]) for edge in automation.to_json()["graph"]["edges"]}


def drag(page: Page, source: Locator, target: Locator, at: tuple[int, int] | None = None) -> None:
    source.hover()
    page.mouse.down()
    page.mouse.move(*middle(target, at), steps=8)
    page.mouse.up()


def middle(target: Locator, at: tuple[int, int] | None) -> tuple[float, float]:
    box = target.bounding_box()
    assert box is not None
    return (box["x"] + at[0], box["y"] + at[1]) if at else (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def test_editing_with_the_keyboard(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation) as view:
        card(view, "send_inapp").focus()
        page.keyboard.press("Space")
        page.keyboard.press("Control+d")
        expect(card(view, "send_inapp_2")).to_be_visible()
        page.keyboard.press("Control+c")
        page.keyboard.press("Control+v")
        expect(card(view, "send_inapp_3")).to_be_visible()
        page.keyboard.press("Control+z")
        card(view, "send_inapp_2").click()
        page.keyboard.press("n")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.dataset.kind") == "send_email"
        page.keyboard.press("Enter")
        expect(card(view, "send_email")).to_be_visible()
        page.keyboard.type("Hello")
        expect(page.get_by_label("Subject", exact=True)).to_have_value("Hello")
        wait_until_sent(view)
        assert ("send_inapp_2", "send_email") in links(automation)
        page.keyboard.press("Control+z")
        page.get_by_role("button", name="Keyboard shortcuts").click()
        expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_contain_text("Ctrl+Shift+Z")


def test_problems_are_shown_on_their_steps_and_fields(page: Page) -> None:
    automation = (
        Automation(Draft("Problems")).on("deposit").split({"a": 50, "b": 50}).branch("a", lambda b: b.add_tag("a"))
    )
    with open_canvas(page, automation) as view:
        card(view, "split").click()
        page.get_by_label("Percentage of branch 1").fill("60")
        expect(card(view, "split").get_by_test_id("problem")).to_be_visible()
        expect(page.get_by_role("status")).to_have_text("110 %, not 100")
        expect(page.get_by_test_id("problems")).to_have_text("1 error")
        page.get_by_role("button", name="Distribute evenly").click()
        expect(page.get_by_test_id("problems")).to_have_text("No problems")
        page.get_by_label("Name of branch 1").fill("first")
        page.get_by_label("Name of branch 1").press("Enter")
        expect(card(view, "split")).to_contain_text("first 50 %")
        wait_until_sent(view)
        assert automation.to_json()["graph"]["edges"][1]["sourceHandle"] == "first"


def test_a_new_step_has_outputs_before_python_answers(page: Page) -> None:
    automation = Automation(Draft("Quick")).on("deposit")
    with open_canvas(page, automation) as view:
        page.evaluate("""async () => {
            for (const kind of ["condition", "delay", "split", "exit"]) {
                document.querySelector(`[data-kind=${kind}]`).click();
                await new Promise(requestAnimationFrame);
            }
        }""")
        expect(card(view, "exit")).to_be_visible()
        wait_until_sent(view)
        handles = [edge.get("sourceHandle") for edge in automation.to_json()["graph"]["edges"]]
        assert handles == [None, "true", None, "a"]


def test_settings_are_edited_at_the_trigger(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation) as view:
        card(view, "trigger").click()
        page.get_by_text("Rules for the whole automation").click()
        page.get_by_label("A contact enters").select_option("once_per")
        page.get_by_label("Quiet hours").check()
        page.get_by_label("Goal", exact=True).check()
        page.get_by_role("combobox", name="Goal", exact=True).fill("purchase")
        page.get_by_label("Frequency cap").check()
        page.get_by_label("Unit of the cap").select_option("hours")
        expect(card(view, "trigger")).to_contain_text("quiet from 22:00 to 08:00")
        wait_until_sent(view)
        assert automation.to_json()["graph"]["settings"] == {
            "reentry": {"policy": "once_per", "days": 7},
            "quietHours": {"from": "22:00", "to": "08:00"},
            "goal": {"event": "purchase", "filters": []},
            "frequencyCap": {"messages": 3, "seconds": 3600},
        }


def test_a_date_gives_a_wait_a_second_way_out(page: Page) -> None:
    automation = greeting().wait_until("09:00", node="wait").add_tag("x", node="after")
    with open_canvas(page, automation) as view:
        card(view, "wait").click()
        page.get_by_label("Date", exact=True).select_option("date")
        page.get_by_role("combobox", name="Date, the value").fill("contact.trial_ends")
        page.get_by_label("Earlier or later").select_option("-1")
        page.get_by_label("Mon").check()
        expect(card(view, "wait")).to_contain_text("1 day earlier")
        expect(card(view, "wait")).to_contain_text("Date missed")
        wait_until_sent(view)
        assert data_of(automation, "wait") == {
            "actionType": "wait_until",
            "time": "09:00",
            "attribute": "contact.trial_ends",
            "offsetSeconds": -86_400,
            "weekdays": [1],
        }
        assert links(automation) >= {("wait", "after")}
        assert automation.to_json()["graph"]["edges"][-1]["sourceHandle"] == "reached"
        page.get_by_label("Date", exact=True).select_option("time")
        expect(card(view, "wait")).not_to_contain_text("Date missed")
        wait_until_sent(view)
        assert "sourceHandle" not in automation.to_json()["graph"]["edges"][-1]


def test_events_are_collected_for_a_time_or_until_a_time_of_day(page: Page) -> None:
    automation = greeting().collect("1h", node="digest").add_tag("x", node="after")
    with open_canvas(page, automation) as view:
        card(view, "digest").click()
        page.get_by_label("For", exact=True).fill("2")
        page.get_by_label("At most").fill("10")
        page.get_by_role("combobox", name="Only with the same").fill("orderId")
        expect(card(view, "digest")).to_contain_text("for 2 hours")
        expect(card(view, "digest")).to_contain_text("with the same orderId")
        wait_until_sent(view)
        assert data_of(automation, "digest") == {"actionType": "collect", "seconds": 7_200, "max": 10, "key": "orderId"}
        page.get_by_label("For", exact=True).fill("")
        page.get_by_label("Or until").fill("09:00")
        expect(card(view, "digest")).to_contain_text("until 09:00")
        wait_until_sent(view)
        assert data_of(automation, "digest") == {"actionType": "collect", "until": "09:00", "max": 10, "key": "orderId"}


def test_an_edge_with_an_unknown_handle_can_be_removed(page: Page) -> None:
    payload = greeting().to_json()
    payload["graph"]["nodes"].append({"id": "exit", "type": "exit", "data": {}})
    payload["graph"]["edges"] += [
        {"id": "gone", "source": "if_amountusd", "sourceHandle": "perhaps", "target": "exit"},
        {"id": "after", "source": "exit", "target": "add_tag_small"},
    ]
    automation = Automation.from_json(payload)
    with open_canvas(page, automation) as view:
        expect(page.locator(".react-flow__edge")).to_have_count(5)
        for key in ("gone", "after"):
            page.locator(f'.react-flow__edge[data-id="{key}"]').focus()
            page.keyboard.press("Enter")
            page.keyboard.press("Delete")
        expect(page.locator(".react-flow__edge")).to_have_count(3)
        wait_until_sent(view)
        assert ("exit", "add_tag_small") not in links(automation)


def test_untrusted_text_and_html_cannot_run_scripts(page: Page) -> None:
    mail = (
        f"<h1>Hi {EVIL}</h1><img src='http://tracker.example/1.png'><meta http-equiv=refresh content='0;url=http://evil.example'>"
        "<style>@import 'http://evil.example/x.css'; body { background: url(http://evil.example/y.png) }</style>"
        "<a href='http://evil.example' onclick='parent.hurt=1'>click</a><form action='http://evil.example'><button>go</button></form>"
    )
    automation = (
        Automation(Draft(EVIL))
        .on("deposit")
        .where(EVIL, eq=EVIL)
        .send_email(subject=EVIL, body=mail)
        .add_tag(EVIL[:60])
    )
    with open_canvas(page, automation) as view:
        expect(page.locator(".ewc-name")).to_have_text(EVIL)
        card(view, "trigger").click()
        card(view, "send_email").click()
        frame = page.frame_locator("iframe.ewc-mail")
        expect(frame.locator("h1")).to_contain_text("Hi")
        frame.locator("a").click(force=True)
        page.get_by_role("button", name="Test", exact=True).click()
        expect(page.get_by_test_id("simulation")).to_contain_text("Nothing would happen")
        assert page.evaluate("window.hurt") is None
        assert frame.locator("h1").count() <= 1
        assert page.url.startswith("http://127.0.0.1")


def test_edits_survive_a_kernel_that_does_not_answer(page: Page) -> None:
    page.clock.install()
    automation = greeting()
    with open_canvas(page, automation) as view:
        card(view, "send_inapp").click()
        page.clock.run_for(500)
        page.evaluate("window.stopped = true")
        page.get_by_label("Title", exact=True).fill("While it was away")
        page.clock.run_for(12_000)
        expect(page.get_by_role("alert")).to_contain_text("The kernel does not answer. Your last changes")
        page.evaluate("window.stopped = false")
        page.clock.run_for(4_000)
        expect(page.get_by_role("alert")).to_have_count(0)
        assert data_of(automation, "send_inapp")["title"] == "While it was away"


def test_a_read_only_canvas_cannot_be_changed(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation, read_only=True) as view:
        before = automation.to_json()
        expect(page.locator(".ewc-palette")).to_have_count(0)
        card(view, "send_inapp").click()
        expect(page.get_by_label("Title", exact=True)).to_be_disabled()
        page.keyboard.press("Delete")
        wait_until_sent(view)
        view.canvas._receive(
            view.canvas, {"kind": "edit", "view": "x", "number": 1, "patch": {"nodes": {"send_inapp": None}}}, []
        )
        assert automation.to_json() == before


UNNAMED_CONTROLS = """() => [...document.querySelectorAll("button, input, select, textarea, iframe")]
    .filter(control => !control.labels?.length && !control.getAttribute("aria-label"))
    .filter(control => !control.title && !control.textContent.trim())
    .map(control => control.outerHTML)"""


def test_every_control_has_an_accessible_name(page: Page) -> None:
    with open_canvas(page, greeting(), dark=True) as view:
        for key in ("trigger", "if_amountusd", "send_inapp", "add_tag_small"):
            card(view, key).click()
            assert page.evaluate(UNNAMED_CONTROLS) == []


def test_a_hundred_nodes_are_dragged_smoothly(page: Page) -> None:
    """Print the frame rate. Only the final position is asserted, because the rate depends on the machine."""
    automation = Automation(Draft("Hundred")).on("deposit")
    for number in range(33):
        automation = automation.when("x", eq=number).then(lambda b: b.add_tag("a")).otherwise(lambda b: b.add_tag("b"))
    with open_canvas(page, automation) as view:
        assert page.locator(".react-flow__node").count() == 100
        node = card(view, "add_tag_a_2")
        x, y = middle(node, None)
        page.mouse.move(x, y)
        page.mouse.down()
        frames = page.evaluate(DRAG, [x, y])
        page.mouse.up()
        wait_until_sent(view)
        rate = 1000 * len(frames) / sum(frames)
        sys.stdout.write(f"\n100 nodes: {rate:.0f} frames/s while dragging, slowest {max(frames):.0f} ms\n")
        assert math.dist(middle(node, None), (x - 60, y)) < 30


DRAG = """async ([x, y]) => {
    const frames = [];
    let last = performance.now();
    for (let step = 1; step <= 120; step++) {
        const at = { clientX: x - step / 2, clientY: y, bubbles: true, view: window };
        window.dispatchEvent(new MouseEvent("mousemove", at));
        const now = await new Promise(requestAnimationFrame);
        frames.push(now - last);
        last = now;
    }
    return frames;
}"""


def test_an_on_chain_trigger_is_set_up(page: Page) -> None:
    automation = Automation(Draft("Tokens"))
    with open_canvas(page, automation) as view:
        mouse, contract = Mouse(page), f"0x{'c0' * 20}"
        card(view, "trigger").click()
        mouse.press("Remove")
        mouse.add("onchain_event")
        mouse.fill("Chain", "8453")
        mouse.fill("Contract", f"{contract} ")
        mouse.fill("Event", "Transfer(address from, address to, uint256 value)")
        page.get_by_label("Event", exact=True).press("Enter")
        mouse.choose("Contact", "to")
        mouse.fill("Confirmations", "3")
        page.get_by_label("Create contacts for unknown wallets").check()
        wait_until_sent(view)
        assert automation.to_json()["triggerSpec"] == {
            "type": "onchain_event",
            "chainId": 8453,
            "contract": contract,
            "signature": "Transfer(address from, address to, uint256 value)",
            "walletArg": "to",
            "confirmations": 3,
            "createContacts": True,
        }
        expect(card(view, "onchain_event")).to_contain_text("0xc0c0c0…c0c0 on chain 8453")
        expect(card(view, "onchain_event")).to_contain_text("wallet in to, 3 confirmations")
        expect(page.locator(".ewc-wrong")).to_have_count(0)
        mouse.fill("Confirmations", "")
        wait_until_sent(view)
        assert "confirmations" not in automation.to_json()["triggerSpec"]


def test_a_click_on_a_card_while_a_test_is_open_selects_the_step(page: Page) -> None:
    with open_canvas(page, greeting()) as view:
        page.get_by_role("button", name="Test", exact=True).click()
        expect(page.get_by_test_id("simulation")).to_contain_text("Steps")
        card(view, "send_inapp").click()
        page.get_by_label("Title", exact=True).fill("Changed")
        expect(page.locator(".ewc-faded")).not_to_have_count(0)  # the path of the test stays on the cards
        page.get_by_role("button", name="Test again").click()
        expect(page.get_by_test_id("simulation")).to_contain_text("Steps")
        page.get_by_test_id("simulation").get_by_role("button", name="if_amountusd").click()
        expect(page.get_by_role("combobox", name="Yes, if: add")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_test_id("simulation")).to_be_visible()


OVERLAPS = """() => {
    const cards = [...document.querySelectorAll(".react-flow__node")].map(card => card.getBoundingClientRect());
    return cards.flatMap((a, index) => cards.slice(index + 1).filter(
        b => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
}"""


def test_cards_never_overlap(page: Page) -> None:
    automation = greeting()
    with open_canvas(page, automation) as view:

        def expect_no_overlap() -> None:
            wait_until_sent(view)
            page.wait_for_function(f"!({OVERLAPS})().length")

        card(view, "trigger").click()  # grows over the card below it
        page.get_by_text("Rules for the whole automation").click()
        page.get_by_label("A contact enters").select_option("once_per")
        for rule in ("Quiet hours", "Frequency cap", "Holdout"):
            page.get_by_label(rule).check()
        expect(card(view, "trigger")).to_contain_text("hold out 10 % of contacts")
        expect_no_overlap()
        card(view, "send_inapp").click()
        page.keyboard.press("Control+d")
        expect(card(view, "send_inapp_2")).to_be_visible()
        expect_no_overlap()
        drag(page, card(view, "send_inapp"), card(view, "if_amountusd"))
        expect_no_overlap()
        page.locator("[data-kind=delay]").drag_to(card(view, "add_tag_small"))
        expect(card(view, "delay")).to_be_visible()
        expect_no_overlap()
        saved = {node["id"]: node["position"] for node in automation.to_json()["graph"]["nodes"]}
        assert abs(saved["delay"]["y"] - saved["add_tag_small"]["y"]) > 54
