"""The canvas works without a browser: pieces, patches, exact numbers, forms, previews and concurrent views."""

import copy
import hashlib
import re
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from tests.workbench.test_verbs import branching, new, thanks
from workbench import Automation
from workbench.canvas.document import DraftPieces, Patch, from_browser, palette, to_browser, without_overlaps
from workbench.canvas.widget import Canvas
from workbench.display.cards import WIDTH
from workbench.display.layout import Box, route_edge
from workbench.draft import Draft
from workbench.language.actions import FIELDS, NODE_KINDS, InvalidAction, read_action
from workbench.language.codec import encode, normalize

# The build

SOURCES = Path(__file__).parents[2] / "workbench" / "canvas_src"
STATIC = SOURCES.parent / "static"


def test_the_build_matches_its_sources_and_is_small() -> None:
    names = ["build.mjs", "package-lock.json", "../display/icons.json"]
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
def test_values_survive_the_browser_exactly(value: Any) -> None:
    assert encode(from_browser(to_browser(value))) == encode(normalize(value))


@pytest.mark.parametrize("value", [1, 1.5, -3, 0.1, "1.0", True])
def test_numbers_that_javascript_keeps_are_sent_unchanged(value: object) -> None:
    assert to_browser(value) == value


@pytest.mark.parametrize("value", [2**53, 10**30, Decimal("1.0"), Decimal("0.10"), 1e21, 1e-7])
def test_numbers_that_javascript_would_change_are_sent_as_digits(value: object) -> None:
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
def test_a_draft_that_is_opened_and_not_changed_stays_the_same(nodes: list[Any], edges: list[Any]) -> None:
    payload = {"name": "n", "triggerSpec": {"type": "app_event"}, "graph": {"nodes": nodes, "edges": edges, "more": 1}}
    draft = Automation.from_json(payload)._draft
    assert DraftPieces.of(draft, {}).draft("n").payload() == payload
    assert DraftPieces.of(draft, {}).patched(Patch()).draft("n").payload() == payload


def test_cards_that_move_down_leave_the_draft_as_it_was() -> None:
    draft = branching()._draft
    for node in draft.nodes:
        node["position"] = {"x": 0, "y": 0}
    payload = copy.deepcopy(draft.payload())
    moved = without_overlaps(DraftPieces.of(draft, {}))
    assert len({node["position"]["y"] for node in moved.nodes.values()}) == len(draft.nodes)
    assert draft.payload() == payload


def test_a_patch_changes_only_its_pieces() -> None:
    pieces = DraftPieces.of(branching()._draft, {})
    changed = pieces.nodes["send_inapp"] | {"data": {"actionType": "send_inapp", "title": "t", "body": "b"}}
    after = pieces.patched(Patch(nodes={"send_inapp": changed, "add_tag_seen": None}, order=("if_plan", "trigger")))
    assert [*after.nodes] == ["if_plan", "trigger", "add_tag_pro_customer", "send_inapp"]
    assert after.nodes["send_inapp"] == changed
    assert after.nodes["trigger"] is pieces.nodes["trigger"]
    assert after.edges == pieces.edges


# Forms


def test_the_palette_has_a_form_of_every_kind_with_the_fields_that_the_language_reads() -> None:
    entries = palette()["kinds"]
    assert [entry["kind"] for entry in entries] == [*NODE_KINDS]
    for entry in entries:
        fields = {field["name"] for field in entry["fields"]}
        assert {field.key for field in FIELDS.get(entry["kind"], ())} - {"recipientMode"} <= fields
        assert entry["blank"].keys() - {"actionType", "recipientMode", "event"} <= fields, entry["kind"]
        action = read_action(entry["kind"], {}, "n")
        problems = action.problems if isinstance(action, InvalidAction) else ()
        assert {problem.field.removeprefix("n.data.") for problem in problems} <= fields


