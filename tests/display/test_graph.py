"""Every node of a picture has its place, nothing overlaps, and the document is valid XML for any texts."""

from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inapp.wallet import evm_wallet
from tests.workbench.test_verbs import branching, new, thanks
from workbench import Automation
from workbench.display.graph import RunPath, draw
from workbench.display.layout import Box, layer_nodes, lowered

NODES = st.integers(1, 12).map(lambda count: [str(number) for number in range(count)])
GRAPHS = NODES.flatmap(
    lambda nodes: st.tuples(
        st.just(nodes), st.lists(st.tuples(st.sampled_from([*nodes, "?"]), st.sampled_from(nodes)), max_size=24)
    )
)


@given(GRAPHS)
def test_nodes_never_overlap_and_edges_lead_down(graph) -> None:
    nodes, links = graph
    layout = layer_nodes(nodes, links)
    assert layout.places.keys() == set(nodes)
    for (left, row), (right, other) in combinations(layout.places.values(), 2):
        assert row != other or abs(left - right) > 0.99
    for source, target in layout.passing:
        assert layout.places[source][1] < layout.places[target][1]


def test_a_chain_is_a_straight_line() -> None:
    assert layer_nodes(["a", "b", "c"], [("a", "b"), ("b", "c")]).places == {"a": (0, 0), "b": (0, 1), "c": (0, 2)}


def test_the_true_branch_is_left_of_the_false_branch() -> None:
    places = layer_nodes(["if", "no", "yes"], [("if", "yes"), ("if", "no")]).places
    assert places["yes"][0] < places["if"][0] < places["no"][0]


def test_an_edge_is_routed_around_the_node_that_it_skips() -> None:
    layout = layer_nodes(["if", "a", "end"], [("if", "a"), ("if", "end"), ("a", "end")])
    ((across, row),) = layout.passing["if", "end"]
    assert row == 1
    assert abs(across - layout.places["a"][0]) > 0.6


BOXES = st.lists(
    st.builds(lambda x, y, height: Box(x, y, x + 280, y + height), *(st.integers(0, 600),) * 2, st.integers(54, 160)),
    max_size=9,
)


@given(BOXES)
def test_cards_move_down_until_none_is_on_another(boxes: list[Box]) -> None:
    by_key = {str(number): box for number, box in enumerate(boxes)}
    tops = lowered(by_key)
    after = {
        key: Box(box.left, tops.get(key, box.top), box.right, tops.get(key, box.top) + box.bottom - box.top)
        for key, box in by_key.items()
    }
    assert all(top > by_key[key].top for key, top in tops.items())
    assert lowered(after) == {}
    for one, other in combinations(after.values(), 2):
        beside = one.right <= other.left or other.right <= one.left
        assert beside or one.bottom < other.top or other.bottom < one.top


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


@given(TEXTS, TEXTS)
def test_any_text_makes_a_valid_document(title: str, body: str) -> None:
    automation = new().on("x").send_inapp(title=title, body=body)
    ElementTree.fromstring(automation.svg())


@pytest.mark.parametrize("automation", [thanks(), branching()])
def test_the_same_automation_makes_the_same_picture(automation: Automation) -> None:
    assert automation.svg() == Automation.from_json(automation.to_json()).svg()


def test_the_path_of_a_run_is_highlighted() -> None:
    simulation = branching().simulate({"event": "trade", "payload": {}}, contact={"walletAddress": evm_wallet("1")})
    page = simulation._repr_html_()
    assert "data:image/svg+xml;base64," in page
    plain = draw(*branching()._draft.language())[0]
    assert "stroke-dasharray" not in plain


def test_a_broken_draft_is_drawn_with_its_problems() -> None:
    automation = new().on("deposit").send_inapp(title="{{", body="x")
    assert "<b>Error:</b>" in automation._repr_html_()
    assert "send_inapp" in automation._repr_html_()


def test_a_card_shows_the_text_of_an_html_email() -> None:
    automation = new().on("x").send_email("Hi", "<h2>Ready?</h2><p>{{ name }} is <b>here</b></p>")
    words = "".join(ElementTree.fromstring(automation.svg()).itertext())
    assert "Ready? {{ name }} is here" in words
    assert "<b>" not in words


def test_a_share_is_not_cut_by_a_long_label() -> None:
    trigger, graph = new().on("x").wait_for("y", within="1d").then(lambda b: b.exit()).add_tag("z")._draft.language()
    shares = {("wait_for_y", "matched"): "72%", ("wait_for_y", "timeout"): "28%"}
    drawn = draw(trigger, graph, RunPath({}, shares=shares))[0]
    assert ">received 72%<" in drawn
    assert ">timed out 28%<" in drawn
    split = new().on("x").split({"a large first deposit": 50, "b": 50})
    trigger, graph = split.branch("a large first deposit", lambda b: b.exit()).add_tag("z")._draft.language()
    shares = {("split", "a large first deposit"): "40%", ("split", "b"): "60%"}
    drawn = draw(trigger, graph, RunPath({}, shares=shares))[0]
    assert ">40%<" in drawn
    assert ">b 60%<" in drawn
