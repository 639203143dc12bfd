"""A backtest retries by the schedule of the installation (`WORKBENCH_RETRY_DELAYS`)."""

import asyncio

import pytest

from api.embedded import Server
from api.settings import Settings
from tests.conftest import clone
from tests.routes.conftest import serving
from workbench import Workbench


def backtested_entries(url: str, key: str) -> list[tuple[str, str | None]]:
    """Return state and outcome of the entries of a backtest that sends in-app messages."""
    draft = Workbench(url, key).automation("a").on("deposit").send_inapp("Hi", "there", on_missing="fail")
    return draft.backtest(days=1).entries().select("state", "outcome").rows()


@pytest.mark.parametrize(
    ("delays", "entry"), [((), ("dead", "no_wallet")), ((0.5, 1e9), ("retrying", None)), (None, ("retrying", None))]
)
async def test_a_backtest_retries_by_the_schedule_of_the_installation(
    postgres: Server, template: str, delays: tuple[float, ...] | None, entry: tuple[str, str | None]
) -> None:
    with clone(postgres, template) as dsn:
        async with serving(dsn, Settings(ingest_rate=0, retry_delays=delays)) as service:
            acme = await service.organization()
            await acme.post({"event": "deposit", "contact": {"externalId": "u1"}})
            assert await acme.get("/retries", kind="workbench") == (
                200,
                {"delays": None if delays is None else [*delays]},
            )
            url, key = f"http://127.0.0.1:{service.port}", await acme.key("workbench")
            assert await asyncio.to_thread(backtested_entries, url, key) == [entry]
