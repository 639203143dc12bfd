"""`/help`: the site of the documentation, as `make docs` has built it.

A page may load only what this service serves, and run only the scripts that the site has: its inline scripts are
allowed by their hashes. Its own requests are those of the HTTP reference, to this service.
"""

import asyncio
import base64
import hashlib
import re
from functools import lru_cache
from pathlib import Path, PurePosixPath

import msgspec
from sanic import Blueprint, HTTPResponse, Request, redirect

from api.routes.request import Operation

blueprint = Blueprint("documentation")

# The site in the wheel, and in a checkout
FOLDERS = (Path(__file__).parents[1] / "_site", Path(__file__).parents[2] / "build" / "site")
# Not those of the machine, which may lack some: with `nosniff`, a browser then refuses scripts and styles.
_MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
}
_HEADERS = {
    "cache-control": "public, max-age=300",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_POLICY = (
    "default-src 'none'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self' data:; media-src 'self'; connect-src 'self'; worker-src 'self'; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_CACHED_FILES = 64
_NOT_MODIFIED = 304
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_NOT_BUILT = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="5">
<title>The documentation is not built</title>
<style>
:root { color-scheme: light dark }
body { font: 1.0625rem/1.5 system-ui, sans-serif; margin: 12vh auto; max-width: 34rem; padding: 0 1.25rem }
</style>
<h1>The documentation is not built yet</h1>
<p><code>make up</code> builds it in the background, about a minute after its first start. This page then shows it.</p>
<p>If it does not appear, run <code>make docs</code> in the folder of the repository. The sources are in its folder
<code>docs</code>, and the <a href="/docs">description of the API</a> is always available.</p>
</html>
"""


@blueprint.get("/help", strict_slashes=True)
@Operation(media="text/html", status=302)
async def redirect_to_home(_: Request) -> HTTPResponse:
    """Redirect to the first page of the documentation."""
    return redirect("/help/")  # its links are relative


@blueprint.get("/help/<path:path>")
@Operation(media="text/html")
async def serve_file(request: Request, path: str) -> HTTPResponse:
    """Return a page or another file of the documentation."""
    name = path or "index.html"
    file = await asyncio.to_thread(_read, name)
    if file is None:
        page = await asyncio.to_thread(_read, "404.html") or _NO_SITE
        headers = _HEADERS | {"cache-control": "no-store", "content-security-policy": page.policy}
        return HTTPResponse(page.content, 404, headers, _MEDIA[".html"])
    media = _MEDIA.get(PurePosixPath(name).suffix, "application/octet-stream")
    headers = _HEADERS | {"etag": file.etag}
    if media == _MEDIA[".html"]:
        headers["content-security-policy"] = file.policy
    if request.headers.get("if-none-match") == file.etag:
        return HTTPResponse(None, _NOT_MODIFIED, headers)
    return HTTPResponse(file.content, 200, headers, media)


class _File(msgspec.Struct, frozen=True):
    """A file of the site, the policy of a page with this content, and the tag of the content."""

    content: bytes
    policy: str
    etag: str


def _file(content: bytes) -> _File:
    return _File(content, _policy(content), f'"{hashlib.sha256(content).hexdigest()[:16]}"')


@lru_cache(maxsize=_CACHED_FILES)
def _cached(path: Path, _modified_ns: int) -> _File:
    return _file(path.read_bytes())


def _read(name: str) -> _File | None:
    """Return a file of the site, or None: it does not exist, or is outside of the site."""
    site = next((folder for folder in FOLDERS if folder.is_dir()), None)
    if site is None or "\0" in name:
        return None
    path = (site / name).resolve()
    if not path.is_relative_to(site.resolve()) or not path.is_file():
        return None
    return _cached(path, path.stat().st_mtime_ns)


def _policy(page: bytes) -> str:
    digests = (base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(page))
    return _POLICY.format(hashes="".join(f" 'sha256-{digest}'" for digest in dict.fromkeys(digests)))


_NO_SITE = _file(_NOT_BUILT)