def test_an_incomplete_node_has_the_handles_of_its_kind() -> None:
    assert read_action("wait_for_event", {}, "n").handles == ("matched", "timeout")
    halves = [{"handle": "a", "percent": 1}, {"handle": "b", "percent": 1}, {"handle": "b"}]
    assert read_action("split", {"branches": halves}, "n").handles == ("a", "b")
    assert read_action("split", {}, "n").handles == (None,)


# The widget, without a kernel


class RecordingCanvas(Canvas):
    """A canvas that records the messages to its views."""

    def __init__(self, automation: Automation, **options: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        super().__init__(automation, **options)

    def send(self, content: Any, buffers: Any = None) -> None:
        self.sent.append(content)

    def receive(self, **content: Any) -> Any:
        self.sent.clear()
        self._receive(self, content, [])
        return self.sent[-1] if self.sent else None

    def edit(self, number: int, view: str = "v", **patch: Any) -> None:
        self.receive(kind="edit", view=view, number=number, patch=patch)

    def request(self, name: str, **parameters: Any) -> Any:
        response = self.receive(kind="request", id="v/1", name=name, **parameters)
        assert "error" not in response, response
        return response["value"]


def node(canvas: Canvas, key: str) -> Any:
    return next(piece["node"] for piece in canvas.document["nodes"] if piece["key"] == key)


def test_an_edit_that_is_sent_twice_is_applied_once() -> None:
    automation = thanks()
    canvas = RecordingCanvas(automation)
    tag = {"id": "add_tag", "type": "add_tag", "data": {"tag": "x"}}
    for _ in range(2):
        canvas.edit(1, nodes={"add_tag": tag}, created=["add_tag"])
    assert automation.to_json()["graph"]["nodes"][-1] == tag
    assert canvas.document["acknowledged"] == {"v": 1}
    assert canvas.sent == []


def test_a_step_created_concurrently_is_not_overwritten() -> None:
    automation = thanks()
    canvas = RecordingCanvas(automation)
    canvas.automation = automation.add_tag("x")
    canvas.receive(
        kind="edit",
        view="v",
        number=1,
        patch={"nodes": {"add_tag_x": {"id": "add_tag_x", "type": "exit"}}, "created": ["add_tag_x"]},
    )
    assert canvas.sent[0]["kind"] == "rejected"
    assert node(canvas, "add_tag_x")["type"] == "add_tag"


def test_an_edit_changes_all_values_that_were_assigned() -> None:
    first = thanks()
    canvas = RecordingCanvas(first)
    second = first.add_tag("more")
    canvas.automation = second
    assert canvas.automation is second
    canvas.edit(1, nodes={"send_inapp": None})
    assert "send_inapp" not in {node["id"] for node in first.to_json()["graph"]["nodes"]}
    assert first.to_json() == second.to_json()


def test_concurrent_edits_of_views_are_all_kept() -> None:
    automation = new().on("deposit").add_tag("start")
    canvas = RecordingCanvas(automation)

    def draw(view: str) -> None:
        for number in range(1, 16):
            key = f"{view}{number}"
            canvas._edit(
                {
                    "view": view,
                    "number": number,
                    "patch": {"nodes": {key: {"id": key, "type": "exit", "data": {}}}, "created": [key]},
                }
            )

    threads = [threading.Thread(target=draw, args=(view,)) for view in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(automation.to_json()["graph"]["nodes"]) == 2 + 45
    assert canvas.document["acknowledged"] == {"a": 15, "b": 15, "c": 15}


def test_two_canvases_of_one_automation_stay_in_step() -> None:
    automation = thanks()
    first, second = RecordingCanvas(automation), RecordingCanvas(automation, read_only=True)
    first.edit(1, nodes={"send_inapp": None})
    second.receive(kind="ping", view="w")
    assert [piece["key"] for piece in second.document["nodes"]] == ["trigger"]
    assert automation.canvas() is automation.canvas()


def test_an_empty_automation_gets_a_trigger_with_the_first_edit() -> None:
    automation = Automation(Draft("Empty"))
    canvas = RecordingCanvas(automation)
    assert [piece["key"] for piece in canvas.document["nodes"]] == ["trigger"]
    assert automation.to_json()["graph"]["nodes"] == []
    canvas.edit(1, trigger={"type": "app_event", "event": "deposit"})
    assert automation._draft.language()[0].names == {"deposit"}
    assert [node["id"] for node in automation.to_json()["graph"]["nodes"]] == ["trigger"]


def test_an_incomplete_trigger_is_shown_with_its_error() -> None:
    canvas = RecordingCanvas(thanks())
    canvas.edit(1, trigger={"type": "app_event", "filters": [{"path": "", "operator": "eq", "value": 1}]})
    [error] = [diagnostic for diagnostic in canvas.diagnostics if diagnostic["level"] == "error"]
    assert (error["key"], error["field"]) == ("trigger", "filters[0].path")
    assert canvas.cards.keys() == {"trigger", "send_inapp"}


@pytest.mark.parametrize("trigger", [{"type": "app_event", "event": ""}, {"type": "app_event"}])
def test_every_event_needs_consent_also_if_python_wrote_it(trigger: dict[str, str]) -> None:
    canvas = RecordingCanvas(new().on_any_event().add_tag("x"))
    assert [diagnostic["consent"] for diagnostic in canvas.diagnostics] == ["every_event"]
    canvas.edit(1, trigger=trigger)
    assert [diagnostic["consent"] for diagnostic in canvas.diagnostics] == ["every_event"]


def test_an_error_in_the_settings_names_its_field() -> None:
    canvas = RecordingCanvas(thanks())
    canvas.edit(1, extra={"settings": {"goal": {"event": ""}}})
    assert "settings.goal.event" in [diagnostic["field"] for diagnostic in canvas.diagnostics]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonsense", "unknown action"),
        ("preview", "KeyError"),
        ("reload", "not connected"),
        ("publish", "not connected"),
    ],
)
def test_an_invalid_request_gets_an_error(name: str, message: str) -> None:
    assert message in RecordingCanvas(thanks()).receive(kind="request", id="v/1", name=name)["error"]


