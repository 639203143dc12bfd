"""Every notebook runs from top to bottom, twice, next to all the others, and shows what its text promises."""

import asyncio
import re
from collections.abc import Iterator
from typing import TypeAlias

import nbformat
import pytest
from nbclient import NotebookClient

from tests.notebooks.execution import NOTEBOOKS
from tests.running import Running

A_TENTH = ("CDNOW_master.txt", "CDNOW_sample.txt")  # of the customers of the public log, which is enough here
ON_CHAIN = NOTEBOOKS / "09_on_chain.ipynb"  # needs a node: tests/chain runs it
TEXTS = {path.stem[:2]: path.read_text() for path in sorted(NOTEBOOKS.glob("*.ipynb")) if path != ON_CHAIN}
pytestmark = pytest.mark.filterwarnings(
    "default::ResourceWarning", "default::DeprecationWarning"
)  # of the Jupyter client


Cells: TypeAlias = dict[str, str]
"""What each cell showed, as text and HTML, by the cell's id."""


@pytest.fixture(scope="module")
def runs(running: Running) -> Iterator[dict[str, tuple[Cells, Cells]]]:
    """The cells of each notebook, by its number: after a run beside all the others, and after a second one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DATABASE_URL", raising=False)
        for name, value in running.environment().items():
            patch.setenv(name, value)
        yield asyncio.run(execute_all(running))


async def execute_all(running: Running) -> dict[str, tuple[Cells, Cells]]:
    executed = await asyncio.gather(*(execute_twice(text, running) for text in TEXTS.values()))
    return dict(zip(TEXTS, executed, strict=True))


async def execute_twice(text: str, running: Running) -> tuple[Cells, Cells]:
    notebook = nbformat.reads(text.replace(*A_TENTH), 4)
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(running.folder)}}
    )
    await client.async_execute(cleanup_kc=False)
    first = cells_of(notebook)
    await client.async_execute()
    return first, cells_of(notebook)


def cells_of(notebook: nbformat.NotebookNode) -> Cells:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.id for cell in cells if any(each.get("name") == "stderr" for each in cell.outputs)] == []
    return {cell.id: "\n".join(map(shown, cell.outputs)) for cell in cells}


def shown(output: nbformat.NotebookNode) -> str:
    pictures = output.get("data", {})
    return output.get("text", "") + pictures.get("text/plain", "") + pictures.get("text/html", "")


def test_the_first_automation(runs: dict[str, tuple[Cells, Cells]]) -> None:
    for cells in runs["01"]:
        assert "connected" in cells["connect"]
        assert "deposit" in cells["catalog"]
        assert "amountUsd" in cells["deposit"]
        assert "first_deposits" in cells["sql"]
        assert "data:image/svg+xml;base64," in cells["write"]
        assert "Your USDC are here" in cells["sample"]
        assert "Welcome aboard!" in cells["simulate-other"]
        assert "a text; true is a yes/no value" in cells["simulate-miss"]
        assert "live, version 1" in cells["publish"]
        assert "Accepted." in cells["send"]
        assert "Completed." in cells["watch"]
        assert "250 USD have arrived. With pro you trade without fees" in cells["watch"]
        assert "$WORKBENCH_EVENTS_KEY" in cells["curl"]
        assert "accepted" in cells["curl-run"].lower()
        assert "Welcome aboard!" in cells["curl-watch"]
        assert "0xc0ffee" in cells["messages"]
        assert "completed" in cells["entries"]
    assert "live, version 1" in runs["01"][1]["write"]


def test_the_catalog(runs: dict[str, tuple[Cells, Cells]]) -> None:
    for cells in runs["02"]:
        assert "app_open" in cells["catalog"]
        assert "subscription_renewed" in cells["search"]
        assert "deposit" not in cells["search"]
        assert "order.price" in cells["event"]
        assert {"limit", "market"} <= set(re.findall(r"\w+", cells["values"]))
        assert "theme is new" in cells["drift"]
        assert "1 accepted, 0 duplicates, 1 not stored" in cells["send"]
        assert "not a valid email address" in cells["send"]
        assert "order.price" in cells["frame"]
        assert "Events of the last 30 days" in cells["text"]
    first, again = runs["02"]
    assert "30 accepted" in first["drift-send"]
    assert "30 duplicates" in again["drift-send"]
    assert "contact.email: not a valid email address" in again["rejected"]


def test_a_public_log(runs: dict[str, tuple[Cells, Cells]]) -> None:
    for cells in runs["03"]:
        for word in ("6919", "2357", "decimal[12,2]", "datetime[μs, UTC]"):
            assert word in cells["totals"]
        assert "cdnow-" in cells["best"]
        assert "large_orders" in cells["magic-result"]
        assert re.search(r"1  cdnow.purchase +2,357 +100.0%", cells["funnel"])
        for name in ("funnel", "convert", "active", "revenue", "retention", "cohorts"):
            assert "data:image/svg+xml;base64," in cells[name]
            assert "watermark" in cells[name]
        assert "All 51 numbers agree." in cells["check"]
        before, later, as_of = re.findall(r"│ \S.*? ┆ (\d+) +┆", cells["watermark"])[-3:]
        assert int(later) - 1 == int(before) == int(as_of)
        assert "customers" in cells["stream"]
    first, again = runs["03"]
    assert "6,919 read: 6,919 stored" in first["import"]
    assert "6,919 more were done by an earlier run" in again["import"]


def test_segments(runs: dict[str, tuple[Cells, Cells]]) -> None:
    for cells in runs["04"]:
        assert "found in" in cells["preview"]
        assert "every hour" in cells["define"]
        assert re.search(r"0 entered, [1-9]\d* left", cells["change"])
        assert "data:image/svg+xml;base64," in cells["history"]
        assert "wallet_address" in cells["members"]
        assert "big_depositors" in cells["sql"]
        assert "BTC-USD" in cells["report"]
        assert "An audience, which does not change" in cells["audience"]
        assert "contact is in the segment" in cells["automation"]
        assert "Your account manager is one tap away." in cells["member"]
        assert "Would add the tag" in cells["other"]
        assert "signed-up-no-deposit" in cells["list"]


def test_drawing(runs: dict[str, tuple[Cells, Cells]]) -> None:
    for cells in runs["05"]:
        assert "data:image/svg+xml;base64," in cells["finished"]
        assert "(quiet from 22:00 to 08:00)" in cells["words"]
        assert cells["live-send"].count("waiting") >= 2
        assert "Added the tag “depositor”" in cells["live-deposit"]
    assert "Empty so far" in runs["05"][0]["told"]


def test_testing_before_sending(runs: dict[str, tuple[Cells, Cells]]) -> None:
    for cells in runs["06"]:
        assert "After 2 hours: nothing sent or changed yet" in cells["walk"]
        assert "added the tag “trader”" in cells["trade"]
        assert "Your 250 USD in USDC are waiting." in cells["silent"]
        assert "With premium you trade at a lower fee." in cells["premium"]
        assert "Never taken: if_plan → send_email (yes)." in cells["month"]
        assert re.search(r"! \d+ entries failed permanently: the contact has no wallet", cells["month"])
        assert re.search(r"failed permanently +0 +[1-9]", cells["compare"])
        assert re.search(r"\([1-9]\d*, 0\)", cells["gains"])
        assert "@example." in cells["who"]
        assert "Would have started" in cells["segment"]
        assert "5 passed" in cells["tests-run"]
        assert "sent: nothing" in cells["tests-draft"]
        assert "1 failed" in cells["tests-draft"]
    assert "off, version 1" in runs["06"][1]["draft"]


def test_publishing_and_watching(runs: dict[str, tuple[Cells, Cells]]) -> None:
    for cells in runs["07"]:
        assert "hold out 25 % of contacts" in cells["write"]
        assert re.search(r"send_inapp +in-app +sent", cells["test-send"])
        assert "248 accepted" in cells["people"]
        assert "Held out (25 %): reached by" in cells["live"]
        assert "More contacts reach the goal with it than without." in cells["stats"]
        assert re.search(r"template_error +send_inapp", cells["dead"])
        assert "tried again" in cells["dead-replay"]
        assert re.search(r"(\d+) entries: \1 completed\.", cells["dead-after"])
        assert "paused" in cells["pause"]
        assert re.search(r"(\d+) entries: \1 completed\.", cells["paused"])
        assert "1 difference from version" in cells["change"]
        assert "against the previous" in cells["back"]
        assert "automation: rollback" in cells["audit"]
    first, again = runs["07"]
    assert "new, nothing is published yet" in first["plan"]
    assert "no difference from version 3" in again["plan"]


def test_automations_in_git(runs: dict[str, tuple[Cells, Cells]]) -> None:
    for cells in runs["08"]:
        assert "new: thanks-for-the-friend.json" in cells["pull"]
        assert "Thank you!" in cells["file"]
        assert "title: “Thanks for bringing a friend”, before: “Thank you!”" in cells["plan"]
        assert "updated: thanks-for-the-friend.json" in cells["apply"]
        assert "nothing was changed, because" in cells["conflict-here"]
        assert "updated: thanks-for-the-friend.json" in cells["conflict-solved"]
        assert "updated: thanks-for-the-friend.json" in cells["conflict-applied"]
        assert "Extra fields" not in cells["sentences"]
        assert '.add_tag("brought-a-friend")' in cells["python"]


def test_campaigns(runs: dict[str, tuple[Cells, Cells]]) -> None:
    for cells in runs["10"]:
        assert "campaign-depositors" in cells["segment"]
        assert "for de" in cells["write"]
        assert "Unsere neue App ist da" in cells["german"]
        assert "Ihr Team von Acme. Ihre Einstellungen: https://preferences.invalid/" in cells["german"]
        assert "Neuigkeiten" in cells["topic"]
        assert "declined the topic" in cells["declined"]
        assert re.search(r"^[1-9]\d* contacts as of", cells["preview"])
        assert re.search(r"done: ([1-9]\d*) of \1 contacts", cells["send"])
        assert "campaign-depositors" in cells["broadcasts"]
        assert "Europe/Zurich" in cells["schedule"]
        assert "2031-05-17 07:00" in cells["date-simulate"]
        assert "Three days left" in cells["date-simulate"]
        assert "Would neither send nor change anything" in cells["date-missed"]
        assert "3 trades, 1,250 USD" in cells["digest-simulate"]
        assert "ada@example.com asks for a call at 9:30" in cells["slack-simulate"]
        assert "POST https://hooks.slack.com/services/***" in cells["slack-request"]
