"""A canvas suggests and tests with events and contacts that the real service has stored."""

from typing import Any

import psycopg
import pytest

from api import embedded
from tests.canvas.test_canvas import SIGNATURE, TOKEN, RecordingCanvas, node
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


def test_a_comparison_of_a_text_attribute_with_a_number_gets_a_warning(wb: Workbench) -> None:
    wb.events.send("canvas:typed", wallet_address=WALLET, attributes={"house": "12"})
    a = wb.automation("Canvas: typed").on("deposit").when("contact.house > 3").then(lambda b: b.add_tag("high"))
    message = "compares 'contact.house' (a text) with a number: this never holds"
    assert message in [diagnostic.message for diagnostic in a.check()]
    canvas = RecordingCanvas(a)
    canvas.edit(1, nodes={"condition": node(canvas, "condition")})
    assert [item["key"] for item in canvas.diagnostics if item["message"] == message] == ["condition"]


def test_every_event_has_a_sample_for_a_trigger_without_names(wb: Workbench) -> None:
    for number in range(3):
        wb.events.send(f"canvas:any:{number}", wallet_address=WALLET, payload={"number": number})
    canvas = RecordingCanvas(wb.automation("Canvas: any").on_any_event().where("number", eq=1).add_tag("x"))
    assert first_sample(canvas)["event"] == "canvas:any:1"


def first_sample(canvas: RecordingCanvas) -> dict[str, Any]:
    event = canvas.request("samples")[0]
    return {"event": event["event"], "payload": event["payload"], "contact": event["contactId"]}


def test_the_first_sample_is_a_stored_event(wb: Workbench, canvas: RecordingCanvas) -> None:
    for wallet in (WALLET, "Canvas9dfwoAz7rq4ZcGvJqPnLxYhTsKmUeRbWtQ2gD3"):  # the second one can never sign in
        sent = {"email": f"{wallet[:6].lower()}@canvas.example", "wallet_address": wallet}
        wb.events.send("deposit", payload={"asset": "USDC"}, **sent)
    canvas.edit(1, nodes={"send_inapp": node(canvas, "send_inapp") | {"data": {"title": "{{ asset }}", "body": "!"}}})
    sample = first_sample(canvas)
    assert (sample["event"], sample["payload"]) == ("deposit", '{"asset": "USDC"}')
    preview = canvas.request("preview", key="send_inapp", sample=sample)
    [message] = canvas.request("simulate", sample=sample)["messages"]
    assert (preview["title"], preview["body"]) == (message["title"], message["body"])
    assert preview["title"] not in ("", "{{ asset }}")


def test_the_first_sample_passes_the_filters_although_many_newer_events_do_not(wb: Workbench) -> None:
    contacts = ["canvas-rare", *(f"canvas-frequent-{number}" for number in range(30))]
    for number, contact in enumerate(contacts):
        wb.events.send("canvas:rare", external_id=contact, payload={"order": {"number": number}})
    rare = wb.automation("Canvas: rare").on("canvas:rare").where("order.number", eq=0).add_tag("x")
    assert first_sample(RecordingCanvas(rare))["payload"] == '{"order": {"number": 0}}'
    every = RecordingCanvas(wb.automation("Canvas: any").on_any_event().where("order.number", eq=0).add_tag("x"))
    assert first_sample(every)["event"] == "canvas:rare"


_LOGS = """
INSERT INTO workbench.onchain_events (org_id, id, chain_id, contract, event, signature, tx_hash, log_index, digest,
                                      block_number, block_hash, block_time, args, created_at)
SELECT o.id, gen_random_uuid(), 1, %s, 'Transfer', 'Transfer(address,address,uint256)', '0x' || n, 0, gen_random_uuid(),
       n, '0x' || n, now(), jsonb_build_object('from', %s::text, 'to', %s::text, 'value', n::text), now()
FROM workbench.organizations o, generate_series(1, 9) n WHERE o.name = 'demo'
"""


