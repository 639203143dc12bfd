"""The canvas without a browser: pieces and patches, exact numbers, forms, previews, and views that speak at the same time."""

import hashlib
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from tests.workbench.test_writing import branching, new, thanks
from workbench import Automation
from workbench.canvas.document import Patch, from_browser, sheet_of, to_browser
from workbench.canvas.forms import FORMS
from workbench.canvas.widget import Canvas
from workbench.display.cards import WIDTH
from workbench.display.layout import Box, route_edge
from workbench.draft import Draft
from workbench.language.actions import NODE_KINDS, InvalidAction, read_action
from workbench.language.codec import encode, normalise

# The build

SOURCES = Path(__file__).parents[2] / "workbench" / "canvas_src"
STATIC = SOURCES.parent / "static"


def test_the_built_canvas_is_that_of_its_sources_and_small() -> None:
    names = ["build.mjs", "package-lock.json", "../display/looks.json"]
    names += [path.relative_to(SOURCES).as_posix() for path in (SOURCES / "src").rglob("*") if path.is_file()]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\n".encode() + (SOURCES / name).read_bytes())
    assert (STATIC / "canvas.sources").read_text().strip() == digest.hexdigest(), "run `make canvas`"
    assert (STATIC / "canvas.js").stat().st_size < 1_000_000


