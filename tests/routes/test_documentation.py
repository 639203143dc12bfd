"""The API serves the files of the site and nothing else, with a policy that allows the scripts of each page alone."""

import base64
import hashlib
from pathlib import Path

import pytest

from api.routes import documentation
from tests.routes.conftest import Service

SCRIPT = "let answer = 6 * 7;"
PAGE = f'<!doctype html><title>Home</title><script src="a.js"></script><script>{SCRIPT}</script>'
DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "secret.txt").write_text("not of the site")
    site = tmp_path / "site"
    (site / "roles").mkdir(parents=True)
    for name, text in {"index.html": PAGE, "roles/analyst.html": "Analysts", "a.js": "1", "404.html": "gone"}.items():
        (site / name).write_text(text)
    (site / "leak.txt").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr(documentation, "FOLDERS", (tmp_path / "absent", site))
    return site


async def get(service: Service, path: str) -> tuple[int, str, str]:
    answer = await service.client.get(f"http://127.0.0.1:{service.port}{path}")
    return answer.status_code, answer.headers.get("content-type", ""), answer.text


async def test_pages_and_files_are_served(service: Service, site: Path) -> None:
    assert await get(service, "/help/") == (200, "text/html; charset=utf-8", PAGE)
    assert await get(service, "/help/roles/analyst.html") == (200, "text/html; charset=utf-8", "Analysts")
    assert await get(service, "/help/a.js") == (200, "text/javascript; charset=utf-8", "1")
    assert await get(service, "/help/nothing.html") == (404, "text/html; charset=utf-8", "gone")
    assert await get(service, "/help/roles") == (404, "text/html; charset=utf-8", "gone")
    redirected = await service.client.get(f"http://127.0.0.1:{service.port}/help")
    assert (redirected.status_code, redirected.headers["location"]) == (302, "/help/")


async def test_a_page_may_run_its_own_scripts_only(service: Service, site: Path) -> None:
    answer = await service.client.get(f"http://127.0.0.1:{service.port}/help/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["script-src"] == f"'self' 'sha256-{DIGEST}'"
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == ("'none'", "'self'", "'none'")


async def test_a_page_that_a_browser_has_is_not_sent_again(service: Service, site: Path) -> None:
    url = f"http://127.0.0.1:{service.port}/help/"
    first = await service.client.get(url)
    again = await service.client.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    (site / "index.html").write_text("Another page")
    changed = await service.client.get(url, headers={"If-None-Match": first.headers["etag"]})
    assert (changed.status_code, changed.text) == (200, "Another page")


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "%2e%2e/secret.txt",
        "..%2fsecret.txt",
        "roles/../../secret.txt",
        "leak.txt",
        "%00",
        "/etc/passwd",
    ],
)
async def test_a_file_outside_of_the_site_is_not_served(service: Service, site: Path, path: str) -> None:
    answer = await service.exchange(f"GET /help/{path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert answer.split()[1] in (b"404", b"400")
    assert b"not of the site" not in answer
    assert b"root:" not in answer


async def test_without_a_site_the_page_says_how_to_build_it(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documentation, "FOLDERS", (tmp_path / "absent",))
    status, _, text = await get(service, "/help/")
    assert status == 404
    assert "make docs" in text
