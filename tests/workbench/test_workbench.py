"""The workbench shows the data of the real service, and its simulations predict entries."""

import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from tests.running import Running
from workbench import (
    AuthenticationError,
    Automation,
    ConflictError,
    ConnectionFailedError,
    InvalidArgumentError,
    InvalidRequestError,
    NotFoundError,
    PublishError,
    SqlError,
    WaitTimeoutError,
    Workbench,
    WorkbenchError,
)
from workbench.connection import Connection
from workbench.language.version import VERSION
from workbench.publish import SavedAutomation

WALLET = "0xAbCd000000000000000000000000000000001234"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def greeting(wb: Workbench, name: str) -> Automation:
    body = "{{ contact.plan | default('no plan') }}"
    return wb.automation(name).on(f"{name}:event").send_inapp("Hi {{ who }}", body, on_missing="fail")


# Catalog and SQL


def test_the_catalog_lists_events_by_frequency(wb: Workbench) -> None:
    counts = [event.count for event in wb.catalog]
    assert counts == sorted(counts, reverse=True)
    frame = wb.catalog.frame()
    assert frame.columns == ["event", "count", "first_seen", "last_seen"]
    assert frame.schema["last_seen"] == pl.Datetime("us", "UTC")
    assert frame.filter(pl.col("first_seen") > pl.col("last_seen")).is_empty()
    assert "deposit" in wb.catalog
    assert wb.catalog(prefix="dep").names == ("deposit",)


def test_one_event_shows_its_paths_types_and_samples(wb: Workbench) -> None:
    shape = wb.catalog["deposit"]
    assert {"amountUsd", "asset", "first"} <= {path.path for path in shape.paths}
    assert shape.example(amountUsd=7)["payload"]["amountUsd"] == 7
    assert "amountUsd" in shape.frame()["path"]
    assert "data:image/svg+xml" in shape._repr_html_()


def test_event_names_can_be_searched(wb: Workbench) -> None:
    names = wb.catalog.search(" EPOS ").names
    assert "deposit" in names
    assert all("epos" in name for name in names)
    assert "“epos” in their names" in wb.catalog.search("epos")._repr_html_()
    assert "No event name contains this text." in repr(wb.catalog.search("nothing like it"))
    with pytest.raises(InvalidArgumentError, match="takes a text"):
        wb.catalog.search(7)  # type: ignore[arg-type]


def test_the_inserted_sql_returns_the_shown_values(wb: Workbench) -> None:
    page = wb.catalog["deposit"].page()
    newest = eval(page["code"], {"wb": wb})
    assert newest.columns == ["created_at", "contact_id", "payload"]
    (asset,) = [path for path in page["paths"] if path["path"] == "asset"]
    values = eval(asset["code"], {"wb": wb})
    assert values.columns == ["value", "events", "contacts"]
    assert f"“{values['value'][0]}”" in [value for value, _ in asset["top"]]


def test_a_misspelt_event_suggests_the_nearest_name(wb: Workbench) -> None:
    with pytest.raises(NotFoundError, match="did you mean 'deposit'"):
        wb.catalog["depositt"]


def test_an_attribute_of_the_catalog_is_looked_up_without_a_request() -> None:
    catalog = Workbench("http://127.0.0.1:9", "wb_x").catalog  # nothing listens there
    assert not hasattr(catalog, "x")
    with pytest.raises(AttributeError, match=r'for an event write wb.catalog\["deposit"\]'):
        _ = catalog.deposit


def test_the_key_of_the_workbench_names_its_organization_scopes_and_limits(wb: Workbench) -> None:
    mine = wb.me
    key = mine.key
    assert (mine.organization, key.kind, key.name) == ("demo", "workbench", "workbench up")
    assert (key.test, key.strict) == (False, False)
    assert {"events:read", "sql:read"} <= set(key.scopes)
    assert (mine.limits.events_per_batch, mine.version) == (100, VERSION)


def test_a_workbench_key_is_refused_for_sending_before_anything_is_sent() -> None:
    wb = Workbench("http://127.0.0.1:9", "wb_x", events_key="wb_x")
    with pytest.raises(AuthenticationError, match="wb_… cannot send events"):
        wb.events.send("deposit", email="ada@example.com")


def test_event_names_and_methods_are_completed(wb: Workbench) -> None:
    shell = InteractiveShell()
    shell.push({"wb": wb})
    with provisionalcompleter():
        keys = {completion.text for completion in shell.Completer.completions('wb.catalog["depo', 16)}
        verbs = {completion.text for completion in shell.Completer.completions("wb.events.send_", 15)}
    assert "deposit" in keys
    assert any(verb.endswith("send_many") for verb in verbs)


