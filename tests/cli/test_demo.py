"""The history of the demo organization is reproducible and valid, and resembles that of a real product."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from api.cli import demo
from api.cli.demo import DAYS, write_history
from api.clock import to_us
from api.crypto import Keyring
from api.imports.importer import ImportStatus, import_history
from api.ingest.parse import idempotency_key
from workbench.language.codec import decode
from workbench.language.event import Event, read_event

NOW = datetime(2026, 11, 20, 14, 30, tzinfo=UTC)


@pytest.fixture(scope="module")
def history_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "history.ndjson"
    write_history(path, NOW)
    return path


@pytest.fixture(scope="module")
def lines(history_file: Path) -> list[bytes]:
    return history_file.read_bytes().splitlines()


@pytest.fixture(scope="module")
def events(lines: list[bytes]) -> list[dict[str, Any]]:
    return [decode(line) for line in lines]


def test_the_same_moment_gives_the_same_history(history_file: Path, tmp_path: Path) -> None:
    count = write_history(tmp_path / "again.ndjson", NOW)
    assert (tmp_path / "again.ndjson").read_bytes() == history_file.read_bytes()
    assert 60_000 < count < 90_000


def test_every_line_is_a_separate_valid_event(lines: list[bytes]) -> None:
    org_keys = Keyring("a secret").of(1)
    keys = set()
    for line in lines:
        event = read_event(line, to_us(NOW), history=True)
        assert isinstance(event, Event), event
        keys.add(idempotency_key(org_keys, event, event.occurred_at_us or 0))
    assert len(keys) == len(lines)


def test_it_covers_sixty_days_in_order_and_ends_within_the_hour(events: list[dict[str, Any]]) -> None:
    moments = [datetime.fromisoformat(event["occurredAt"]) for event in events]
    assert moments == sorted(moments)
    assert timedelta(0) <= moments[0] - (NOW - timedelta(days=DAYS)) < timedelta(days=1)
    assert timedelta(0) < NOW - moments[-1] < timedelta(hours=1)


def test_about_two_thousand_people_sign_up_and_fewer_take_each_further_step(events: list[dict[str, Any]]) -> None:
    counts = Counter(event["event"] for event in events)
    first_deposits = sum(event["event"] == "deposit" and event["payload"]["first"] for event in events)
    assert 1_900 < counts["signup"] <= 2_000
    assert counts["signup"] > counts["kyc_completed"] > first_deposits > counts["subscription_started"] > 100
    assert counts["trade"] > 10 * counts["deposit"]
    assert len(counts) >= 14


def test_people_have_different_identifiers(events: list[dict[str, Any]]) -> None:
    sign_ups = Counter(tuple(sorted(event["contact"])) for event in events if event["event"] == "signup")
    assert set(sign_ups) == {
        ("email",),
        ("email", "externalId"),
        ("walletAddress",),
        ("email", "externalId", "walletAddress"),
    }
    assert min(sign_ups.values()) > 80


def test_weekends_and_nights_are_quiet(events: list[dict[str, Any]]) -> None:
    moments = [datetime.fromisoformat(event["occurredAt"]) for event in events if event["event"] == "app_open"]
    days = Counter(moment.weekday() for moment in moments)
    hours = Counter(moment.hour for moment in moments)
    assert max(days[5], days[6]) < min(days[day] for day in range(5))
    assert hours[19] > 2 * hours[4]


def test_every_address_is_fictitious(events: list[dict[str, Any]]) -> None:
    domains = {event["contact"]["email"].partition("@")[2] for event in events if "email" in event["contact"]}
    assert domains == {"example.com", "example.org", "mail.example.net"}


def test_amounts_are_whole_cents(events: list[dict[str, Any]]) -> None:
    amounts = [event["payload"]["amountUsd"] for event in events if "amountUsd" in event.get("payload", {})]
    assert all(amount > 0 and amount == round(amount, 2) for amount in amounts)


def test_an_interrupted_import_of_the_demo_continues_and_stores_nothing_twice(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = Keyring("a secret of the demo")

    class StoppedError(Exception):
        """The import was interrupted after its first batch."""

    def stop(_: ImportStatus) -> None:
        raise StoppedError

    monkeypatch.setattr(demo, "PEOPLE", 300)
    with monkeypatch.context() as patch:
        patch.setattr(demo, "import_history", partial(import_history, listener=stop))
        with pytest.raises(StoppedError):
            asyncio.run(demo.prepare(database_url, keyring, tmp_path, print))
    history_file = (tmp_path / "demo-history.ndjson").read_bytes().splitlines()
    asyncio.run(demo.prepare(database_url, keyring, tmp_path, print))
    assert not (tmp_path / "demo-history.ndjson").exists()
    with psycopg.connect(database_url) as connection:
        (count,) = connection.execute("SELECT count(*) FROM workbench.events").fetchone() or (0,)
    assert count == len(history_file) > 2_000
