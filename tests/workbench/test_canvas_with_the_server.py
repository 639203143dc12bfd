"""What a canvas offers and tries with the real service: events and contacts that are really there."""

from typing import Any

import pytest

from tests.running import Running
from tests.workbench.test_canvas import Heard, node
from workbench import Workbench

WALLET = "0xca11ab1e00000000000000000000000000000009"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


@pytest.fixture
def canvas(wb: Workbench) -> Heard:
    return Heard(wb.automation("Canvas: offers").on("deposit").send_inapp(title="{{ asset }}", body="{{ nope }}"))


def test_events_values_and_attributes_are_offered_as_they_were_seen(canvas: Heard) -> None:
    offered = canvas.ask("choices")
    assert "deposit" in [each["name"] for each in offered["events"]]
    assert "amountUsd" in [each["path"] for each in offered["paths"]["deposit"]]
    assert "plan" in [each["name"] for each in offered["attributes"]]


def test_what_was_never_seen_is_remarked_on_at_its_step(canvas: Heard) -> None:
    canvas.edit(1, nodes={"send_inapp": node(canvas, "send_inapp")})
    assert ("send_inapp", "warning") in [
        (each["key"], each["level"]) for each in canvas.remarks if "nope" in each["message"]
    ]


def tried(canvas: Heard) -> dict[str, Any]:
    sample = canvas.ask("samples")[0]
    return {"event": sample["event"], "payload": sample["payload"], "person": sample["contactId"]}


def test_real_events_of_real_contacts_are_tried(canvas: Heard) -> None:
    canvas.edit(1, nodes={"send_inapp": node(canvas, "send_inapp") | {"data": {"title": "{{ asset }}", "body": "!"}}})
    given = tried(canvas)
    assert given["event"] == "deposit"
    shown = canvas.ask("preview", key="send_inapp", tried=given)
    [message] = canvas.ask("simulate", tried=given)["messages"]
    assert (shown["title"], shown["body"]) == (message["title"], message["body"])
    assert shown["title"] not in ("", "{{ asset }}")


def test_a_contact_is_found_by_what_identifies_it(wb: Workbench, canvas: Heard) -> None:
    wb.events.send("canvas:found", wallet_address=WALLET, attributes={"plan": "gold"})
    found = canvas.ask("person", wanted=WALLET.upper().replace("0X", "0x"))
    assert found["described"]["attributes"]["plan"] == "gold"
    assert canvas.ask("person", wanted=found["id"])["id"] == found["id"]
    assert "error" in canvas.hear(kind="ask", id="v/1", what="person", wanted="no-one-ever@example.com")
