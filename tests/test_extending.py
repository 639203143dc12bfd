"""The recipes of docs/extending.md work as they are written, and a part of one that is left out is noticed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
SECTIONS = dict(
    re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", (ROOT / "docs" / "extending.md").read_text(), re.MULTILINE | re.DOTALL)
)
PART = re.compile(
    r"^(?:In|A new file in) `([^`]+)`, (before |instead of )?`([^`]+)`:\n\n```text\n(.*?)```", re.MULTILINE | re.DOTALL
)

NODE_KIND = """
from workbench.automation import Automation
from workbench.canvas.document import palette
from workbench.display.kinds import step_title
from workbench.draft import new_draft
from workbench.language.actions import read_action
from workbench.language.check import check

automation = Automation(new_draft("x", ("deposit",))).swap_tag("trial", "customer").wait_for("buy", within="1d")
trigger, graph = automation._draft.language()
assert [item.level for item in check(trigger, graph)] == ["error"]  # the wait leads nowhere yet
assert "  • Replace the tag “trial” with “customer”." in automation.describe(), automation.describe()
assert '.swap_tag("trial", "customer")' in automation.to_python()
assert "xtra" not in automation.describe() + automation.to_python()
assert Automation.from_sentences(automation.describe(), name="x").to_json() == automation.to_json()
assert graph.nodes[1].id == "swap_tag_customer"
assert step_title(graph.nodes[1]) == "replace the tag “trial” with “customer”"
(problem,) = read_action("swap_tag", {"old": "a"}, "n").problems
assert problem.field == "n.data.new"
simulation = automation.simulate({"event": "deposit", "contact": {"externalId": "u"}})
assert (simulation.trace.tags, simulation.trace.removed_tags) == (("customer",), ("trial",))
(entry,) = [entry for entry in palette()["kinds"] if entry["kind"] == "swap_tag"]
assert entry["blank"] == {"actionType": "swap_tag", "old": "", "new": ""}
assert [(field["name"], field["control"]) for field in entry["fields"]] == [("old", "tag"), ("new", "tag")]
assert "<img" in automation._repr_html_()
"""
OPERATOR = """
from workbench.automation import Automation
from workbench.canvas.document import palette
from workbench.draft import new_draft
from workbench.language.check import check

automation = Automation(new_draft("x", ("deposit",))).where("plan", startsWith="pro").add_tag("a")
trigger, graph = automation._draft.language()
assert check(trigger, graph) == ()
assert automation.describe().startswith("When a deposit event arrives, and plan starts with “pro”:")
assert '.where("plan", startsWith="pro")' in automation.to_python()
assert Automation.from_sentences(automation.describe(), name="x").to_json() == automation.to_json()
for plan, starts in (("pro-2", True), ("free", False)):
    event = {"event": "deposit", "contact": {"externalId": "u"}, "payload": {"plan": plan}}
    assert automation.simulate(event).trace.matched is starts
assert {"name": "startsWith", "label": "starts with", "operand": "value"} in palette()["operators"]
"""
REPORT = """
import asyncio

import workbench
from api.app import create_app
from api.auth import keys
from api.crypto import Keyring
from api.settings import Settings
from tests.in_process import served

SECRET = "a secret of the recipes"


def ask(url: str, live: str, key: str) -> None:
    wb = workbench.Workbench(url, key, events_key=live)
    wb.events.send("counted", contact={"externalId": "u"})
    counts = wb.event_counts(days=1)
    assert counts.rows() == [("counted", 1)], counts
    assert "<img" in counts._repr_html_()


async def live() -> None:
    await keys.create_org(DSN, "acme")
    live, key = [await keys.create(DSN, Keyring(SECRET), "acme", kind, None) for kind in ("live", "workbench")]
    async with served(create_app(Settings(), DSN, SECRET)) as port:
        await asyncio.to_thread(ask, f"http://127.0.0.1:{port}", live, key)


asyncio.run(live())
"""
CHANNEL = """
import asyncio
from datetime import timedelta
from pathlib import Path

from api import settings
from api.auth import keys
from api.automations import trial
from api.automations.automations import Author
from api.automations.test_send import _ADDRESSES
from api.channels.outgoing import open_transports
from api.contacts.explain import ExplainBody, ExplainReader, explain
from api.crypto import EmailDisplay
from api.store.database import Database
from api.store.messages import count_sent
from tests.engine.conftest import EngineBench
from workbench.automation import Automation
from workbench.canvas.document import palette
from workbench.display import words
from workbench.draft import new_draft
from workbench.language.body import read_body
from workbench.language.channel import RetryPolicy
from workbench.language.check import check
from workbench.language.codec import decode, encode
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.simulate import SimulatedAutomation, backtest
from workbench.send_test import RECEIVERS
from workbench.language.timeline import EventRecord