def test_the_first_sample_of_a_log_passes_the_filters_of_the_trigger(wb: Workbench, running: Running) -> None:
    server = embedded.find(running.folder / "data")
    assert server is not None
    with psycopg.connect(server.dsn, autocommit=True, options="-c workbench.org=*") as connection:
        connection.execute(_LOGS, (TOKEN, WALLET, WALLET))
    started = wb.automation("Canvas: logs").on_chain(contract=TOKEN, event=SIGNATURE, to_contact="to", chain_id=1)
    for value in ("3", "8"):
        samples = RecordingCanvas(started.where("value", eq=value).add_tag("x")).request("samples")
        assert (len(samples), f'"{value}"' in samples[0]["payload"]) == (9, True)


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


def test_everything_is_stopped_and_resumed_on_the_canvas(wb: Workbench) -> None:
    canvas = RecordingCanvas(wb.automation("Canvas: stopped").on("canvas:stopped").delay(days=1).publish())
    asked = canvas.request("stop")
    assert (asked["stopped"], " automation" in asked["text"]) == (False, True)
    try:
        assert "messages not sent yet." in canvas.request("stop_all")
        assert canvas.status["state"] == "paused"
        assert canvas.request("stop")["stopped"]
    finally:
        canvas.request("resume_all")
    assert (canvas.status["state"], canvas.status["stale"]) == ("live", "")
    assert "Stopped: 1 automation" in canvas.request("pause")


def test_a_snippet_that_is_unknown_is_an_error_while_the_text_is_written(wb: Workbench) -> None:
    canvas = RecordingCanvas(wb.automation("Canvas: snippets").on("deposit").send_email("Hi", "there"))

    def errors(number: int, body: str) -> list[tuple[str, str]]:
        data = {"actionType": "send_email", "subject": "s", "body": body, "onMissing": "skip"}
        canvas.edit(number, nodes={"send_email": node(canvas, "send_email") | {"data": data}})
        return [(item["key"], item["message"]) for item in canvas.diagnostics if item["level"] == "error"]

    [(key, message)] = errors(1, '{% include "canvas-footer" %}')
    assert (key, "canvas-footer" in message) == ("send_email", True)
    wb.snippets.save("canvas-footer", "Your team")
    assert errors(2, 'Hi {% include "canvas-footer" %}') == []


def test_a_trigger_with_an_error_has_no_preview(wb: Workbench) -> None:
    schedule = wb.automation("Canvas: schedule").on_schedule("0 9 * * mon").add_tag("x")
    canvas = RecordingCanvas(schedule)
    canvas.edit(1, trigger={"type": "schedule", "cron": "0 9 * * mon", "timezone": "Zurich"})
    preview = canvas.request("preview", key="trigger", sample={"event": "deposit"})
    assert preview["text"] == "Fix the errors above to see a preview."


def test_the_preview_of_an_email_says_that_the_contact_gets_none(wb: Workbench, canvas: RecordingCanvas) -> None:
    wb.events.send("canvas:suppressed", external_id="canvas-suppressed", email="canvas@suppressed.example")
    contact = wb.contact(external_id="canvas-suppressed")
    contact.opt_out("email")
    canvas = RecordingCanvas(wb.automation("Canvas: suppressed").on("deposit").send_email("Hi", "there"))
    preview = canvas.request("preview", key="send_email", sample={"event": "deposit", "contact": contact.id})
    assert (preview["title"], preview["body"]) == ("Hi", "there")
    assert preview["note"] == "Emails to this contact are suppressed (opted out): it would not be sent"


def test_a_broadcast_is_counted_and_sent_on_the_canvas(wb: Workbench) -> None:
    wb.events.send("canvas:news", external_id="canvas-news")
    wb.segments.define("canvas-news", sql="SELECT contact_id FROM app_events WHERE event = 'canvas:news'")
    canvas = RecordingCanvas(wb.automation("Canvas: news").on_broadcast().send_email("Hi", "there"))
    assert "Send the broadcast" in canvas.request("publish")
    counted = canvas.request("recipients", segment="canvas-news")
    assert counted["text"].startswith("1 contact, as of ")
    assert counted["warnings"][0] == "send_email does not reach 1 contact: the contact has no email address"
    sent = canvas.request("broadcast", segment="canvas-news", counted=counted["counted"])
    assert sent.startswith("Broadcast to canvas-news, planned: 1 contact on ")
    assert [item.segment for item in wb.broadcasts if item.segment == "canvas-news"] == ["canvas-news"]
