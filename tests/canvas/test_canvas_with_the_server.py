"""A canvas suggests and tests with events and contacts that the real service has stored."""

from typing import Any

import pytest

from tests.canvas.test_canvas import RecordingCanvas, node
from tests.running import Running
from workbench import Workbench

WALLET = "0xca11ab1e00000000000000000000000000000009"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


@pytest.fixture
def canvas(wb: Workbench) -> RecordingCanvas:
    return RecordingCanvas(
        wb.automation("Canvas: offers").on("deposit").send_inapp(title="{{ asset }}", body="{{ nope }}")
    )


def test_stored_events_paths_and_attributes_are_suggested(wb: Workbench, canvas: RecordingCanvas) -> None:
    wb.events.send("canvas:suggested", wallet_address=WALLET, attributes={"plan": "gold"})
    choices = canvas.request("choices")
    assert "deposit" in [event["name"] for event in choices["events"]]
    assert "amountUsd" in [path["path"] for path in choices["paths"]["deposit"]]
    assert "plan" in [attribute["name"] for attribute in choices["attributes"]]


def test_a_value_that_was_never_sent_gets_a_warning(canvas: RecordingCanvas) -> None:
    canvas.edit(1, nodes={"send_inapp": node(canvas, "send_inapp")})
    [warning] = [diagnostic for diagnostic in canvas.diagnostics if "nope" in diagnostic["message"]]
    assert (warning["key"], warning["level"]) == ("send_inapp", "warning")


def first_sample(canvas: RecordingCanvas) -> dict[str, Any]:
    event = canvas.request("samples")[0]
    return {"event": event["event"], "payload": event["payload"], "contact": event["contactId"]}


def test_the_first_sample_is_a_stored_event(wb: Workbench, canvas: RecordingCanvas) -> None:
    wb.events.send("deposit", wallet_address=WALLET, payload={"asset": "USDC"})
    canvas.edit(1, nodes={"send_inapp": node(canvas, "send_inapp") | {"data": {"title": "{{ asset }}", "body": "!"}}})
    sample = first_sample(canvas)
    assert sample["event"] == "deposit"
    preview = canvas.request("preview", key="send_inapp", sample=sample)
    [message] = canvas.request("simulate", sample=sample)["messages"]
    assert (preview["title"], preview["body"]) == (message["title"], message["body"])
    assert preview["title"] not in ("", "{{ asset }}")


def test_a_contact_is_found_by_wallet_or_id(wb: Workbench, canvas: RecordingCanvas) -> None:
    wb.events.send("canvas:found", wallet_address=WALLET, attributes={"plan": "gold"})
    contact = canvas.request("contact", query=WALLET.upper().replace("0X", "0x"))
    assert contact["described"]["attributes"]["plan"] == "gold"
    assert canvas.request("contact", query=contact["id"])["id"] == contact["id"]
    assert "error" in canvas.receive(kind="request", id="v/1", name="contact", query="unknown@example.com")


def test_a_masked_address_is_not_taken_for_the_address(wb: Workbench, canvas: RecordingCanvas) -> None:
    wb.events.send("canvas:masked", email="mia@canvas.example")
    (row,) = wb.sql("SELECT contact_id::text AS id FROM app_events WHERE event = 'canvas:masked'").rows()
    contact = canvas.request("contact", query=row[0])
    assert contact["described"]["email"] == "address-hidden@example.com"
