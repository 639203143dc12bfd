"""Suggestions of a server that does not answer everything."""

from collections.abc import Iterator
from http.server import HTTPServer

import pytest

from tests.http_server import Handler, serving
from workbench.canvas.suggestions import Suggestions
from workbench.connection import Connection
from workbench.publish import SavedAutomation


class BusyServer(HTTPServer):
    """Answers with the properties of a contact, or with 503 while it is busy; nothing else is permitted."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Line)
        self.is_busy = True
        self.requests = 0


class _Line(Handler):
    server: BusyServer

    def do_GET(self) -> None:
        if self.path != "/api/v1/contacts/properties":
            self.answer_json(403, {"error": "not permitted", "code": "FORBIDDEN"})
            return
        self.server.requests += 1
        if self.server.is_busy:
            self.answer_json(503, {"error": "too many requests", "code": "UNAVAILABLE"})
        else:
            self.answer_json(200, {"sampled": 1, "paths": [], "tags": ["vip"]})


@pytest.fixture
def server() -> Iterator[BusyServer]:
    with serving(BusyServer()) as server:
        yield server


def test_suggestions_of_a_busy_server_are_read_again_and_then_kept(server: BusyServer) -> None:
    connection = Connection(f"http://127.0.0.1:{server.server_port}", "wb_x")
    suggestions = Suggestions(SavedAutomation(connection))
    assert suggestions.choices(())["tags"] == []
    server.is_busy = False
    assert suggestions.choices(())["tags"] == ["vip"]
    requests = server.requests
    assert suggestions.choices(())["tags"] == ["vip"]
    assert server.requests == requests
