"""A notebook can merge two contacts of one person."""

import pytest

from tests.running import Running
from workbench import ConflictError, Contact, InvalidArgumentError, NotFoundError, Workbench


def create_contacts(wb: Workbench, name: str) -> tuple[Contact, Contact]:
    """Return two contacts of one user: one from the web, and one from the app."""
    wb.events.send("merging:visit", wallet_address=f"0xWeb-{name}", attributes={"plan": "pro"})
    wb.events.send("merging:open", external_id=f"app-{name}", attributes={"plan": "free", "city": "Rome"})
    return wb.contact(wallet_address=f"0xweb-{name}"), wb.contact(external_id=f"app-{name}").tag("beta")


def test_a_merge_is_previewed_applied_and_undone(running: Running) -> None:
    wb = running.workbench()
    web, app = create_contacts(wb, "ann")
    merge = wb.merge(keep=web, absorb=app)
    assert (merge.id, merge.moves["attributes"], merge.lost) == (None, {"city": "Rome"}, {"plan": "free"})
    for words in (
        "external id",
        "app-ann",
        "attribute city",
        "moves",
        "hidden: the kept contact has its own",
        "1 event",
        "This is a preview",
    ):
        assert words in repr(merge)
        assert words in merge._repr_html_()
    merge.apply()
    assert "Merged." in repr(merge)
    assert wb.contact(external_id="app-ann").id == wb.contact(app.id).id == web.id
    assert web.refresh().attributes == {"plan": "pro", "city": "Rome"}
    assert set(web.events()["event"]) == {"merging:visit", "merging:open"}
    counted = wb.sql("SELECT count(*) FROM contacts WHERE id = :keep OR id = :absorbed", keep=web.id, absorbed=app.id)
    assert counted.item() == 1
    assert f"absorbed contact {app.id}" in repr(web)
    merge.undo()
    assert "Reverted." in repr(merge)
    assert wb.contact(external_id="app-ann").attributes == {"plan": "free", "city": "Rome"}
    assert app.events()["event"].to_list() == ["merging:open"]


def test_impossible_merges_are_explained(running: Running) -> None:
    wb = running.workbench()
    web, app = create_contacts(wb, "ben")
    merge = wb.merge(web, app)
    with pytest.raises(InvalidArgumentError, match="not merged"):
        merge.undo()
    merge.apply()
    with pytest.raises(InvalidArgumentError, match="already merged"):
        merge.apply()
    with pytest.raises(ConflictError, match=f"merged into {web.id}"):
        wb.merge(web, app)
    with pytest.raises(NotFoundError):
        app.tag("late")
    assert app.refresh().id == web.id