# Values


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.sampled_from(["$exact", "$object", "1.0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$exact", "$object", "a", "1"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON)
def test_values_come_back_from_a_browser_to_the_last_digit(value: Any) -> None:
    assert encode(from_browser(to_browser(value))) == encode(normalise(value))


@pytest.mark.parametrize("value", [1, 1.5, -3, 0.1, "1.0", True])
def test_what_javascript_keeps_travels_as_it_is(value: object) -> None:
    assert to_browser(value) == value


@pytest.mark.parametrize("value", [2**53, 10**30, Decimal("1.0"), Decimal("0.10"), 1e21, 1e-7])
def test_what_javascript_would_change_travels_as_digits(value: object) -> None:
    assert to_browser(value).keys() == {"$exact"}


# Pieces

KEYS = st.sampled_from(["a", "b", "b", "7", ""])
NODES = st.lists(
    st.fixed_dictionaries(
        {"id": KEYS.filter(bool), "type": st.sampled_from([*NODE_KINDS, "odd"])}, optional={"x": JSON}
    ),
    min_size=1,
    max_size=5,
)
EDGES = st.lists(
    st.fixed_dictionaries({"source": st.just("a"), "target": st.just("b")}, optional={"id": KEYS, "y": JSON}),
    max_size=4,
)


@given(NODES, EDGES)
def test_whatever_is_opened_and_not_touched_stays_as_it_was(nodes: list[Any], edges: list[Any]) -> None:
    payload = {"name": "n", "triggerSpec": {"type": "app_event"}, "graph": {"nodes": nodes, "edges": edges, "more": 1}}
    draft = Automation.from_json(payload)._draft
    assert sheet_of(draft, {}).draft("n").payload() == payload
    assert sheet_of(draft, {}).patched(Patch()).draft("n").payload() == payload


def test_a_patch_changes_its_pieces_only() -> None:
    sheet = sheet_of(branching()._draft, {})
    changed = sheet.nodes["send_inapp"] | {"data": {"actionType": "send_inapp", "title": "t", "body": "b"}}
    after = sheet.patched(Patch(nodes={"send_inapp": changed, "add_tag_seen": None}, order=("if_plan", "trigger")))
    assert [*after.nodes] == ["if_plan", "trigger", "add_tag_pro_customer", "send_inapp"]
    assert after.nodes["send_inapp"] == changed
    assert after.nodes["trigger"] is sheet.nodes["trigger"]
    assert after.edges == sheet.edges


# Forms


def test_every_kind_has_a_form_and_every_field_is_one_that_the_language_reads() -> None:
    assert FORMS.keys() == set(NODE_KINDS)
    for kind, form in FORMS.items():
        read = read_action(kind, {}, "n")
        asked = (
            {each.field.removeprefix("n.data.") for each in read.problems} if isinstance(read, InvalidAction) else set()
        )
        assert asked <= {field.name for field in form.fields}, kind
        assert form.blank.keys() - {"recipientMode", "event"} <= {field.name for field in form.fields}, kind


# The widget, without a kernel


class Heard(Canvas):
    """A canvas that keeps what it says to its views."""

    def __init__(self, automation: Automation, **options: Any) -> None:
        self.said: list[dict[str, Any]] = []
        super().__init__(automation, **options)

    def send(self, content: Any, buffers: Any = None) -> None:
        self.said.append(content)

    def hear(self, **content: Any) -> Any:
        self.said.clear()
        self._receive(self, content, [])
        return self.said[-1] if self.said else None

    def edit(self, number: int, view: str = "v", **patch: Any) -> None:
        self.hear(kind="edit", view=view, number=number, patch=patch)

    def ask(self, what: str, **more: Any) -> Any:
        answer = self.hear(kind="ask", id="v/1", what=what, **more)
        assert "error" not in answer, answer
        return answer["value"]


def node(canvas: Canvas, key: str) -> Any:
    return next(each["node"] for each in canvas.document["nodes"] if each["key"] == key)


def test_a_change_is_written_once_however_often_it_is_sent() -> None:
    automation = thanks()
    canvas = Heard(automation)
    tag = {"id": "add_tag", "type": "add_tag", "data": {"tag": "x"}}
    for _ in range(2):
        canvas.edit(1, nodes={"add_tag": tag}, fresh=["add_tag"])
    assert automation.to_json()["graph"]["nodes"][-1] == tag
    assert canvas.document["seen"] == {"v": 1}
    assert canvas.said == []


def test_a_step_that_somebody_else_made_meanwhile_is_not_overwritten() -> None:
    automation = thanks()
    canvas = Heard(automation)
    canvas.automation = automation.add_tag("x")
    canvas.hear(
        kind="edit",
        view="v",
        number=1,
        patch={"nodes": {"add_tag_x": {"id": "add_tag_x", "type": "exit"}}, "fresh": ["add_tag_x"]},
    )
    assert canvas.said[0]["kind"] == "refused"
    assert node(canvas, "add_tag_x")["type"] == "add_tag"


def test_what_is_assigned_is_drawn_and_what_is_drawn_is_in_every_value_that_was() -> None:
    first = thanks()
    canvas = Heard(first)
    second = first.add_tag("more")
    canvas.automation = second
    assert canvas.automation is second
    canvas.edit(1, nodes={"send_inapp": None})
    assert "send_inapp" not in {node["id"] for node in first.to_json()["graph"]["nodes"]}
    assert first.to_json() == second.to_json()


def test_views_and_cells_that_write_at_the_same_time_lose_nothing() -> None:
    automation = new().on("deposit").add_tag("start")
    canvas = Heard(automation)

    def draw(view: str) -> None:
        for number in range(1, 16):
            key = f"{view}{number}"
            canvas._edit(
                {
                    "view": view,
                    "number": number,
                    "patch": {"nodes": {key: {"id": key, "type": "exit", "data": {}}}, "fresh": [key]},
                }
            )

    threads = [threading.Thread(target=draw, args=(view,)) for view in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(automation.to_json()["graph"]["nodes"]) == 2 + 45
    assert canvas.document["seen"] == {"a": 15, "b": 15, "c": 15}


def test_two_canvases_of_one_automation_know_of_each_other() -> None:
    automation = thanks()
    one, two = Heard(automation), Heard(automation, read_only=True)
    one.edit(1, nodes={"send_inapp": None})
    two.hear(kind="tick", view="w")
    assert [each["key"] for each in two.document["nodes"]] == ["trigger"]
    assert automation.canvas() is automation.canvas()


def test_an_empty_automation_begins_with_its_trigger_once_something_is_drawn() -> None:
    automation = Automation(Draft("Empty"))
    canvas = Heard(automation)
    assert [each["key"] for each in canvas.document["nodes"]] == ["trigger"]
    assert automation.to_json()["graph"]["nodes"] == []
    canvas.edit(1, trigger={"type": "app_event", "event": "deposit"})
    assert automation._draft.language()[0].names == {"deposit"}
    assert [each["id"] for each in automation.to_json()["graph"]["nodes"]] == ["trigger"]


def test_a_half_written_trigger_is_shown_with_what_is_wrong() -> None:
    canvas = Heard(thanks())
    canvas.edit(1, trigger={"type": "app_event", "filters": [{"path": "", "operator": "eq", "value": 1}]})
    [problem] = [each for each in canvas.remarks if each["level"] == "error"]
    assert (problem["key"], problem["field"]) == ("trigger", "filters[0].path")
    assert canvas.cards.keys() == {"trigger", "send_inapp"}


def test_settings_that_are_wrong_are_said_where_they_are_written() -> None:
    canvas = Heard(thanks())
    canvas.edit(1, beside={"settings": {"goal": {"event": ""}}})
    assert "settings.goal.event" in [each["field"] for each in canvas.remarks]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("nonsense", "unknown action"),
        ("preview", "KeyError"),
        ("reload", "not connected"),
        ("publish", "not connected"),
    ],
)
def test_every_question_is_answered_also_one_that_makes_no_sense(what: str, words: str) -> None:
    assert words in Heard(thanks()).hear(kind="ask", id="v/1", what=what)["error"]


