"""`wb.page` and `wb.schedule` against a server: what is saved, what is stored, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.routes.conftest import Service
from workbench import Workbench
from workbench.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError
from workbench.pages import ReportPage, cron_of


async def test_a_page_is_saved_scheduled_listed_and_deleted(service: Service, tmp_path: Path) -> None:
    org = await service.organization()
    for name in ("deposit", "signup", "deposit"):
        assert (await org.post({"event": name, "contact": {"externalId": "u1"}}))[0] == 202
    key = await org.key("workbench", "events:read", "sql:read", "pages:send", "automations:write")
    reader = await org.key("workbench", "events:read", "sql:read")

    def analyst() -> dict[str, Any]:
        wb = Workbench(f"http://127.0.0.1:{service.port}", key)
        active = wb.active_users(every="week", days=28)
        cohorts = wb.retention("signup", every="week", periods=3)
        counted = wb.sql("SELECT event, count(*) AS events FROM app_events GROUP BY 1 ORDER BY 1")
        page = wb.page("Monday", active, cohorts, ("By <event>", counted))
        text = page.save(tmp_path / "monday.html").read_text("utf-8")
        hashes = [result.query_hash in text and result.watermark in text for result in (active, cohorts, counted)]
        relative = [section["relative"] for section in page.sections()]
        made = wb.schedule(page, every="monday 08:00", to=["boss@example.com"], timezone="Europe/Zurich")
        listed = wb.page_schedules
        shown = repr(listed)
        runs = list(listed.runs("Monday"))
        with pytest.raises(PermissionDeniedError):
            Workbench(wb.url, reader).schedule(page, every="day 08:00", to=["boss@example.com"])
        listed.delete(made)
        with pytest.raises(NotFoundError):
            wb.page_schedules.runs("Monday")
        counted.columns = ["a", "b"]
        with pytest.raises(InvalidArgumentError, match="was changed"):
            wb.page("Monday", ("changed", counted))
        return {
            "hashes": hashes,
            "escaped": "By &lt;event&gt;" in text and "By &lt;event&gt;" in page._repr_html_().replace("&amp;", "&"),
            "sandboxed": " sandbox srcdoc=" in page._repr_html_(),
            "cron": (made.cron, made.timezone, made.recipients, made.last_run),
            "relative": [[(item["name"], item["every"], item["periods"]) for item in part] for part in relative],
            "shown": "b•••@example.com" in shown and "0 8 * * mon Europe/Zurich" in shown,
            "runs": runs,
        }

    assert await asyncio.to_thread(analyst) == {
        "hashes": [True] * 3,
        "escaped": True,
        "sandboxed": True,
        "cron": ("0 8 * * mon", "Europe/Zurich", ("b•••@example.com",), None),
        "relative": [[("since", None, 0), ("previous", "week", 1)], [("since", "week", 3)], []],
        "shown": True,
        "runs": [],
    }


@pytest.mark.parametrize(
    ("every", "cron"),
    [
        ("monday 08:00", "0 8 * * mon"),
        ("Mon, thursday 8:30", "30 8 * * mon,thu"),
        ("day 07:05", "5 7 * * *"),
        ("weekday 09:00", "0 9 * * mon-fri"),
        ("month 08:00", "0 8 1 * *"),
        ("0 8 * * 1", "0 8 * * 1"),
    ],
)
def test_times(every: str, cron: str) -> None:
    assert cron_of(every) == cron


@pytest.mark.parametrize("every", ["monday", "moonday 08:00", "day 24:00", "8:00", 5, None])
def test_what_is_no_time_is_refused(every: object) -> None:
    with pytest.raises(InvalidArgumentError, match="every="):
        cron_of(every)


@pytest.mark.parametrize(("title", "parts"), [("", ["x"]), ("t", []), ("t", ["x"]), ("t", [("x", "y")])])
def test_what_is_no_page_is_refused(title: str, parts: list[Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        ReportPage(title, parts)
