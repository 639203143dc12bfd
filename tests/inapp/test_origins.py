"""Origins: which texts are valid, and the operator's list of allowed ones."""

from pathlib import Path

import pytest

from api.__main__ import main
from api.auth import AccessError, keys
from api.inapp.sign_in import add_origin, is_loopback, is_origin_allowed, list_origins, parse_origin, remove_origin


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://app.example.com", "https://app.example.com"),
        ("https://App.Example.com/", "https://app.example.com"),
        ("https://app.example.com:443", "https://app.example.com"),
        ("http://app.example.com:80", "http://app.example.com"),
        ("https://app.example.com:80", "https://app.example.com:80"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("https://xn--bcher-kva.example", "https://xn--bcher-kva.example"),
    ],
)
def test_an_origin_has_one_form(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    "text",
    ["", "null", "*", "https://", "app.example.com", "ftp://a.b", "https://a.b/c", "https://a.b?c", "https://u@a.b",
     "https://*.b", "https://a..b", "https://a.b:123456", "https://a.b\n",
     "https://bücher.example", "https://" + "a" * 300],
)  # fmt: skip
def test_text_that_is_not_an_origin(text: str) -> None:
    assert parse_origin(text) is None


@pytest.mark.parametrize(
    ("origin", "may"),
    [
        ("https://app.example.com", True),
        ("http://app.example.com", False),
        ("https://app.example.com.evil.example", False),
        ("http://localhost:5173", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:1", True),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
    ],
)
def test_only_listed_pages_and_local_pages_are_allowed(origin: str, may: bool) -> None:
    assert is_origin_allowed(origin, ("https://app.example.com",)) is may
    assert is_loopback(origin) is (may and "example" not in origin)


async def test_origins_are_added_once_and_removed(database_url: str) -> None:
    await keys.create_org(database_url, "acme")
    for text in ("https://b.example", "https://A.example/", "https://a.example"):
        await add_origin(database_url, "acme", text)
    assert await list_origins(database_url, "acme") == ("https://b.example", "https://a.example")
    await remove_origin(database_url, "acme", "https://b.example")
    assert await list_origins(database_url, "acme") == ("https://a.example",)
    with pytest.raises(AccessError, match="not among the origins of acme"):
        await remove_origin(database_url, "acme", "https://b.example")
    with pytest.raises(AccessError, match="not an origin"):
        await add_origin(database_url, "acme", "a.example")
    with pytest.raises(AccessError, match="organization not found: globex"):
        await add_origin(database_url, "globex", "https://a.example")


def test_the_command_adds_and_lists(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("WORKBENCH_DATA_DIR", str(tmp_path))
    assert main(["org", "create", "acme"]) == 0
    assert main(["origins", "add", "--org", "acme", "https://app.example.com"]) == 0
    capsys.readouterr()
    assert main(["origins", "list", "--org", "acme"]) == 0
    assert capsys.readouterr().out == "https://app.example.com\n"
    assert main(["origins", "remove", "--org", "acme", "https://app.example.com"]) == 0
