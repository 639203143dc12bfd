"""Segments over the real API, and the engine's job that keeps them fresh."""

from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest

from api.clock import Clock
from api.segments.candidates import SegmentServices
from tests.routes.conftest import Org, Service, service
from workbench.language.codec import decode

__all__ = ["service"]  # a fixture


class LateClock(Clock):
    """The database's time plus `ahead`."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = timedelta()

    def now_us(self) -> int:
        return super().now_us() + self.ahead // timedelta(microseconds=1)


class Team:
    """An organization with an author of segments."""

    def __init__(self, org: Org) -> None:
        self.org = org

    @property
    def id(self) -> int:
        return self.org.id

    @property
    def services(self) -> SegmentServices:
        """The services of an engine, which refreshes the segments of every organization."""
        parts = self.org.service.services
        return msgspec.structs.replace(parts.segments, database=parts.system_database)

    async def call(self, method: str, path: str = "", body: Any = None, *scopes: str) -> httpx.Response:
        """Send a request with a workbench key that has these scopes (none: the default scopes)."""
        key = await self.org.key("workbench", *scopes)
        return await self.org.call(method, f"/segments{path}", body, authorization=f"Bearer {key}")

    async def expect_success(self, method: str, path: str = "", body: Any = None) -> dict[str, Any]:
        response = await self.call(method, path, body)
        assert response.status_code < 300, response.text
        return decode(response.content)  # type: ignore[no-any-return]

    async def expect_refusal(self, method: str, path: str = "", body: Any = None) -> tuple[int, str]:
        response = await self.call(method, path, body)
        return response.status_code, response.json()["error"]

    async def contact(self, name: str, **attributes: Any) -> str:
        """Create a contact by an event; return its id."""
        event = {"event": "deposit", "contact": {"externalId": name}, "attributes": attributes}
        assert (await self.org.post(event))[0] == 202
        return await self.id_of(name)

    async def id_of(self, name: str) -> str:
        ((contact_id,),) = await self.rows(
            "SELECT id FROM contacts WHERE org_id = %s AND external_id = %s", self.id, name
        )
        return str(contact_id)

    async def members(self, segment: str) -> set[str]:
        rows = await self.rows(
            "SELECT contact_id FROM segment_members WHERE org_id = %s AND segment = %s", self.id, segment
        )
        return {contact_id for (contact_id,) in rows}

    async def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self.org.service.rows(statement, *values)


@pytest.fixture
async def acme(service: Service) -> Team:
    return Team(await service.organization())


@pytest.fixture
async def globex(service: Service) -> Team:
    """Another organization."""
    return Team(await service.organization())


@pytest.fixture
async def clock(service: Service) -> LateClock:
    made = LateClock()
    await service.services.system_database.calibrate(made)
    return made
