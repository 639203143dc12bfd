"""Reading the drafts that authors send."""

import pytest

from api.automations.body import MAX_SPEC_BYTES, AutomationEdit, NewAutomation, diagnostics, publication_errors
from workbench.language.body import read_body

TRIGGER = b'{"type":"app_event"}'


def refused(body: bytes) -> list[str]:
    draft = read_body(NewAutomation, body)
    assert isinstance(draft, tuple)
    return [str(problem) for problem in draft]


def test_specs_stay_the_text_that_was_sent() -> None:
    spec = b'{"type":"app_event", "filters":[{"path":"a","operator":"eq","value":1.10}]}'
    assert read_body(NewAutomation, b'{"name":"n","triggerSpec":%b,"x":1}' % spec) == NewAutomation(
        name="n", trigger_spec=spec, graph=b'{"nodes":[],"edges":[]}'
    )


def test_every_problem_of_a_body_is_named() -> None:
    body = b'{"name":" ","triggerSpec":{"type":"x","filters":[{}]},"graph":{"nodes":[{}],"edges":[{}]},"active":"yes"}'
    assert [problem.split(":")[0] for problem in refused(body)] == [
        "name",
        "triggerSpec.type",
        "triggerSpec.filters[0].path",
        "graph.nodes[0].id",
        "graph.edges[0].source",
        "active",
    ]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"[]", "the body must be one JSON object"),
        (b"{", "malformed JSON: Input data was truncated"),
        (b'{"name":"\xff"}', "malformed JSON: not UTF-8 at byte 10"),
        (b"", "triggerSpec: is required"),
        (b'{"name":7,"triggerSpec":%b}' % TRIGGER, "name: must be a string"),
        (b'{"name":"%b","triggerSpec":%b}' % (b"n" * 201, TRIGGER), "name: must be 1 to 200 characters"),
        (b'{"name":"\\u0000","triggerSpec":%b}' % TRIGGER, "name: contains U+0000"),
        (b'{"name":"\\ud800","triggerSpec":%b}' % TRIGGER, "name: contains U+0000 or an unpaired surrogate"),
        (b'{"name":"n","triggerSpec":[]}', "triggerSpec: must be an object"),
        (b'{"name":"n","triggerSpec":{"type":"app_event","x":1e400}}', "triggerSpec: contains a number outside"),
        (b'{"name":"n","triggerSpec":%b,"graph":7}' % TRIGGER, "graph: must be an object with nodes and edges"),
    ],
)
def test_a_bad_body_is_refused_naming_the_field(body: bytes, problem: str) -> None:
    assert refused(body)[0].startswith(problem)


@pytest.mark.parametrize("surplus", [0, 1])
def test_a_graph_has_at_most_256_kilobytes(surplus: int) -> None:
    graph = b'{"note":"%b"}' % (b"x" * (MAX_SPEC_BYTES - len(b'{"note":""}') + surplus))
    draft = read_body(NewAutomation, b'{"name":"n","triggerSpec":%b,"graph":%b}' % (TRIGGER, graph))
    assert isinstance(draft, tuple if surplus else NewAutomation)


def test_an_edit_names_only_what_changes() -> None:
    assert read_body(AutomationEdit, b'{"revision":3,"active":false}') == AutomationEdit(3, None, None, None, False)


@pytest.mark.parametrize("revision", [b"null", b'"1"', b"true", b"0", b"1.5", b"2147483648"])
def test_an_edit_needs_a_revision(revision: bytes) -> None:
    edit = read_body(AutomationEdit, b'{"revision":%b,"name":"n"}' % revision)
    assert isinstance(edit, tuple)
    assert [problem.field for problem in edit] == ["revision"]


def test_an_unfinished_draft_is_accepted_with_remarks() -> None:
    assert isinstance(read_body(NewAutomation, b'{"name":"n","triggerSpec":%b}' % TRIGGER), NewAutomation)
    assert [remark.level for remark in diagnostics(TRIGGER, b'{"nodes":[]}')] == ["error", "warning"]


def test_publication_errors_name_the_node_and_the_part_of_it() -> None:
    graph = b'{"nodes":[{"id":"t","type":"app_event"},{"id":"m1","type":"send_inapp","data":{"body":"{{"}}],"edges":[]}'
    texts = [str(problem) for problem in publication_errors(TRIGGER, graph)]
    assert "node m1: data.title: must be a non-empty text" in texts
    assert any(text.startswith("node m1: data.body: line 1: ") for text in texts)
    assert "node m1: cannot be reached from the trigger" in texts