SAMPLE = {"event": "deposit", "payload": '{"amountUsd": 100, "who": "<b>"}'}


def test_a_preview_shows_the_message_as_it_would_be_received() -> None:
    canvas = RecordingCanvas(new().on("deposit").send_email(subject="{{ amountUsd }}", body="<p>{{ who }}</p>"))
    shown = canvas.request("preview", key="send_email", sample=SAMPLE)
    assert (shown["title"], shown["body"], shown["html"]) == ("100", "<p>&lt;b&gt;</p>", True)
    assert "no email" in shown["note"]


def test_a_preview_and_a_test_show_the_texts_of_the_chosen_locale() -> None:
    locales = {"de": {"subject": "Danke", "body": "{{ x }}"}, "fr": {"subject": "Merci", "body": "b"}}
    canvas = RecordingCanvas(new().on("deposit").default_locale("fr").send_email("Thanks", "b", locales=locales))
    shown = canvas.request("preview", key="send_email", sample=SAMPLE)
    assert (shown["title"], shown["text"]) == ("Thanks", "Sent with the default texts.")
    shown = canvas.request("preview", key="send_email", sample=SAMPLE | {"locale": "fr-CA"})
    assert (shown["title"], shown["text"]) == ("Merci", "Sent in fr.")
    assert "x" in canvas.request("preview", key="send_email", sample=SAMPLE | {"locale": "de"})["error"]
    contact = {"email": "ann@example.com"}
    automation = canvas.automation
    assert [message.subject for message in automation.simulate({}, contact, locale="de").messages] == []
    assert [message.subject for message in automation.simulate({}, contact, locale="fr").messages] == ["Merci"]


