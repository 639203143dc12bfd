"""The canvas in a bare page: what is done there is in the automation at once, nothing is lost, and strangers' text stays text."""

import json
import math
import sys

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.bare import Bare, bare
from tests.browser.hand import Hand
from workbench import Automation
from workbench.draft import Draft

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


def card(shown: Bare, key: str) -> Locator:
    return shown.page.locator(f'.react-flow__node[data-id="{key}"]').first


def data_of(automation: Automation, node_id: str) -> dict[str, object]:
    return next(node["data"] for node in automation.to_json()["graph"]["nodes"] if node["id"] == node_id)


def settled(shown: Bare) -> None:
    """Wait until Python has everything that the view has changed."""
    expect(shown.page.locator('.ewc[data-unsent="true"]')).to_have_count(0)


def test_what_is_typed_is_in_the_automation_and_on_the_card(page: Page) -> None:
    automation = greeting()
    with bare(page, automation) as shown:
        card(shown, "send_inapp").click()
        page.get_by_label("Title", exact=True).fill("Thank you!")
        expect(card(shown, "send_inapp")).to_contain_text("Thank you!")
        assert data_of(automation, "send_inapp")["title"] == "Thank you!"
        assert "Thank you!" in automation.describe()


def test_what_is_written_in_python_shows_and_both_at_once_lose_nothing(page: Page) -> None:
    automation = greeting()
    with bare(page, automation) as shown:
        card(shown, "send_inapp").click()
        page.get_by_label("Title", exact=True).press("End")
        page.keyboard.type("!!")
        shown.canvas.automation = automation.add_tag("more")  # before what was typed has arrived
        shown.show()
        expect(card(shown, "add_tag_more")).to_be_visible()
        settled(shown)
        assert data_of(automation, "send_inapp")["title"] == "Thanks!!"
        assert automation.to_json() == shown.canvas.automation.to_json()
        expect(page.get_by_label("Title", exact=True)).to_have_value("Thanks!!")


CENTRED = """() => {
    const middle = (name) => { const box = document.querySelector(name).getBoundingClientRect(); return box.x + box.width / 2; };
    return Math.abs(middle(".react-flow__node[data-id=if_amountusd]") - middle(".react-flow")) < 2;
}"""


def test_a_frame_that_grows_shows_the_graph_until_somebody_looks_elsewhere(page: Page) -> None:
    page.set_viewport_size({"width": 700, "height": 700})
    with bare(page, greeting()):
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
    with bare(page, automation, views=2) as shown:
        one, two = page.locator("#one"), page.locator("#two")
        one.locator('.react-flow__node[data-id="add_tag_small"]').click()
        one.get_by_label("Tag", exact=True).fill("tiny")
        expect(two.locator('.react-flow__node[data-id="add_tag_small"]')).to_contain_text("tiny")
        two.locator('.react-flow__node[data-id="add_tag_small"]').click()
        two.get_by_label("Tag", exact=True).fill("tiniest")
        expect(one.get_by_label("Tag", exact=True)).to_have_value("tiniest")
        assert data_of(shown.automation, "add_tag_small")["tag"] == "tiniest"


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


def test_what_nobody_touches_stays_to_the_last_digit(page: Page) -> None:
    automation = Automation.from_json(FOREIGN)
    with bare(page, automation) as shown:
        card(shown, "1").click()
        page.get_by_label("value", exact=True).fill("12345678901234567891")
        expect(card(shown, "1")).to_contain_text("12345678901234567891")
        expected = json.loads(json.dumps(FOREIGN))
        expected["graph"]["nodes"][1]["data"]["filters"][0]["value"] = 12345678901234567891
        assert json.dumps(automation.to_json(), default=float) == json.dumps(expected)


def test_steps_are_added_connected_moved_removed_and_all_that_is_undone(page: Page) -> None:
    automation = greeting()
    with bare(page, automation) as shown:
        before = automation.to_json()
        card(shown, "add_tag_small").click()
        page.locator("[data-kind=delay]").click()
        expect(card(shown, "delay")).to_be_visible()
        settled(shown)
        assert ("add_tag_small", "delay") in links(automation)
        drag(page, card(shown, "send_inapp").locator(".ewc-out"), card(shown, "delay").locator(".ewc-card"))
        settled(shown)
        assert ("send_inapp", "delay") in links(automation)
        box = card(shown, "delay").bounding_box()
        drag(page, card(shown, "delay"), page.locator(".react-flow__pane"), (30, 30))
        settled(shown)
        assert card(shown, "delay").bounding_box() != box
        page.keyboard.press("Delete")
        expect(card(shown, "delay")).to_have_count(0)
        for _ in range(4):
            page.keyboard.press("Control+z")
        settled(shown)
        assert {node["id"] for node in automation.to_json()["graph"]["nodes"]} == {
            node["id"] for node in before["graph"]["nodes"]
        }
        assert links(automation) == {(edge["source"], edge["target"]) for edge in before["graph"]["edges"]}
        for _ in range(4):
            page.keyboard.press("Control+Shift+z")
        expect(card(shown, "delay")).to_have_count(0)


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