TRIED = {"event": "deposit", "payload": '{"amountUsd": 100, "who": "<b>"}'}


def test_a_preview_is_what_the_receiver_would_see() -> None:
    canvas = Heard(new().on("deposit").send_email(subject="{{ amountUsd }}", body="<p>{{ who }}</p>"))
    shown = canvas.ask("preview", key="send_email", tried=TRIED)
    assert (shown["title"], shown["body"], shown["html"]) == ("100", "<p>&lt;b&gt;</p>", True)
    assert "no email" in shown["note"]


def test_a_preview_says_what_would_fail_and_which_way_it_goes() -> None:
    canvas = Heard(new().on("deposit").when("who", eq="x").then(lambda b: b.send_inapp(title="{{ x }}", body="b")))
    assert canvas.ask("preview", key="send_inapp", tried=TRIED)["error"] == "there is no value 'x'"
    asked = canvas.ask("preview", key="if_who", tried=TRIED)
    assert asked["says"] == "Continues at “no”."
    assert asked["asked"][0]["found"] == "“<b>”"


@pytest.mark.parametrize(
    ("event", "says"), [("deposit", "starts the automation"), ("other", "does not start the automation")]
)
def test_a_preview_of_the_trigger_says_whether_it_starts(event: str, says: str) -> None:
    shown = Heard(thanks()).ask("preview", key="trigger", tried=TRIED | {"event": event})
    assert says in shown["says"]


def test_a_trial_marks_the_path_on_the_cards() -> None:
    tried = TRIED | {"event": "trade"}
    trial = Heard(branching()).ask("simulate", tried=tried)
    assert trial["marks"] == {"trigger": "done", "if_plan": "done", "send_inapp": "failed"}
    assert {"key": "if_plan", "handle": "false"} in trial["ways"]


def test_laying_out_gives_every_step_a_place_of_its_own() -> None:
    places = Heard(branching()).ask("arrange")
    assert len({(each["x"], each["y"]) for each in places.values()}) == len(places) == 5


def test_what_somebody_put_somewhere_stays_there_and_is_drawn_there() -> None:
    automation = thanks()
    canvas = Heard(automation)
    canvas.edit(1, nodes={"send_inapp": node(canvas, "send_inapp") | {"position": {"x": 500, "y": 400}}})
    again = Automation.from_json(automation.to_json())
    assert again.svg() == automation.svg()
    assert node(Heard(again), "send_inapp")["position"] == {"x": 500, "y": 400}
    following = again.add_tag("more").to_json()["graph"]["nodes"][-1]["position"]
    assert following["y"] > 400
    assert following["x"] == 500


def test_an_edge_passes_beside_a_card_in_its_way() -> None:
    card = Box(0, 100, WIDTH, 150)
    [(middle, top, bottom)] = route_edge((140, 0), (140, 300), [card])
    assert (top, bottom) == (100, 150)
    assert not card.left <= middle <= card.right
    assert route_edge((500, 0), (500, 300), [card]) == ()