def test_a_preview_shows_errors_and_the_branch() -> None:
    canvas = RecordingCanvas(
        new().on("deposit").when("who", eq="x").then(lambda b: b.send_inapp(title="{{ x }}", body="b"))
    )
    assert canvas.request("preview", key="send_inapp", sample=SAMPLE)["error"] == "Skipped: the value 'x' is missing"
    preview = canvas.request("preview", key="if_who", sample=SAMPLE)
    assert preview["text"] == "Continues at “no”."
    assert preview["verdicts"][0]["actual"] == "“<b>”"


@pytest.mark.parametrize(
    ("event", "text"), [("deposit", "starts the automation"), ("other", "does not start the automation")]
)
def test_a_preview_of_the_trigger_shows_whether_the_event_starts_it(event: str, text: str) -> None:
    preview = RecordingCanvas(thanks()).request("preview", key="trigger", sample=SAMPLE | {"event": event})
    assert text in preview["text"]


def test_a_simulation_marks_its_path_on_the_cards() -> None:
    simulation = RecordingCanvas(branching()).request("simulate", sample=SAMPLE | {"event": "trade"})
    assert simulation["marks"] == {
        "trigger": "done",
        "if_plan": "done",
        "send_inapp": "skipped",
        "add_tag_seen": "done",
    }
    assert {"key": "if_plan", "handle": "false"} in simulation["path"]


def test_the_layout_gives_every_step_its_own_position() -> None:
    places = RecordingCanvas(branching()).request("arrange")
    assert len({(place["x"], place["y"]) for place in places.values()}) == len(places) == 5


def test_positions_set_by_a_user_are_kept_and_drawn() -> None:
    automation = thanks()
    canvas = RecordingCanvas(automation)
    canvas.edit(1, nodes={"send_inapp": node(canvas, "send_inapp") | {"position": {"x": 500, "y": 400}}})
    again = Automation.from_json(automation.to_json())
    assert again.svg() == automation.svg()
    assert node(RecordingCanvas(again), "send_inapp")["position"] == {"x": 500, "y": 400}
    following = again.add_tag("more").to_json()["graph"]["nodes"][-1]["position"]
    assert following["y"] > 400
    assert following["x"] == 500


def test_an_edge_is_routed_around_a_card() -> None:
    card = Box(0, 100, WIDTH, 150)
    [(middle, top, bottom)] = route_edge((140, 0), (140, 300), [card])
    assert (top, bottom) == (100, 150)
    assert not card.left <= middle <= card.right
    assert route_edge((500, 0), (500, 300), [card]) == ()


def test_a_saved_notebook_shows_a_static_picture() -> None:
    shell = InteractiveShell.instance()
    shell.push({"a": thanks()})
    with capture_output() as captured:
        shell.run_cell("a.canvas()")
    widget, picture = (output._data if hasattr(output, "_data") else output.data for output in captured.outputs)
    assert "application/vnd.jupyter.widget-view+json" in widget
    assert widget["text/plain"] == "Canvas of 'Thanks': run the cell to draw on it"
    assert "data:image/svg+xml;base64," in picture["text/html"]


# Logs of contracts


TOKEN = "0x" + "c0" * 20
SIGNATURE = "Transfer(address indexed from, address indexed to, uint256 value)"


def on_chain() -> Automation:
    started = new().on_chain(contract=TOKEN, event=SIGNATURE, to_contact="to", chain_id=1)
    return started.where("value", neq="0").send_inapp(title="{{ value }} for {{ walletAddress }}", body="{{ txHash }}")


def test_an_on_chain_trigger_is_completed_field_by_field() -> None:
    automation = Automation(Draft("Tokens"))
    canvas = RecordingCanvas(automation)
    trigger = {"type": "onchain_event", "signature": SIGNATURE}
    canvas.edit(1, nodes={"trigger": {"id": "trigger", "type": "onchain_event", "data": {}}}, trigger=trigger)
    assert canvas.cards["trigger"]["kind"] == "When on chain"
    assert canvas.cards["trigger"]["title"] == ["which contract?"]
    errors = [error for error in canvas.diagnostics if error["level"] == "error" and error["key"] == "trigger"]
    assert [error["field"] for error in errors] == ["chainId", "contract", "walletArg"]
    paths = canvas.request("choices")["paths"][SIGNATURE]
    assert [path["path"] for path in paths if path["types"] == ["address"]] == ["from", "to"]
    canvas.edit(2, trigger=trigger | {"chainId": 1, "contract": TOKEN, "walletArg": "to"})
    assert automation._draft.language()[0].source is not None
    shown = canvas.cards["trigger"]
    assert (shown["title"], shown["lines"]) == (["Transfer"], ["0xc0c0c0…c0c0 on chain 1", "wallet in to"])


