"""What processes count is what happened; trust.md A9, O6, O8."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.meters import OTHER, Spans, Tally
from api.observe.api_process import collect
from api.observe.chains import chains
from api.observe.lag import Lag
from api.observe.merged import Merged
from api.observe.process import Process
from api.observe.published import keep_published, read_published
from api.observe.tasks import told
from api.settings import Settings
from api.store.health import Beat
from tests.routes.conftest import Service, serving
from tests.running import free_port

EVENT = {"event": "deposit", "contact": {"externalId": "u1"}, "idempotencyKey": "k1"}


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with serving(database_url, Settings(ingest_rate=1, ingest_burst=8)) as started:
        yield started


def samples(text: str) -> dict[str, float]:
    """Return every sample of ours by its name and its labels, in the order of their names."""
    return {
        each.name + "".join(f" {name}={each.labels[name]}" for name in sorted(each.labels)): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


def process_of(service: Service) -> Process:
    lag = Lag(service.parts.service, service.parts.clock)
    return Process("api", lambda: collect(service.parts, lag))


async def test_every_event_is_counted_once_by_what_its_caller_was_told(service: Service) -> None:
    acme = await service.organization()
    for event in (EVENT, EVENT, EVENT | {"test": True}, EVENT | {"contact": {"email": "no"}}, EVENT | {"event": ""}):
        await acme.post(event)
    await acme.post_batch(*[EVENT | {"idempotencyKey": str(number)} for number in range(5)], {"payload": []})
    found = samples(process_of(service).text().decode())
    counted = {name: value for name, value in found.items() if name.startswith("workbench_events")}
    assert counted == {
        "workbench_events_total outcome=stored": 4,
        "workbench_events_total outcome=duplicate": 1,
        "workbench_events_total outcome=dry_run": 1,
        "workbench_events_total outcome=rate_limited": 3,
        "workbench_events_rejected_total field=contact.email": 1,
        "workbench_events_rejected_total field=event": 1,
    }
    assert found["workbench_ingest_seconds_count"] == 4
    single = "workbench_http_requests_total method=POST route=/api/v1/events status="
    assert (found[single + "202"], found[single + "400"]) == (3, 2)
    assert found["workbench_ingest_waiting"] == found["workbench_ingest_oldest_seconds"] == 0
    assert found["workbench_pool_connections pool=ingest"] >= 1


async def test_no_caller_adds_labels(service: Service) -> None:
    acme = await service.organization()
    before = set(samples(process_of(service).text().decode()))
    for number in range(30):
        await acme.get(f"/contacts/{number}")
        await acme.get(f"/nothing/{number}")
        await acme.call(f"M{number}", "/events")
        await acme.post({"event": f"e{number}", f"field{number}": 1, "contact": {f"x{number}": 1}})
    new = set(samples(process_of(service).text().decode())) - before
    assert len(new) < 20
    assert not [name for name in new if "nothing" in name or "=M" in name or "=e1" in name]


async def test_numbers_of_all_processes_are_served_together_and_only_where_asked_for(
    service: Service, tmp_path: Path
) -> None:
    port = free_port()
    settings = Settings(data_dir=tmp_path, metrics=("127.0.0.1", port))
    first, second = process_of(service), process_of(service)
    async with told(first, settings), told(second, settings), httpx.AsyncClient(timeout=5) as client:
        async with asyncio.timeout(10):
            while len(list(read_published(tmp_path / "metrics"))) < 2:
                await asyncio.sleep(0.02)
        answer = await client.get(f"http://127.0.0.1:{port}/metrics")
        assert (answer.status_code, answer.headers["content-type"][:10]) == (200, "text/plain")
        alive = {name for name in samples(answer.text) if name.startswith("workbench_ingest_writers_alive")}
        assert alive == {f"workbench_ingest_writers_alive process={each.name}" for each in (first, second)}
        assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 404
        assert (await client.post(f"http://127.0.0.1:{port}/metrics")).status_code == 405
        files = list((tmp_path / "metrics").glob("*.prom"))
        assert {file.stat().st_mode & 0o077 for file in files} == {0}
    assert list((tmp_path / "metrics").iterdir()) == []
    public = await service.client.get(f"http://127.0.0.1:{service.port}/metrics")
    assert public.status_code == 404


async def test_a_process_that_is_gone_is_told_of_no_more(tmp_path: Path) -> None:
    (tmp_path / "api-dead.prom").write_text("x 1\n")
    os.utime(tmp_path / "api-dead.prom", (1, 1))
    assert list(read_published(tmp_path)) == []
    publishing = asyncio.create_task(keep_published(Process("api", tuple), tmp_path))
    async with asyncio.timeout(10):
        while not list(read_published(tmp_path)):
            await asyncio.sleep(0.02)
    assert not (tmp_path / "api-dead.prom").exists()
    publishing.cancel()


async def test_a_folder_that_cannot_be_had_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics").write_text("in the way")
    await keep_published(Process("api", tuple), tmp_path / "metrics")
    assert [each.message for each in caplog.records] == ["metrics_not_published"]


def test_a_tally_tells_so_many_apart_and_no_more() -> None:
    tally = Tally("word", most=2)
    for word in ("a", "b", "c", "d", "a"):
        tally.add(word)
    assert dict(tally) == {("a",): 2, ("b",): 1, (OTHER,): 2}


def test_a_span_is_in_every_bucket_that_is_long_enough() -> None:
    spans = Spans()
    for milliseconds in (1, 3, 5_000):
        spans.note(milliseconds * 1_000_000)
    counts = dict(spans.cumulative())
    assert (counts["0.001"], counts["0.0025"], counts["0.005"], counts["2.0"], counts["+Inf"]) == (1, 1, 2, 2, 3)


def test_samples_of_one_name_are_one_family() -> None:
    text = "# TYPE a_total counter\na_total 1\n"
    merged = Merged([("api-1", text), ("api-2", text)]).text().decode()
    assert merged.count("# TYPE") == 1
    assert samples(merged) == {"a_total process=api-1": 1, "a_total process=api-2": 1}


async def test_late_entries_show_while_no_engine_runs(acme_lag: tuple[Service, Lag]) -> None:
    service, lag = acme_lag
    assert (lag.seconds(), str(lag.silent_seconds())) == (0.0, "nan")
    at = service.parts.clock.now()
    assert (
        Beat(at, at - timedelta(seconds=4)).lag_seconds(at + timedelta(seconds=9)) == 4
    )  # it may have been done since
    await service.rows(
        "INSERT INTO engines VALUES (gen_random_uuid(), now(), now() - interval '20s', now() - interval '5s')"
    )
    await lag._look()
    assert 5 <= lag.seconds() < 60
    assert 20 <= lag.silent_seconds() < 60
    ready = await service.client.get(f"http://127.0.0.1:{service.port}/readyz")
    assert ready.json()["engineLagSeconds"] >= 5


async def test_a_chain_is_troubled_until_it_is_known_to_be_well(acme_lag: tuple[Service, Lag]) -> None:
    service, lag = acme_lag
    await service.rows(
        "INSERT INTO chains VALUES (1, 1, now() + interval '1 hour', 90, 100, now() - interval '20s', NULL),"
        " (5, 1, now(), NULL, NULL, NULL, NULL)"
    )
    await lag._look()
    unread, behind, troubled, dead = ({s.labels["chain"]: s.value for s in family.samples} for family in chains(lag))
    assert 20 <= unread["1"] < 60
    assert (behind["1"], troubled, dead) == (10, {"1": 0, "5": 1}, {"1": 0, "5": 0})
    ready = await service.client.get(f"http://127.0.0.1:{service.port}/readyz")
    assert ready.json()["chains"] == {"1": "ok", "5": "nobody follows it now"}


@pytest.fixture
async def acme_lag(service: Service) -> tuple[Service, Lag]:
    return service, Lag(service.parts.service, service.parts.clock)