def test_sql_returns_exact_types(wb: Workbench) -> None:
    frame = wb.sql(
        """
        SELECT 9007199254740993::bigint AS big, 0.1::numeric AS exact, now() AS at, :word AS word, true AS yes,
               array['a', 'b'] AS list, NULL::text AS nothing
        """,
        word="it's",
    )
    assert frame["big"][0] == 9_007_199_254_740_993
    assert isinstance(frame.schema["exact"], pl.Decimal)
    assert frame.schema["at"] == pl.Datetime("us", "UTC")
    assert frame["word"][0] == "it's"
    assert frame["list"][0].to_list() == ["a", "b"]


def test_an_sql_error_shows_its_position(wb: Workbench) -> None:
    with pytest.raises(SqlError) as refused:
        wb.sql("SELECT event\nFROM app_events\nWHERE evnt = 'x'")
    assert "line 3: WHERE evnt = 'x'\n" + " " * 14 + "^" in str(refused.value)
    assert "Perhaps you meant" in str(refused.value)
    assert refused.value.sqlstate == "42703"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select 1; select 2", "Only one statement is allowed"),
        ("drop table contacts", "Only SELECT"),
        ("-- all of them\nDELETE FROM contacts", "Only SELECT"),
    ],
)
def test_a_statement_that_is_not_a_single_select_is_refused(wb: Workbench, query: str, words: str) -> None:
    with pytest.raises(SqlError, match=words):
        wb.sql(query)


# Automations


def test_a_simulation_predicts_the_entry(wb: Workbench) -> None:
    automation = (
        wb.automation("predicted")
        .on("predicted")
        .where("amount", is_in=[1, 2])
        .when("contact.plan", eq="pro")
        .then(lambda b: b.add_tag("predicted-pro"))
        .otherwise(lambda b: b.exit())
        .send_inapp(title="{{ amount }}", body="for {{ contact.plan }}")
        .publish()
    )
    wb.events.send("unrelated", wallet_address=WALLET, attributes={"plan": "pro"})
    predicted = automation.simulate({"contact": {"walletAddress": WALLET}, "payload": {"amount": 2}})
    entry = automation.wait_for_entry(wb.events.send("predicted", wallet_address=WALLET, payload={"amount": 2}))
    assert [(step.node_id, step.outcome, step.handle) for step in entry.steps] == [
        (step.node_id, step.outcome, step.handle) for step in predicted.steps
    ]
    assert [(message.title, message.body) for message in entry.messages] == [("2", "for pro")]
    assert (entry.state, entry.outcome) == (predicted.state, predicted.outcome)


def test_publishing_makes_a_version_only_for_a_change(wb: Workbench) -> None:
    greeting(wb, "twice").publish()
    same = greeting(wb, "twice").publish()
    assert [version.version for version in same.versions()] == [1]
    changed = greeting(wb, "twice").add_tag("x").publish()
    assert [version.version for version in changed.versions()] == [2, 1]
    assert [automation.name for automation in wb.automations].count("twice") == 1
    assert "twice" in wb.automations()._repr_html_()


def test_opening_returns_the_saved_draft(wb: Workbench) -> None:
    saved = greeting(wb, "opened").save()
    assert wb.automation("opened").to_json() == saved.to_json()
    assert "draft" in repr(wb.automation("opened"))


def test_publishing_is_refused_with_every_problem_and_its_node(wb: Workbench) -> None:
    automation = greeting(wb, "refused").send_inapp(title="{{", body="").add_tag("")
    with pytest.raises(PublishError) as refused:
        automation.publish()
    assert {problem.field for problem in refused.value.problems} == {"send_inapp_2", "add_tag"}
    assert "'refused' cannot be published yet" in str(refused.value)


def test_a_stale_draft_does_not_overwrite_other_changes(wb: Workbench) -> None:
    greeting(wb, "stale").save()
    mine, theirs = wb.automation("stale").add_tag("mine"), wb.automation("stale").add_tag("theirs")
    theirs.save()
    with pytest.raises(ConflictError, match="someone else changed 'stale' since you opened it"):
        mine.save()
    mine.save(overwrite=True)
    assert wb.automation("stale").to_json() == mine.to_json()