def test_a_trigger_on_a_segment_is_completed_and_tested() -> None:
    canvas = RecordingCanvas(Automation(Draft("Welcome")))
    trigger = {"type": "segment_entered"}
    canvas.edit(1, nodes={"trigger": {"id": "trigger", "type": "segment_entered", "data": {}}}, trigger=trigger)
    assert canvas.cards["trigger"]["title"] == ["which segment?"]
    errors = [error for error in canvas.diagnostics if error["level"] == "error" and error["key"] == "trigger"]
    assert [error["field"] for error in errors] == ["segment"]
    canvas.edit(2, trigger=trigger | {"segment": "vip", "where": "segment == 'vip'"})
    assert canvas.cards["trigger"]["title"] == ["enters vip"]
    assert canvas.request("choices")["paths"]["segment_entered"][0]["path"] == "segment"
    [event] = canvas.request("samples")
    sample = {"event": event["event"], "payload": event["payload"]}
    assert canvas.request("preview", key="trigger", sample=sample)["text"] == "This contact starts the automation."


def test_the_form_of_a_schedule_shows_its_next_runs() -> None:
    canvas = RecordingCanvas(new().on_schedule("0 9 * * mon", timezone="Europe/Zurich").add_tag("x"))
    text = canvas.request("preview", key="trigger", sample={"event": "schedule"})["text"]
    assert re.fullmatch(r"Next runs: (Mon \d{4}-\d\d-\d\d 09:00(, )?){3} \(Europe/Zurich\)\.", text)


def test_a_log_is_tested_like_any_event() -> None:
    canvas = RecordingCanvas(on_chain())
    [event] = canvas.request("samples")
    sample = {"event": event["event"], "payload": event["payload"], "contact": event["contactId"]}
    assert "does not start the automation" in canvas.request("preview", key="trigger", sample=sample)["text"]
    sample["payload"] = sample["payload"].replace('"value":"0"', '"value":"7"')
    assert "This event starts the automation." in canvas.request("preview", key="trigger", sample=sample)["text"]
    title = f"7 for 0x{'ab' * 20}"
    assert canvas.request("preview", key="send_inapp", sample=sample)["title"] == title
    assert [message["title"] for message in canvas.request("simulate", sample=sample)["messages"]] == [title]


def test_a_log_of_zeros_is_valid() -> None:
    matrix = "uint8[60000][60000] m"
    signature = f"F(address to, string indexed s, uint8[3] a, (uint8 x, bytes4 y)[2] t, bytes b, uint8[] e, {matrix})"
    canvas = RecordingCanvas(new().on_chain(contract=TOKEN, event=signature, to_contact="to", chain_id=1).add_tag("x"))
    [event] = canvas.request("samples")
    payload = event["payload"].replace(',"m":[]', "")
    sample = {"event": event["event"], "payload": payload, "contact": event["contactId"]}
    assert "This event starts the automation." in canvas.request("preview", key="trigger", sample=sample)["text"]


def test_a_log_with_an_unknown_parameter_gets_an_error() -> None:
    sample = {"event": "Transfer", "payload": '{"to": "0x12", "worth": 1}'}
    for name in ("preview", "simulate"):
        response = RecordingCanvas(on_chain()).receive(
            kind="request", id="v/1", name=name, key="trigger", sample=sample
        )
        assert "is not a parameter of Transfer" in response["error"]