def test_a_notebook_keeps_a_picture_for_where_there_is_no_kernel() -> None:
    shell = InteractiveShell.instance()
    shell.push({"a": thanks()})
    with capture_output() as captured:
        shell.run_cell("a.canvas()")
    widget, copy = (each._data if hasattr(each, "_data") else each.data for each in captured.outputs)
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert widget["text/plain"] == "Canvas of 'Thanks': run the cell to draw on it"
    assert "data:image/svg+xml;base64," in copy["text/html"]


# Logs of contracts


TOKEN = "0x" + "c0" * 20
SIGNATURE = "Transfer(address indexed from, address indexed to, uint256 value)"


def on_chain() -> Automation:
    started = new().on_chain(contract=TOKEN, event=SIGNATURE, to_contact="to", chain_id=1)
    return started.where("value", neq="0").send_inapp(title="{{ value }} for {{ walletAddress }}", body="{{ txHash }}")


def test_a_trigger_on_chain_is_filled_in_field_by_field() -> None:
    automation = Automation(Draft("Tokens"))
    canvas = Heard(automation)
    trigger = {"type": "onchain_event", "signature": SIGNATURE}
    canvas.edit(1, nodes={"trigger": {"id": "trigger", "type": "onchain_event", "data": {}}}, trigger=trigger)
    assert canvas.cards["trigger"]["kind"] == "When on chain"
    assert canvas.cards["trigger"]["title"] == ["which contract?"]
    wrong = [each["field"] for each in canvas.remarks if each["level"] == "error" and each["key"] == "trigger"]
    assert wrong == ["chainId", "contract", "walletArg"]
    offered = canvas.ask("choices")["paths"][SIGNATURE]
    assert [each["path"] for each in offered if each["types"] == ["address"]] == ["from", "to"]
    canvas.edit(2, trigger=trigger | {"chainId": 1, "contract": TOKEN, "walletArg": "to"})
    assert automation._draft.language()[0].source is not None
    shown = canvas.cards["trigger"]
    assert (shown["title"], shown["lines"]) == (["Transfer"], ["0xc0c0c0…c0c0 on chain 1", "wallet in to"])


def test_a_log_is_tried_like_any_event() -> None:
    canvas = Heard(on_chain())
    [sample] = canvas.ask("samples")
    given = {"event": sample["event"], "payload": sample["payload"], "person": sample["contactId"]}
    assert "does not start the automation" in canvas.ask("preview", key="trigger", tried=given)["says"]
    given["payload"] = given["payload"].replace('"value":"0"', '"value":"7"')
    assert "This event starts the automation." in canvas.ask("preview", key="trigger", tried=given)["says"]
    said = f"7 for 0x{'ab' * 20}"
    assert canvas.ask("preview", key="send_inapp", tried=given)["title"] == said
    assert [each["title"] for each in canvas.ask("simulate", tried=given)["messages"]] == [said]


def test_a_log_of_zeros_is_one_that_a_contract_can_log() -> None:
    event = "F(address to, string indexed s, uint8[3] a, (uint8 x, bytes4 y)[2] t, bytes b, uint8[] e, uint8[60000][60000] m)"
    canvas = Heard(new().on_chain(contract=TOKEN, event=event, to_contact="to", chain_id=1).add_tag("x"))
    [sample] = canvas.ask("samples")
    payload = sample["payload"].replace(',"m":[]', "")
    given = {"event": sample["event"], "payload": payload, "person": sample["contactId"]}
    assert "This event starts the automation." in canvas.ask("preview", key="trigger", tried=given)["says"]


def test_what_no_contract_logs_is_said_where_it_is_tried() -> None:
    tried = {"event": "Transfer", "payload": '{"to": "0x12", "worth": 1}'}
    for what in ("preview", "simulate"):
        answer = Heard(on_chain()).hear(kind="ask", id="v/1", what=what, key="trigger", tried=tried)
        assert "is not a parameter of Transfer" in answer["error"]