def test_a_deactivated_automation_is_not_started(wb: Workbench) -> None:
    automation = greeting(wb, "paused").publish().deactivate()
    receipt = wb.events.send("paused:event", wallet_address=WALLET, payload={"who": "Ada"})
    with pytest.raises(NotFoundError, match="did not start 'paused'"):
        automation.wait_for_entry(receipt)
    assert (
        automation.activate()
        .wait_for_entry(wb.events.send("paused:event", wallet_address=WALLET, payload={"who": "Ada"}))
        .ended
    )


def test_an_archived_name_can_be_used_again_with_a_warning(wb: Workbench) -> None:
    greeting(wb, "archived").publish().archive()
    note = "an archived automation also has the name 'archived'"
    assert note in repr(greeting(wb, "archived"))
    assert "archived automation" in wb.automation("archived")._repr_html_()
    assert "draft, not saved" in repr(greeting(wb, "archived"))
    again = repr(greeting(wb, "archived").publish())
    assert "version 1" in again
    assert note not in again


def test_a_simulation_notes_that_the_automation_is_off(wb: Workbench) -> None:
    automation = greeting(wb, "off").publish()
    event = {"contact": {"walletAddress": WALLET}, "payload": {"who": "Ada"}}
    assert automation.simulate(event).note == ""
    simulation = automation.deactivate().simulate(event)
    assert "It is off now" in repr(simulation)
    assert "It is off now" in simulation._repr_html_()
    assert "off, version 1" in repr(automation)


def test_a_simulation_with_a_contact_also_runs_on_the_server(wb: Workbench) -> None:
    automation = greeting(wb, "described")
    event = {"payload": {"who": "Ada"}}
    simulation = automation.simulate(event, contact={"walletAddress": WALLET, "attributes": {"plan": "gold"}})
    assert [(message.title, message.body) for message in simulation.messages] == [("Hi Ada", "gold")]
    away = Automation(automation._draft, SavedAutomation(Connection("http://127.0.0.1:9", "wb_x")))
    with pytest.raises(ConnectionFailedError):
        away.simulate(event, contact={"walletAddress": WALLET})


def test_an_unknown_event_name_is_a_warning(wb: Workbench) -> None:
    remarks = wb.automation("unseen").on("depositt").add_tag("x").check()
    assert [remark.message for remark in remarks] == [
        "no event 'depositt' was received in the last 30 days; did you mean 'deposit'?"
    ]


def test_a_misspelt_path_is_a_warning(wb: Workbench) -> None:
    automation = (
        wb.automation("misspelt")
        .on("deposit")
        .where("amontUsd", eq=100)
        .where("walletAddress", exists=True)
        .when("payload.Asset", eq="ETH")
        .then(lambda b: b.send_inapp("{{ amountUsd }} {{ aset }}", "{{ contact.plan }} {{ payload.amountUsd }}"))
    )
    # Some wallets of the demo cannot sign in, and other tests send deposits of contacts without a plan.
    diagnostics = [diagnostic for diagnostic in automation.check() if "never seen" in diagnostic.message]
    assert [(diagnostic.node_id, diagnostic.message) for diagnostic in diagnostics] == [
        (None, "'amontUsd' was never seen in deposit: did you mean 'amountUsd'?"),
        ("if_payload_asset", "'Asset' was never seen in deposit: did you mean 'asset'?"),
        ("send_inapp", "'aset' was never seen in deposit: did you mean 'asset'?"),
    ]


def test_a_push_on_every_event_warns_of_wallets_that_can_never_sign_in(wb: Workbench) -> None:
    wb.events.send("deposit", wallet_address="vitalik.eth")
    automation = wb.automation("every-event").on_any_event().where("walletAddress", exists=True)
    pushing, tagging = automation.send_inapp("Hi", "there").check(), automation.add_tag("x").check()
    (remark,) = set(pushing) - set(tagging)
    assert re.fullmatch(
        r"is undeliverable to the wallets of [\d,]+ of the newest [\d,]+ events: only .*", remark.message
    )
    assert (remark.level, remark.node_id) == ("warning", "send_inapp")


