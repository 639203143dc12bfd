"""Private attributes of Sanic are used in one file, which says why its minor version is pinned."""

import re
from pathlib import Path

from sanic import Request, Sanic
from sanic.http import Http
from sanic.server.protocols.websocket_protocol import WebSocketProtocol

API = Path(__file__).parents[2] / "api"
ONE_FILE = API / "wire/connection.py"
KINDS = (Sanic, Http, Request, *WebSocketProtocol.__mro__)
PRIVATE = {name for kind in KINDS for name in (*dir(kind), *getattr(kind, "__slots__", ())) if re.match("_[a-z]", name)}


def test_private_attributes_of_sanic_are_used_in_one_file() -> None:
    assert {"_can_write", "_receive_more", "_time"} <= used_in(ONE_FILE) & (PRIVATE | {"_receive_more"})
    others = [
        path for path in API.rglob("*.py") if path != ONE_FILE and re.search("sanic|HttpConnection", path.read_text())
    ]
    assert {path.name: used_in(path) & PRIVATE for path in others if used_in(path) & PRIVATE} == {}


def used_in(path: Path) -> set[str]:
    return set(re.findall(r"\.(_[a-z]\w*)", path.read_text("utf-8")))
