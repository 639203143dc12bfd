"""Every built-in report is a route, whose rows are those of its SQL."""

from typing import Any

import msgspec
import pytest

from api.query.reports import statement
from tests.openapi.test_requests import VALID_BODIES
from tests.routes.conftest import Org
from workbench.language.reports import REPORTS, ReportBody, report_query


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name)
async def test_a_report_has_the_rows_and_the_hash_of_its_sql(acme: Org, report: type[ReportBody]) -> None:
    body = {**VALID_BODIES[f"reports.{report.name}"], "until": "2026-12-01T00:00:00Z", "segments": ["a", "b"]}
    query = report_query(msgspec.convert(body, report), statement)
    asked = await acme.call("POST", f"/reports/{report.name}", body, kind="workbench")
    by_hand = await acme.call("POST", "/sql", {"sql": query.text, "params": query.params}, kind="workbench")
    assert asked.status_code == by_hand.status_code == 200, asked.text
    assert asked.json() == by_hand.json()
    assert asked.headers["Query-Hash"] == by_hand.headers["Query-Hash"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"until": "2026-10-01T00:00:00Z"}, "until"),
        ({"asOf": "yesterday"}, "asOf"),
        ({"steps": []}, "steps"),
        ({"by": "a..b"}, "by"),
        ({"withinSeconds": 0}, "withinSeconds"),
    ],
)
async def test_what_is_wrong_with_a_report_is_named(acme: Org, wrong: dict[str, Any], field: str) -> None:
    body = {**VALID_BODIES["reports.funnel"], **wrong}
    refused = await acme.call("POST", "/reports/funnel", body, kind="workbench")
    assert (refused.status_code, refused.json()["field"]) == (400, field)