automation = Automation(new_draft("x", ("deposit",))).send_sms(
    "Paid {{ amountUsd }}", on_missing="fail"
)
trigger, graph = automation._draft.language()
assert [str(item) for item in check(trigger, graph)] == [
    "send_sms: fails for contacts without a phone: test phone in a condition before this step"
]
national_only = Automation(new_draft("x", ("deposit",))).where("phone", eq="079").send_sms("Paid")
assert [str(item) for item in check(*national_only._draft.language())] == [
    "send_sms: is undeliverable: only numbers with a country code (+41…) can be reached, and its contacts have others"
]
assert "  • Text the contact: “Paid {{ amountUsd }}”." in automation.describe(), automation.describe()
assert '.send_sms("Paid {{ amountUsd }}", on_missing="fail")' in automation.to_python()
skipping = Automation(new_draft("x", ("deposit",))).send_sms("Paid")
assert "  • Text the contact if nothing is missing: “Paid”." in skipping.describe()
assert Automation.from_sentences(automation.describe(), name="x").to_json() == automation.to_json()
event = {"event": "deposit", "contact": {"externalId": "u"}, "payload": {"amountUsd": 5}}
failed = automation.simulate(event).trace.steps[-1]
assert (failed.outcome, failed.detail["cause"]) == ("failed", "no_phone")
(message,) = automation.simulate(event | {"attributes": {"phone": "+41"}}).trace.messages
assert words.message_parts(message) == ("SMS", "Paid 5", "SMS to +41")
assert "SMS to +41" in automation.simulate(event | {"attributes": {"phone": "+41"}})._repr_html_()
undeliverable = automation.simulate(event | {"attributes": {"phone": "079"}})
assert undeliverable.trace.steps[-1].outcome == "undeliverable"
assert "only numbers with a country code" in undeliverable._repr_html_()
(entry,) = [entry for entry in palette()["kinds"] if entry["kind"] == "send_sms"]
assert [(field["name"], field["control"]) for field in entry["fields"]] == [
    ("body", "text"), ("topic", "topic"), ("onMissing", "missing")
]
assert _ADDRESSES["sms"].read("+41") == "+41"
assert "phone" in RECEIVERS


async def live() -> None:
    async with Database(DSN) as database:
        transports = open_transports(settings.read({"WORKBENCH_DATA_DIR": str(FOLDER)}))
        bench = EngineBench(database, await keys.create_org(DSN, "acme"), transports)
        await database.calibrate(bench.clock)
        since = bench.clock.now()
        nodes = [{"id": "t", "type": "app_event", "data": {}}, {"id": "s", "type": "send_sms", "data": {"body": "Hi"}}]
        automation_id = await bench.automation(nodes, [("t", "s")])
        for key, attributes in (("1", {"phone": "+41"}), ("2", {})):
            await bench.ingest({"event": "deposit", "contact": {"externalId": key}, "attributes": attributes})
        await bench.drive()
        assert sorted(await bench.steps()) == ["entered", "entered", "failed", "sent"]
        ((message_id, channel, status),) = await bench.fetch("SELECT id::text, channel, status FROM messages")
        assert (channel, status) == ("sms", "sent")
        assert [file.read_text() for file in (FOLDER / "sms").iterdir()] == ["+41: Hi"]
        assert (FOLDER / "sms" / message_id).exists()
        async with database.transaction() as tx:
            assert await count_sent(tx, bench.org_id, since, bench.clock.now()) == {"sms": 1}
        await predict(bench, automation_id)
        await transports.close()


async def predict(bench: EngineBench, automation_id: str) -> None:
    # Dry run, backtest and explanations say what was sent.
    show, now = EmailDisplay(bench.keyring.of(bench.org_id), False), bench.clock.now()
    rows = await bench.fetch("SELECT id::text, external_id, attributes::text FROM contacts ORDER BY external_id")
    states = [ContactState(row[0], Identifiers(external_id=row[1]), decode(row[2])) for row in rows]
    for state, outcome in zip(states, ("sent", "failed"), strict=True):
        event = {"event": "deposit", "contact": {"externalId": state.identifiers.external_id}}
        body = trial.trial_of(read_body(trial.TrialBody, encode({"event": event, "version": "published"})), now)
        context = trial.TrialContext(bench.org_id, show, RetryPolicy())
        trace = await trial.simulate_trial(bench.database, context, automation_id, body)
        assert trace.steps[-1].outcome == outcome, trace
        sent = EventRecord("e", "deposit", now, state.identifiers, b'{"amountUsd": 5}')
        (entry,) = backtest(SimulatedAutomation(trigger, graph, automation_id), state, [sent], now + timedelta(days=1))
        assert entry.steps[1].outcome == outcome, entry.steps
        reader = ExplainReader(Author(bench.org_id, "key", bench.clock.now_us()), show)
        asked = ExplainBody(automation_id=automation_id)
        explained = await explain(bench.database, reader, state.id, automation_id, asked)
        assert [item.matched for item in explained.explanations] == [True], explained


