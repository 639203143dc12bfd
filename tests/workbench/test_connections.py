"""Connections in a notebook: made from templates, previewed, used, and checked."""

import pytest

from tests.running import Running
from workbench import ConflictError, InvalidArgumentError, InvalidRequestError, NotFoundError, Workbench
from workbench.connections import TEMPLATES

KEYS = {"webhook_url": "https://a.example/services/api/webhooks/canary", "token": "canary", "account_sid": "canary"}


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


@pytest.mark.parametrize("template", TEMPLATES)
def test_each_template_makes_a_connection_that_hides_its_keys(wb: Workbench, template: str) -> None:
    parameters = {name: KEYS.get(name, "canary") for name in TEMPLATES[template].parameters}
    made = wb.connections.create_from(template, f"a-{template.replace('_', '-')}", **parameters)
    fields = dict.fromkeys(made.fields, "Hi")
    assert "canary" not in repr(made) + repr(wb.connections) + wb.connections._repr_html_() + made.preview(**fields)
    assert made.preview(**fields).startswith(f"POST {TEMPLATES[template].base_url}/")


def test_a_connection_is_used_and_checked(wb: Workbench) -> None:
    made = wb.connections.save(
        "desk",
        url="https://desk.example/{{ secrets.path }}",
        body={"note": "{{ fields.note }}"},
        secrets={"path": "canary"},
        success={"status": ["2xx"]},
    )
    assert made.preview(note='a "b"') == (
        'POST https://desk.example/***\ncontent-type: application/json\n\n{"note":"a \\"b\\""}'
    )
    with pytest.raises(InvalidArgumentError, match="note"):
        made.preview()
    start = wb.automation("by a connection").on("connections:deposit")
    automation = start.send_via("desk", note="{{ amountUsd }} USD")
    (message,) = automation.simulate({"payload": {"amountUsd": 5}}, {"email": "ann@example.com"}).messages
    assert (message.connection, message.body) == ("desk", '{"note":"5 USD"}')
    assert automation.publish().state == "live"
    (use,) = wb.connections["desk"].used_by()
    assert (use.name, use.draft, use.version) == ("by a connection", True, 1)
    assert "by a connection" in wb.connections["desk"].used_by()._repr_html_()
    assert wb.connections["desk"].replace_secrets(path="other").secrets == ("path",)
    with pytest.raises(ConflictError, match="used by 'by a connection'"):
        wb.connections["desk"].delete()
    messages = [str(found) for found in start.send_via("desc", note="x").send_via("desk", not_e="x").check()]
    assert any("unknown connection 'desc'; did you mean 'desk'?" in text for text in messages)
    assert any("fields.note: is missing" in text for text in messages)


def test_what_cannot_be_saved_is_refused(wb: Workbench) -> None:
    with pytest.raises(InvalidArgumentError, match="Unknown template 'slak'; did you mean 'slack'"):
        wb.connections.create_from("slak", webhook_url="x")
    with pytest.raises(InvalidArgumentError, match="The template 'slack' needs webhook_url"):
        wb.connections.create_from("slack", token="x")
    with pytest.raises(InvalidArgumentError, match="webhook_url: must be the URL of the webhook, with /services/"):
        wb.connections.create_from("slack", webhook_url="T0/B0/x")
    with pytest.raises(InvalidArgumentError, match="'A b': the name of a connection"):
        wb.connections.save("A b", url="https://a.example", body={})
    with pytest.raises(InvalidRequestError, match=r"secrets\.key: is missing"):
        wb.connections.save("keyless", url="https://a.example/{{ secrets.key }}", body={})
    with pytest.raises(NotFoundError, match="Connection not found: 'nope'"):
        wb.connections["nope"]
