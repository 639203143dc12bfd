"""The metrics of processes count what happened; docs/trust.md A9, O6, O8."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.metrics.collect import Lag, ProcessMetrics, chain_metrics, collect_api
from api.metrics.serve import MergedMetrics, publish, publish_file, read_published
from api.process import OTHER, Spans, Tally
from api.settings import Settings
from api.store.engines import Heartbeat
from tests.routes.conftest import Service, serving
from tests.running import free_port

EVENT = {"event": "deposit", "contact": {"externalId": "u1"}, "idempotencyKey": "k1"}


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    async with serving(database_url, Settings(ingest_rate=0.001, ingest_burst=8)) as started:
        yield started


def samples(text: str) -> dict[str, float]:
    """Return every sample of the project by its name and its labels, sorted."""
    return {
        sample.name + "".join(f" {name}={sample.labels[name]}" for name in sorted(sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def process_of(service: Service) -> ProcessMetrics:
    lag = Lag(service.services.system_database, service.services.clock)
    return ProcessMetrics("api", lambda: collect_api(service.services, lag))


async def test_every_event_is_counted_once_by_its_outcome(service: Service) -> None:
    acme = await service.organization()
    for event in (EVENT, EVENT, EVENT | {"test": True}, EVENT | {"contact": {"email": "no"}}, EVENT | {"event": ""}):
        await acme.post(event)
    await acme.post_batch(*[EVENT | {"idempotencyKey": str(number)} for number in range(5)], {"payload": []})
    values = samples(process_of(service).text().decode())
    counted = {name: value for name, value in values.items() if name.startswith("workbench_events")}
    assert counted == {
        "workbench_events_total outcome=stored": 4,
        "workbench_events_total outcome=duplicate": 1,
        "workbench_events_total outcome=dry_run": 1,
        "workbench_events_total outcome=rate_limited": 3,
        "workbench_events_rejected_total field=contact.email": 1,
        "workbench_events_rejected_total field=event": 1,
    }
    assert values["workbench_ingest_seconds_count"] == 4
    single = "workbench_http_requests_total method=POST route=/api/v1/events status="
    assert (values[single + "202"], values[single + "400"]) == (3, 2)
    assert values["workbench_ingest_waiting"] == values["workbench_ingest_oldest_seconds"] == 0
    assert values["workbench_pool_connections pool=ingest"] >= 1


async def test_callers_cannot_add_label_values(service: Service) -> None:
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


async def test_metrics_of_all_processes_are_served_together_on_the_configured_address_only(
    service: Service, tmp_path: Path
) -> None:
    port = free_port()
    settings = Settings(data_dir=tmp_path, metrics=("127.0.0.1", port))
    first, second = process_of(service), process_of(service)
    async with publish(first, settings), publish(second, settings), httpx.AsyncClient(timeout=5) as client:
        async with asyncio.timeout(10):
            while len(list(read_published(tmp_path / "metrics"))) < 2:
                await asyncio.sleep(0.02)
        answer = await client.get(f"http://127.0.0.1:{port}/metrics")
        assert (answer.status_code, answer.headers["content-type"][:10]) == (200, "text/plain")
        alive = {name for name in samples(answer.text) if name.startswith("workbench_ingest_writers_alive")}
        assert alive == {f"workbench_ingest_writers_alive process={process.name}" for process in (first, second)}
        assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 404
        assert (await client.post(f"http://127.0.0.1:{port}/metrics")).status_code == 405
        files = list((tmp_path / "metrics").glob("*.prom"))
        assert {file.stat().st_mode & 0o077 for file in files} == {0}
    assert list((tmp_path / "metrics").iterdir()) == []
    public = await service.client.get(f"http://127.0.0.1:{service.port}/metrics")
    assert public.status_code == 404


async def test_the_metrics_of_a_process_that_ended_are_removed(tmp_path: Path) -> None:
    (tmp_path / "api-dead.prom").write_text("x 1\n")
    os.utime(tmp_path / "api-dead.prom", (1, 1))
    assert list(read_published(tmp_path)) == []
    publishing = asyncio.create_task(publish_file(ProcessMetrics("api", tuple), tmp_path))
    async with asyncio.timeout(10):
        while not list(read_published(tmp_path)):
            await asyncio.sleep(0.02)
    assert not (tmp_path / "api-dead.prom").exists()
    publishing.cancel()


async def test_a_folder_that_cannot_be_created_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics").write_text("in the way")
    await publish_file(ProcessMetrics("api", tuple), tmp_path / "metrics")
    assert [record.message for record in caplog.records] == ["metrics_not_published"]


def test_a_tally_limits_its_label_values() -> None:
    tally = Tally("word", max_combinations=2)
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
    merged = MergedMetrics([("api-1", text), ("api-2", text)]).text().decode()
    assert merged.count("# TYPE") == 1
    assert samples(merged) == {"a_total process=api-1": 1, "a_total process=api-2": 1}


async def test_late_entries_show_while_no_engine_runs(acme_lag: tuple[Service, Lag]) -> None:
    service, lag = acme_lag
    assert (lag.oldest_due_s(), str(lag.heartbeat_age_s())) == (0.0, "nan")
    at = service.services.clock.now()
    # The due entry of an old heartbeat may have been driven since, so its lag does not grow.
    assert Heartbeat(at, at - timedelta(seconds=4)).lag_seconds(at + timedelta(seconds=9)) == 4
    await service.rows(
        "INSERT INTO engines VALUES (gen_random_uuid(), now(), now() - interval '20s', now() - interval '5s')"
    )
    await lag.poll()
    assert 5 <= lag.oldest_due_s() < 60
    assert 20 <= lag.heartbeat_age_s() < 60
    ready = await service.client.get(f"http://127.0.0.1:{service.port}/readyz")
    assert ready.json()["engineLagSeconds"] >= 5


async def test_a_chain_has_a_problem_until_its_state_is_known(acme_lag: tuple[Service, Lag]) -> None:
    service, lag = acme_lag
    await service.rows(
        "INSERT INTO chains VALUES (1, 1, now() + interval '1 hour', 90, 100, now() - interval '20s', NULL),"
        " (5, 1, now(), NULL, NULL, NULL, NULL)"
    )
    await lag.poll()
    unread, behind, problem, dead = (
        {s.labels["chain"]: s.value for s in family.samples} for family in chain_metrics(lag)
    )
    assert 20 <= unread["1"] < 60
    assert (behind["1"], problem, dead) == (10, {"1": 0, "5": 1}, {"1": 0, "5": 0})
    ready = await service.client.get(f"http://127.0.0.1:{service.port}/readyz")
    assert ready.json()["chains"] == {"1": "ok", "5": "no process follows it now"}


@pytest.fixture
async def acme_lag(service: Service) -> tuple[Service, Lag]:
    return service, Lag(service.services.system_database, service.services.clock)