def test_copies_and_everything_by_keyboard(page: Page) -> None:
    automation = greeting()
    with bare(page, automation) as shown:
        card(shown, "send_inapp").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Control+d")
        expect(card(shown, "send_inapp_2")).to_be_visible()
        page.keyboard.press("Control+c")
        page.keyboard.press("Control+v")
        expect(card(shown, "send_inapp_3")).to_be_visible()
        page.keyboard.press("Control+z")
        card(shown, "send_inapp_2").click()
        page.keyboard.press("n")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.dataset.kind") == "send_email"
        page.keyboard.press("Enter")
        expect(card(shown, "send_email")).to_be_visible()
        page.keyboard.type("Hello")
        expect(page.get_by_label("Subject", exact=True)).to_have_value("Hello")
        settled(shown)
        assert ("send_inapp_2", "send_email") in links(automation)
        page.keyboard.press("Control+z")
        page.get_by_role("button", name="Keyboard shortcuts").click()
        expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_contain_text("Ctrl+Shift+Z")


def test_problems_stand_on_the_steps_and_fields_they_concern(page: Page) -> None:
    automation = (
        Automation(Draft("Problems")).on("deposit").split({"a": 50, "b": 50}).branch("a", lambda b: b.add_tag("a"))
    )
    with bare(page, automation) as shown:
        card(shown, "split").click()
        page.get_by_label("Percentage of branch 1").fill("60")
        expect(card(shown, "split").get_by_test_id("problem")).to_be_visible()
        expect(page.get_by_role("status")).to_have_text("110 %, not 100")
        expect(page.get_by_test_id("problems")).to_have_text("1 error")
        page.get_by_role("button", name="Distribute evenly").click()
        expect(page.get_by_test_id("problems")).to_have_text("No problems")
        page.get_by_label("Name of branch 1").fill("first")
        page.get_by_label("Name of branch 1").press("Enter")
        expect(card(shown, "split")).to_contain_text("first 50 %")
        settled(shown)
        assert automation.to_json()["graph"]["edges"][1]["sourceHandle"] == "first"


def test_what_python_has_not_told_of_yet_has_its_ways_out_all_the_same(page: Page) -> None:
    automation = Automation(Draft("Quick")).on("deposit")
    with bare(page, automation) as shown:
        page.evaluate("""async () => {
            for (const kind of ["condition", "delay", "split", "exit"]) {
                document.querySelector(`[data-kind=${kind}]`).click();
                await new Promise(requestAnimationFrame);
            }
        }""")
        expect(card(shown, "exit")).to_be_visible()
        settled(shown)
        handles = [edge.get("sourceHandle") for edge in automation.to_json()["graph"]["edges"]]
        assert handles == [None, "true", None, "a"]


def test_rules_for_the_whole_automation_are_set_at_its_trigger(page: Page) -> None:
    automation = greeting()
    with bare(page, automation) as shown:
        card(shown, "trigger").click()
        page.get_by_text("Rules for the whole automation").click()
        page.get_by_label("A contact enters").select_option("once_per")
        page.get_by_label("Quiet hours").check()
        page.get_by_label("Goal", exact=True).check()
        page.get_by_role("combobox", name="Goal", exact=True).fill("purchase")
        page.get_by_label("Frequency cap").check()
        page.get_by_label("Unit of the cap").select_option("hours")
        expect(card(shown, "trigger")).to_contain_text("quiet from 22:00 to 08:00")
        settled(shown)
        assert automation.to_json()["graph"]["settings"] == {
            "reentry": {"policy": "once_per", "days": 7},
            "quietHours": {"from": "22:00", "to": "08:00"},
            "goal": {"event": "purchase", "filters": []},
            "frequencyCap": {"messages": 3, "seconds": 3600},
        }


def test_an_edge_that_leaves_by_no_way_is_drawn_and_can_be_taken_out(page: Page) -> None:
    payload = greeting().to_json()
    payload["graph"]["nodes"].append({"id": "exit", "type": "exit", "data": {}})
    payload["graph"]["edges"] += [
        {"id": "gone", "source": "if_amountusd", "sourceHandle": "perhaps", "target": "exit"},
        {"id": "after", "source": "exit", "target": "add_tag_small"},
    ]
    automation = Automation.from_json(payload)
    with bare(page, automation) as shown:
        expect(page.locator(".react-flow__edge")).to_have_count(5)
        for key in ("gone", "after"):
            page.locator(f'.react-flow__edge[data-id="{key}"]').focus()
            page.keyboard.press("Enter")
            page.keyboard.press("Delete")
        expect(page.locator(".react-flow__edge")).to_have_count(3)
        settled(shown)
        assert ("exit", "add_tag_small") not in links(automation)


def test_strangers_text_is_text_and_an_email_can_do_nothing(page: Page) -> None:
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
    with bare(page, automation) as shown:
        expect(page.locator(".ewc-name")).to_have_text(EVIL)
        card(shown, "trigger").click()
        card(shown, "send_email").click()
        frame = page.frame_locator("iframe.ewc-mail")
        expect(frame.locator("h1")).to_contain_text("Hi")
        frame.locator("a").click(force=True)
        page.get_by_role("button", name="Test", exact=True).click()
        expect(page.get_by_test_id("trial")).to_contain_text("Nothing would happen")
        assert page.evaluate("window.hurt") is None
        assert frame.locator("h1").count() <= 1
        assert page.url.startswith("http://127.0.0.1")


