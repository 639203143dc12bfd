"""The widgets work in a page without JupyterLab, where the test plays the model."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_canvas_accessibility import serious_findings
from workbench.display.html import html
from workbench.display.widgets import CatalogWindow, FormWindow, LiveWindow, TailWindow

pytestmark = pytest.mark.browser

EVIL = "<img src=x onerror=\"document.title='broken'\">'\"</td><script>document.title='broken'</script>"
CLICKED = {"title": "t", "note": EVIL, "perDay": [1, 2], "days": ["2026-11-21", "2026-11-22"]}
PATH = {
    "path": EVIL,
    "types": EVIL,
    "missing": "0%",
    "nulls": "0%",
    "distinct": 9,
    "drifting": True,
    "code": EVIL,
    "top": [[EVIL, "5"]],
    "examples": [EVIL],
}
LISTED = {
    "title": EVIL,
    "capped": False,
    "days": ["2026-11-22"],
    "empty": EVIL,
    "events": [
        {"event": name, "count": "5", "share": "50%", "first": EVIL, "last": EVIL, "perDay": [5]}
        for name in ("deposit", "trade", EVIL.lower())
    ],
}
LOOKED = CLICKED | {"event": EVIL, "title": EVIL, "drift": [EVIL], "code": "the code", "paths": [PATH]}
LOOKED["samples"] = [{"at": EVIL, "text": EVIL}]  # type: ignore[assignment]

SHOW = """async ([source, css, traits, answers]) => {
    document.head.append(Object.assign(document.createElement("style"), {textContent: css}));
    const module = await import(URL.createObjectURL(new Blob([source], {type: "text/javascript"})));
    const heard = new Set();
    window.sent = []; window.outside = [];
    window.tell = message => heard.forEach(hear => hear(message));
    window.model = {
        get: name => traits[name],
        on: (_, hear) => heard.add(hear), off: (_, hear) => heard.delete(hear),
        send: question => {
            window.sent.push(question);
            const answer = answers[question.ask];
            if (answer) setTimeout(() => window.tell({...answer, id: question.id}));
        },
    };
    document.addEventListener("keydown", event => window.outside.push(event.key));
    window.end = module.default.render({model: window.model, el: document.body});
}"""


def show(
    page: Page,
    window: type[CatalogWindow] | type[FormWindow] | type[LiveWindow] | type[TailWindow],
    answers: dict[str, Any],
    **traits: str,
) -> None:
    page.clock.install()
    page.set_content("<body></body>")
    page.evaluate(SHOW, [window._esm, window._css, {"event": "", "own_id": "me"} | traits, answers])


def keys_outside(page: Page) -> list[str]:
    keys: list[str] = page.evaluate("window.outside")
    return keys


def tail_row(number: int, **changed: Any) -> dict[str, Any]:
    return {
        "number": number,
        "at": "10:00:00",
        "outcome": "accepted",
        "event": f"e{number}",
        "result": "s",
        "detail": "d",
    } | changed


def send_update(page: Page, *rows: dict[str, Any], state: str = "following", reason: str = "") -> None:
    message = {"rows": rows, "state": state, "reason": reason}
    page.evaluate("message => window.tell({update: (window.updates = (window.updates ?? 1) + 1), ...message})", message)


HELLO = {"update": 1, "rows": [], "state": "connecting", "reason": ""}


def test_untrusted_text_is_shown_as_text(page: Page) -> None:
    show(page, CatalogWindow, {"list": LISTED, "look": LOOKED})
    page.locator("tr[data-event]").nth(2).click()
    expect(page.locator(".detail .head")).to_have_text(EVIL)
    expect(page.locator(".detail .note")).to_contain_text(EVIL)
    page.locator("summary").click()
    expect(page.locator(".detail pre")).to_have_text(EVIL)
    show_tail = json.loads(json.dumps(HELLO)) | {
        "reason": EVIL,
        "rows": [tail_row(1, event=EVIL, result=EVIL, detail=EVIL)],
    }
    show(page, TailWindow, {"hello": show_tail})
    page.locator("tr.event").click()
    expect(page.locator("tr.detail pre")).to_have_text(EVIL)
    assert page.locator("script, img").count() == 0
    assert page.title() != "broken"


def test_the_catalog_is_searched_and_opened_with_the_keyboard(page: Page) -> None:
    show(page, CatalogWindow, {"list": LISTED, "look": LOOKED})
    expect(page.locator("tr[data-event]")).to_have_count(3)
    page.locator("input").focus()
    page.keyboard.type("DEPO")
    expect(page.locator("tr[data-event]")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".detail")).to_be_visible()
    for key in ("d", "d", "a", "x", "Escape"):
        page.keyboard.press(key)
    expect(page.locator(".detail")).to_be_hidden()
    assert keys_outside(page) == []
    page.keyboard.press("Control+Enter")
    assert keys_outside(page) == ["Control", "Enter"]
    assert [request["ask"] for request in page.evaluate("window.sent")] == ["list", "look"]


def test_a_capped_list_is_searched_by_the_kernel(page: Page) -> None:
    show(page, CatalogWindow, {"list": LISTED | {"capped": True}})
    expect(page.locator("tr[data-event]")).to_have_count(3)
    page.locator("input").fill(" Rare ")
    page.wait_for_function("() => window.sent.at(-1).text === 'rare'")


def test_code_is_copied_if_cells_cannot_be_inserted(page: Page) -> None:
    show(page, CatalogWindow, {"look": LOOKED}, event="deposit")
    page.locator(".detail .bar .insert").click()
    expect(page.locator(".notice")).to_have_text("Cannot insert cells here: copy the code instead.")
    page.evaluate("() => document.addEventListener('copy', () => (window.copied = String(document.getSelection())))")
    page.locator(".detail .bar .copy").click()
    expect(page.locator(".notice")).to_have_text("Copied.")
    assert page.evaluate("window.copied ?? navigator.clipboard.readText()") == "the code"


def test_an_error_of_the_kernel_is_shown(page: Page) -> None:
    show(page, CatalogWindow, {"list": LISTED, "look": {"error": EVIL}})
    page.locator("tr[data-event]").first.click()
    expect(page.locator(".notice")).to_have_text(EVIL)


@pytest.mark.parametrize("window", [CatalogWindow, TailWindow])
def test_a_stopped_kernel_is_reported(
    page: Page, window: type[CatalogWindow] | type[TailWindow] | type[LiveWindow]
) -> None:
    show(page, window, {"list": LISTED, "hello": HELLO})
    page.evaluate("() => void (window.model.send = () => { throw new Error(0); })")
    if window is CatalogWindow:
        page.locator("tr[data-event]").first.click()
    else:
        page.clock.run_for(9_000)
    expect(page.locator(".ewb-widget")).to_contain_text("or it was stopped: then run the cell again")


def test_the_tail_pauses_filters_and_limits_its_rows(page: Page) -> None:
    show(page, TailWindow, {"hello": HELLO})
    rows = page.locator("tr.event")
    send_update(page, *(tail_row(n) for n in range(1, 700)))
    expect(rows).to_have_count(200)
    expect(rows.first).to_contain_text("e699")
    page.locator(".pause").click()
    send_update(page, tail_row(700, event="paid", outcome="rejected"), tail_row(699))
    expect(page.locator(".pause")).to_have_text("Resume (1 new)")
    expect(rows.first).to_contain_text("e699")
    page.locator(".pause").click()
    expect(rows.first).to_contain_text("paid")
    page.locator("input").fill("PAID")
    expect(rows).to_have_count(1)
    page.locator(".chip.rejected").click()
    expect(page.locator("tbody")).to_have_text("No events match the filter.")
    page.keyboard.press("d")
    assert keys_outside(page) == []


def test_the_tail_shows_the_state_of_its_connection(page: Page) -> None:
    show(page, TailWindow, {"hello": HELLO})
    steps: list[tuple[str, str, str]] = [
        ("following", "", "live"),
        ("lost", "no answer", "connection lost, reconnecting"),
        ("following", "", "live"),
        ("ended", "the key was revoked", "ended"),
    ]
    for state, reason, text in steps:
        send_update(page, state=state, reason=reason)
        expect(page.locator(".state")).to_have_text(text)
        expect(page.locator(".tail")).to_contain_text(reason)


def test_messages_in_the_wrong_order_lose_no_rows(page: Page) -> None:
    show(page, TailWindow, {"hello": HELLO})
    send_update(page, tail_row(3))
    page.evaluate("message => window.tell(message)", HELLO | {"rows": [tail_row(1), tail_row(2), tail_row(3)]})
    expect(page.locator("tr.event td:nth-child(3)")).to_have_text(["e3", "e2", "e1"])
    expect(page.locator(".state")).to_have_text("live")
    page.get_by_text("Clear").click()
    send_update(page, tail_row(3), tail_row(4))
    expect(page.locator("tr.event td:nth-child(3)")).to_have_text(["e4"])


def test_a_row_keeps_the_focus_while_rows_are_added(page: Page) -> None:
    show(page, TailWindow, {"hello": HELLO})
    send_update(page, tail_row(1))
    page.locator("tr.event").focus()
    send_update(page, tail_row(2))
    expect(page.locator("tr.event")).to_have_count(2)
    expect(page.locator("tr.event").nth(1)).to_be_focused()


def test_a_slow_answer_is_awaited_once_the_kernel_has_responded(page: Page) -> None:
    show(page, CatalogWindow, {})
    page.evaluate("() => window.tell({id: window.sent[0].id, received: true})")
    page.clock.run_for(60_000)
    expect(page.locator(".notice")).to_have_text("")
    page.evaluate("answer => window.tell({...answer, id: window.sent[0].id})", LISTED)
    expect(page.locator("tr[data-event]")).to_have_count(3)


@pytest.mark.parametrize("window", [CatalogWindow, TailWindow])
def test_a_removed_widget_leaves_nothing_in_the_page(page: Page, window: Callable[..., Any]) -> None:
    show(page, window, {"list": LISTED, "hello": HELLO})  # type: ignore[arg-type]
    expect(page.locator("tbody")).to_be_visible()
    page.evaluate("window.end()")
    assert page.locator("body *").count() == 0


STATS = {
    "title": EVIL,
    "pills": [["paused", "warn"]],
    "lines": ["12 entries: 2 dead.", EVIL],
    "steps": {"heads": ["step", "there now"], "numbers": [1], "rows": [[EVIL, "7"]]},
    "messages": {"heads": ["step", "sent"], "numbers": [1], "rows": [[EVIL, "5"]]},
    "dead": {"heads": ["cause", "step"], "numbers": [], "rows": [["no_wallet", EVIL]]},
    "days": {"heads": ["entered on", "rate"], "numbers": [1], "rows": [["2026-11-22", "12.5%"]]},
    "percents": [10, 13],
    "dates": ["2026-11-21", "2026-11-22"],
    "notice": "",
}


def test_the_dashboard_refreshes_and_replays_dead_letters(page: Page) -> None:
    show(page, LiveWindow, {"look": STATS, "replay": STATS | {"notice": "2 entries are tried again."}})
    expect(page.locator(".head")).to_contain_text(EVIL)
    expect(page.locator(".lines p").nth(1)).to_have_text(EVIL)
    expect(page.locator(".live svg.spark")).to_be_visible()
    page.locator("summary").click()
    expect(page.get_by_text("12.5%")).to_be_visible()
    page.clock.run_for(4_000)
    page.wait_for_function("() => window.sent.length === 2")
    expect(page.get_by_text("12.5%")).to_be_visible()
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("status")).to_have_text("2 entries are tried again.")
    assert [request["ask"] for request in page.evaluate("window.sent")] == ["look", "look", "replay"]
    assert page.evaluate("window.sent.at(-1).cause") == "no_wallet"
    assert page.locator("script, img").count() == 0
    page.evaluate("window.end()")
    page.clock.run_for(10_000)
    assert len(page.evaluate("window.sent")) == 3


def test_the_dashboard_shows_an_error_and_tries_again(page: Page) -> None:
    show(page, LiveWindow, {"look": {"error": EVIL}})
    expect(page.get_by_role("status")).to_have_text(EVIL)
    page.clock.run_for(4_000)
    page.wait_for_function("() => window.sent.length === 2")


FIELDS = [
    {
        "name": "event",
        "label": "Event",
        "kind": "choice",
        "value": "trade",
        "options": ["", EVIL, "trade"],
        "required": True,
    }
    | {"reloads": True, "help": ""},
    {"name": "payload.usd", "label": EVIL, "kind": "text", "value": EVIL, "options": ["5", EVIL], "required": False}
    | {"reloads": False, "help": EVIL},
]
PAGES = [
    {"title": title, "html": "", "forms": [{"name": title, "title": f"Form {title}", "submit": "Run"}]}
    for title in ("Explore", "Test")
]
FORMS = {
    "open": {
        "html": html("welcome.html.j2", state="connected", note="note", look="good", lines=(("a", "b"),), folded=True),
        "pages": PAGES,
    },
    "fields": {"fields": FIELDS, "note": ""},
    "run": {"html": "<p>the result</p>", "code": EVIL},
}


def test_a_form_is_filled_in_with_the_keyboard(page: Page) -> None:
    show(page, FormWindow, FORMS)
    page.get_by_role("tab", name="Explore").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Test")).to_be_focused()
    expect(page.get_by_role("tabpanel")).to_have_count(1)
    form = page.get_by_role("form", name="Form Test")
    form.get_by_role("combobox", name="Event").press("<")  # chooses another event, so the fields are read again
    expect(form.get_by_role("combobox", name="Event")).to_be_focused()
    form.locator("input").fill("7")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Form Test: result")).to_have_text("the result")
    expect(form.get_by_label("Code")).to_have_text(EVIL)
    requests = page.evaluate("window.sent.map(({ask, form, values}) => ({ask, form, values}))")
    assert requests[-1] == {"ask": "run", "form": "Test", "values": {"event": "trade", "payload.usd": "7"}}
    assert page.title() != "broken"
    assert keys_outside(page) == []


def test_an_edit_survives_an_answer_that_comes_later(page: Page) -> None:
    show(page, FormWindow, FORMS)
    first = page.locator("[role=tabpanel]:not([hidden]) input")
    first.wait_for()
    page.evaluate("() => { window.real = window.model.send; window.model.send = request => (window.late = request); }")
    page.get_by_role("combobox", name="Event").select_option(EVIL)
    first.fill("edited")
    page.evaluate("fields => window.tell({...fields, id: window.late.id})", FORMS["fields"])
    expect(page.get_by_role("combobox", name="Event")).to_have_value("trade")  # as Python answered
    expect(first).to_have_value("edited")


@pytest.mark.parametrize(
    ("window", "answers"),
    [
        (CatalogWindow, {"list": LISTED, "look": LOOKED}),
        (TailWindow, {"hello": HELLO | {"rows": [tail_row(1), tail_row(2, outcome="rejected")], "state": "following"}}),
        (LiveWindow, {"look": STATS}),
        (FormWindow, FORMS),
    ],
)
def test_axe_finds_no_serious_fault_in_a_widget(page: Page, window: Any, answers: dict[str, Any]) -> None:
    show(page, window, answers)
    expect(page.locator(".ewb-widget :is(tbody tr, label):visible").first).to_be_visible()
    if window is CatalogWindow:
        page.locator("tr[data-event]").first.click()
        expect(page.locator(".detail")).to_be_visible()
    assert serious_findings(page, ".ewb-widget") == []