FOLDER = Path(FOLDER)
asyncio.run(live())
"""


class Part(NamedTuple):
    """A part of a recipe: code that comes before a line of a file, or replaces it, or is a new file."""

    file: str
    place: str
    line: str
    code: str


class Recipe(NamedTuple):
    section: str
    script: str
    max_files: int


CHANNEL_RECIPE = Recipe("A channel", CHANNEL, 8)
RECIPES = [Recipe("A node kind", NODE_KIND, 6), Recipe("A filter operator", OPERATOR, 4)]
REPORT_RECIPE = Recipe("A report", REPORT, 4)


def parts_of(recipe: Recipe) -> list[Part]:
    matches = [Part(*match) for match in PART.findall(SECTIONS[recipe.section])]
    return [part if part.place else Part(f"{part.file}/{part.line}", "", "", part.code) for part in matches]


def carry_out(parts: list[Part], script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script with a copy of the sources to which the parts of a recipe were applied."""
    for name in ("workbench", "api", "sql"):
        if not (folder / name).exists():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("canvas_src", "__pycache__"))
    for part in parts:
        if not part.place:
            (folder / part.file).write_text(part.code)
            continue
        lines = (folder / part.file).read_text().splitlines(keepends=True)
        (index,) = [index for index, line in enumerate(lines) if line.startswith(part.line)]
        rest = lines[index + 1 :] if part.place == "instead of " else lines[index:]
        (folder / part.file).write_text("".join([*lines[:index], part.code, *rest]))
    path = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]; sys.dont_write_bytecode = True\n"
    command = [sys.executable, "-P", "-c", path + script]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.section)
def test_a_recipe_is_complete_and_touches_few_files(recipe: Recipe, tmp_path: Path) -> None:
    parts = parts_of(recipe)
    assert 1 < len({part.file for part in parts}) <= recipe.max_files
    run = carry_out(parts, recipe.script, tmp_path)
    assert run.returncode == 0, run.stderr


def test_the_recipe_of_a_report_is_complete_and_touches_few_files(database_url: str, tmp_path: Path) -> None:
    parts = parts_of(REPORT_RECIPE)
    assert 1 < len({part.file for part in parts}) <= REPORT_RECIPE.max_files
    run = carry_out(parts, f"DSN = {database_url!r}\n" + REPORT_RECIPE.script, tmp_path)
    assert run.returncode == 0, run.stderr


def test_a_channel_that_was_added_sends_checks_simulates_and_counts(database_url: str, tmp_path: Path) -> None:
    parts = parts_of(CHANNEL_RECIPE)
    assert len({part.file for part in parts}) <= CHANNEL_RECIPE.max_files
    constants = f"DSN, FOLDER = {database_url!r}, {str(tmp_path)!r}\n"
    run = carry_out(parts, constants + CHANNEL_RECIPE.script, tmp_path)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("file", dict.fromkeys(part.file for part in parts_of(CHANNEL_RECIPE)))
def test_a_part_of_a_channel_that_is_left_out_is_noticed_at_import(file: str, tmp_path: Path) -> None:
    parts = [part for part in parts_of(CHANNEL_RECIPE) if part.file != file]
    run = carry_out(parts, "import api.app, workbench.text.python", tmp_path)
    assert run.returncode != 0
    assert re.search(r"(DeclarationError|ImportError|AssertionError|NameError)", run.stderr), run.stderr


@pytest.mark.parametrize(
    ("recipe", "file"),
    [(recipe, file) for recipe in RECIPES for file in dict.fromkeys(part.file for part in parts_of(recipe))],
    ids=lambda value: value.section if isinstance(value, Recipe) else value,
)
def test_a_part_that_is_left_out_is_noticed_at_import(recipe: Recipe, file: str, tmp_path: Path) -> None:
    parts = [part for part in parts_of(recipe) if part.file != file]
    run = carry_out(parts, "import workbench.language.advance, workbench.text.python", tmp_path)
    assert run.returncode != 0
    assert re.search(r"(DeclarationError|ImportError): ", run.stderr), run.stderr