def test_contacts_that_lack_what_a_text_needs_are_counted(wb: Workbench) -> None:
    for number, attributes in enumerate([{"tier": "gold"}, {"tier": "silver"}, {}, {"other": 1}]):
        email = {"email": "lacks@example.com"} if number == 3 else {}
        wb.events.send(
            "lacking", external_id=f"lacks-{number}", attributes=attributes, payload={"a": {"b": 1}}, **email
        )
    draft = wb.automation("lacking").on("lacking").send_email("{{ contact.tier }}", "{{ a.b }} {{ externalId }}")
    assert [str(remark) for remark in draft.check()] == [
        "send_email: is skipped for 2 of the 4 contacts of the newest events: contact.tier is missing",
        "send_email: is skipped for 3 of the 4 contacts of the newest events: email is missing",
    ]
    wb.events.send("lacking", external_id="lacks-1", attributes={"tongue": "pt_BR"}, payload={"a": {"b": 1}})
    german = {"subject": "{{ contact.tier }}", "body": "b"}
    localized = wb.automation("lacking").on("lacking").locale_attribute("tongue")
    assert [str(remark) for remark in localized.send_email("a", "b", locales={"de": german}).check()] == [
        "send_email: has no texts in the locales of 1 of the 4 contacts of the newest events: pt-BR (1). They get the"
        " default texts; set defaultLocale if that is their locale",
        "send_email: is skipped for 3 of the 4 contacts of the newest events: email is missing",
    ]
    sql = "SELECT id AS contact_id FROM contacts WHERE external_id IN ('lacks-0', 'lacks-2')"
    wb.segments.define("few-that-lack", sql=sql)
    few = wb.automation("lacking").on("lacking").when("contact.segments", contains="few-that-lack")
    draft = few.then(lambda b: b.send_webhook("https://a.example", "{{ contact.tier }}", on_missing="fail"))
    assert [str(remark) for remark in draft.check()] == [
        "send_webhook: fails for 1 of the 2 contacts of the newest events: contact.tier is missing"
    ]


# Entries


def test_entries_are_a_table_and_a_frame(wb: Workbench) -> None:
    automation = greeting(wb, "table").publish()
    for number in range(3):
        wb.events.send("table:event", wallet_address=WALLET, payload={"who": str(number)})
    entry = automation.entries().latest.wait()
    assert [message.title for message in entry.messages] == ["Hi 2"]
    frame = automation.entries().frame()
    assert frame.height == 3
    assert frame.schema["created_at"] == pl.Datetime("us", "UTC")
    assert "Sent 1 message" in wb.entry(entry.id)._repr_html_()


def test_waiting_for_an_entry_without_a_wallet_times_out(wb: Workbench) -> None:
    automation = greeting(wb, "walletless").publish()
    receipt = wb.events.send("walletless:event", email="nobody@example.com", payload={"who": "Ada"})
    with pytest.raises(WaitTimeoutError, match=r"still retrying after 2 seconds.*wallet"):
        automation.wait_for_entry(receipt, timeout=2)
    with pytest.raises(InvalidRequestError, match="failed permanently"):
        automation.entries().latest.replay()


def test_wait_for_entry_returns_once_it_waits(wb: Workbench) -> None:
    automation = wb.automation("patient").on("patient:event").delay("3d").add_tag("x").publish()
    receipt = wb.events.send("patient:event", wallet_address=WALLET)
    assert automation.wait_for_entry(receipt, until="waiting").state.value == "waiting"
    with pytest.raises(InvalidArgumentError, match='until="ended" or until="waiting"'):
        automation.wait_for_entry(receipt, until="tomorrow")  # type: ignore[arg-type]


def test_a_dead_entry_can_be_replayed(wb: Workbench) -> None:
    automation = greeting(wb, "dead").publish()
    entry = automation.wait_for_entry(wb.events.send("dead:event", wallet_address=WALLET, payload={}))
    assert (entry.state.value, entry.outcome) == ("dead", "template_error")
    assert "who" in repr(entry)
    assert entry.replay().wait().state.value == "dead"


# Sending


def test_the_curl_line_sends_the_event_once(wb: Workbench, running: Running) -> None:
    line = wb.events.curl("curled", wallet_address=WALLET, payload={"note": "it's $HOME `x`"})
    assert running.keys["live"] not in str(line)
    processes = [
        subprocess.run(["sh", "-c", str(line)], env=running.environment(), capture_output=True, text=True, check=True)
        for _ in "12"
    ]
    assert ['"deduplicated":true' in process.stdout for process in processes] == [False, True]
    stored = wb.sql(
        "SELECT payload ->> 'note' AS note FROM app_events WHERE idempotency_key = :key", key=line.idempotency_key
    )
    assert stored["note"].to_list() == ["it's $HOME `x`"]


