"""A notebook explains why an automation took the events of a contact or not, with a running engine."""

import pytest

from tests.installation import until
from tests.running import Running
from workbench import InvalidArgumentError, NotFoundError


def test_explanations_name_the_filters_that_failed(running: Running) -> None:
    wb = running.workbench()
    gift = wb.automation("explained gift").on("explained:deposit").where("amount", eq=100).where("asset", eq="usdc")
    gift = gift.reentry("once").add_tag("gift").publish()
    for payload in ({"amount": 100, "asset": "USDC"}, {"amount": "100", "asset": "usdc"}):
        wb.events.send("explained:deposit", external_id="explained", payload=payload)
    for _ in range(2):
        wb.events.send("explained:deposit", external_id="explained", payload={"amount": 100, "asset": "usdc"})
    wb.events.send("explained:step", external_id="explained")
    contact = wb.contact(external_id="explained")
    until(lambda: all(entry.ended for entry in gift.entries()), "both entries ended")
    explanations = contact.explain(gift)
    assert [explanation.matched for explanation in explanations] == [False, True, True, False, False]
    step, again, first, number, capitals = (explanation.sentence() for explanation in explanations)
    assert step == "It starts on explained:deposit, not on explained:step."
    assert again == "The contact entered before: contacts enter only once."
    assert first == "It started. Completed."
    assert number.endswith("it is “100”, a text; 100 is a number, so they are different.")
    assert capitals.endswith("it is “USDC”, not “usdc”: letter case matters.")
    assert explanations.headline() in repr(explanations)
    assert "letter case matters" in explanations._repr_html_()
    assert explanations.frame()["matched"].to_list() == [False, True, True, False, False]
    would = contact.explain(
        "explained gift", event={"event": "explained:deposit", "payload": {"amount": 100, "asset": "usdc"}}
    )
    assert would[0].sentence() == "The contact entered before: contacts enter only once."
    assert contact.explain(gift, event=explanations[3].event_id)[0] == explanations[3]
    with pytest.raises(NotFoundError, match="Automation not found"):
        contact.explain("unknown automation")
    with pytest.raises(InvalidArgumentError, match="Pass an automation"):
        contact.explain(7)