def test_a_kernel_that_does_not_answer_is_named_and_nothing_typed_is_lost(page: Page) -> None:
    page.clock.install()
    automation = greeting()
    with bare(page, automation) as shown:
        card(shown, "send_inapp").click()
        page.clock.run_for(500)
        page.evaluate("window.gone = true")
        page.get_by_label("Title", exact=True).fill("While it was away")
        page.clock.run_for(12_000)
        expect(page.get_by_role("alert")).to_contain_text("The kernel does not answer. Your last changes")
        page.evaluate("window.gone = false")
        page.clock.run_for(4_000)
        expect(page.get_by_role("alert")).to_have_count(0)
        assert data_of(automation, "send_inapp")["title"] == "While it was away"


def test_what_is_for_looking_only_cannot_be_changed(page: Page) -> None:
    automation = greeting()
    with bare(page, automation, read_only=True) as shown:
        before = automation.to_json()
        expect(page.locator(".ewc-palette")).to_have_count(0)
        card(shown, "send_inapp").click()
        expect(page.get_by_label("Title", exact=True)).to_be_disabled()
        page.keyboard.press("Delete")
        settled(shown)
        shown.canvas._receive(
            shown.canvas, {"kind": "edit", "view": "x", "number": 1, "patch": {"nodes": {"send_inapp": None}}}, []
        )
        assert automation.to_json() == before


def test_everything_has_a_name_for_those_who_do_not_see_it(page: Page) -> None:
    with bare(page, greeting(), dark=True) as shown:
        for key in ("trigger", "if_amountusd", "send_inapp", "add_tag_small"):
            card(shown, key).click()
            nameless = page.evaluate("""() => [...document.querySelectorAll("button, input, select, textarea, iframe")].filter(each =>
                !(each.labels?.length || each.getAttribute("aria-label") || each.title || each.textContent.trim())).map(each => each.outerHTML)""")
            assert nameless == []


def test_a_hundred_nodes_are_dragged_smoothly(page: Page) -> None:
    """Says how many frames per second; what is asserted is only that the node went where it was dragged."""
    automation = Automation(Draft("Hundred")).on("deposit")
    for number in range(33):
        automation = automation.when("x", eq=number).then(lambda b: b.add_tag("a")).otherwise(lambda b: b.add_tag("b"))
    with bare(page, automation) as shown:
        assert page.locator(".react-flow__node").count() == 100
        node = card(shown, "add_tag_a_2")
        x, y = middle(node, None)
        page.mouse.move(x, y)
        page.mouse.down()
        frames = page.evaluate(DRAGGED, [x, y])
        page.mouse.up()
        settled(shown)
        sys.stdout.write(
            f"\n100 nodes: {1000 / (sum(frames) / len(frames)):.0f} frames/s while dragging, slowest {max(frames):.0f} ms\n"
        )
        assert math.dist(middle(node, None), (x + 60, y + 60)) < 30


DRAGGED = """async ([x, y]) => {
    const frames = [];
    let last = performance.now();
    for (let step = 1; step <= 120; step++) {
        const at = { clientX: x + step / 2, clientY: y + step / 2, bubbles: true, view: window };
        window.dispatchEvent(new MouseEvent("mousemove", at));
        const now = await new Promise(requestAnimationFrame);
        frames.push(now - last);
        last = now;
    }
    return frames;
}"""


def test_what_a_contract_logs_is_chosen_as_the_start(page: Page) -> None:
    automation = Automation(Draft("Tokens"))
    with bare(page, automation) as shown:
        hand, wanted = Hand(page), f"0x{'c0' * 20}"
        card(shown, "trigger").click()
        hand.press("Remove")
        hand.add("onchain_event")
        hand.fill("Chain", "8453")
        hand.fill("Contract", f"{wanted} ")
        hand.fill("Event", "Transfer(address from, address to, uint256 value)")
        page.get_by_label("Event", exact=True).press("Enter")
        hand.choose("Contact", "to")
        hand.fill("Confirmations", "3")
        page.get_by_label("Create contacts for unknown wallets").check()
        settled(shown)
        assert automation.to_json()["triggerSpec"] == {
            "type": "onchain_event",
            "chainId": 8453,
            "contract": wanted,
            "signature": "Transfer(address from, address to, uint256 value)",
            "walletArg": "to",
            "confirmations": 3,
            "createContacts": True,
        }
        expect(card(shown, "onchain_event")).to_contain_text("0xc0c0c0…c0c0 on chain 8453")
        expect(card(shown, "onchain_event")).to_contain_text("wallet in to, 3 confirmations")
        expect(page.locator(".ewc-wrong")).to_have_count(0)
        hand.fill("Confirmations", "")
        settled(shown)
        assert "confirmations" not in automation.to_json()["triggerSpec"]