def test_a_dry_run_lists_automations_it_would_start(wb: Workbench) -> None:
    greeting(wb, "dry").publish()
    receipt = wb.events.send("dry:event", wallet_address=WALLET, test=True)
    assert (receipt.dry_run, receipt.matched_automations) == (True, 1)
    assert receipt.sentence() == (
        "Dry run: it would start 1 automation. No message was sent, and no contact, event or entry was stored."
    )
    with pytest.raises(NotFoundError, match="a dry run starts no entry"):
        wb.automation("dry").wait_for_entry(receipt)


# Errors, and the display of the workbench


def test_a_wrong_key_is_explained(running: Running) -> None:
    with pytest.raises(AuthenticationError, match="does not know this key"):
        len(Workbench(running.url, "wb_wrong").catalog)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda wb: wb.events.send(), r"'event'.*wb\.events\.send\("),
        (lambda wb: wb.events.send("x", amount=1), "'amount'"),
        (lambda wb: wb.events.send("x"), "the event has no contact"),
        (lambda wb: wb.events.send("x", contact="ada"), "contact must be an object"),
        (lambda wb: wb.events.send("x", email="a@b.example", payload={"a": object()}), "written as JSON"),
        (lambda wb: wb.events.post("x"), "an event must be an object"),
        (lambda wb: wb.events.sent("x"), r"did you mean \.send"),
        (lambda wb: wb.automation(5), "opened by its name"),
        (lambda wb: wb.automations["x"], r"wb\.automation\('x'\)"),
        (lambda wb: wb.catalog[5], "not the name of an event"),
        (lambda wb: wb.catalog(weeks=1), "'weeks'"),
        (lambda wb: wb.sql(), "'query'"),
        (lambda wb: wb.sql("select :a", a=object()), "written as JSON"),
        (lambda wb: wb.automation("x").wait_for_entry(None), "pass a receipt"),
    ],
)
def test_wrong_calls_raise_an_error_with_a_remedy(wb: Workbench, call, words) -> None:
    with pytest.raises(WorkbenchError, match=words):
        call(wb)


def test_errors_are_shown_without_a_traceback(wb: Workbench) -> None:
    shell = InteractiveShell()
    shell.push({"wb": wb})
    result = shell.run_cell("wb.sql('selec 1')", silent=True)
    assert result.error_in_exec._render_traceback_() == [f"SqlError: {result.error_in_exec}"]


def test_the_workbench_shows_the_permissions_of_the_key(wb: Workbench, running: Running) -> None:
    assert "Your key may read events, run SQL, write automations and publish them." in repr(wb)
    sender = Workbench(running.url, running.keys["live"])
    assert "Your key may read events, but not run SQL, write automations or publish them." in repr(sender)


def test_the_workbench_shows_a_missing_connection() -> None:
    assert "not connected" in Workbench("http://127.0.0.1:9", "wb_x")._repr_html_()


@pytest.mark.parametrize(("use", "client"), [("workbench", False), ("workbench.Workbench", True)])
def test_importing_the_workbench_loads_no_large_library(use: str, client: bool) -> None:
    code = f"import sys, workbench; {use}; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert ("workbench.connection" in loaded) == client
    assert loaded.isdisjoint(
        {"polars", "pyarrow", "pandas", "altair", "IPython", "ipywidgets", "sanic", "sqlalchemy", "psycopg"}
    )


def test_charts_do_not_wait_for_a_grammar_that_no_chart_uses() -> None:
    code = "import sys, workbench.display.charts, jsonschema; print(*sys.modules); import rfc3987_syntax"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert "altair" in loaded
    assert loaded.isdisjoint({"lark", "rfc3987_syntax"})


def test_a_chain_that_is_not_followed_is_a_warning(wb: Workbench) -> None:
    assert "No chain is followed" in repr(wb.chains)
    assert "No chain is followed" in wb.chains._repr_html_()
    written = wb.automation("On chain").on_chain(
        contract=f"0x{'c0' * 20}", event="A(address to)", to_contact="to", chain_id=7
    )
    assert "chain 7 is not followed" in " ".join(diagnostic.message for diagnostic in written.add_tag("x").check())


def test_logs_are_backtested_with_a_sample_and_a_segment(wb: Workbench) -> None:
    wb.audience(wb.sql("SELECT id AS contact_id FROM contacts LIMIT 0"), name="nobody")
    written = wb.automation("On chain").on_chain(
        contract=f"0x{'c0' * 20}", event="A(address to)", to_contact="to", chain_id=7
    )
    assert "Would never have started" in repr(written.add_tag("x").backtest(days=1))
    assert "Would never have started" in repr(written.add_tag("x").backtest(days=1, sample=0.5, segment="nobody"))
