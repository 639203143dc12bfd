"""HTTP requests to the service, and the errors of this package for its error responses.

Reads are retried while the server is briefly unavailable. Writes are not retried here: only an event has an idempotency
key, and `events` retries those itself.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, TypeVar

import httpx
import msgspec

from workbench import environment
from workbench.errors import (
    AuthenticationError,
    ConflictError,
    ConnectionFailedError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
    UnknownOutcomeError,
    VersionError,
    WorkbenchError,
)
from workbench.event_json import encode_exactly
from workbench.language.codec import MalformedJsonError, decode
from workbench.language.problem import Problem
from workbench.language.version import VERSION, VERSION_HEADER

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
BYTES: Final = "application/octet-stream"
_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
_READ_PAUSES_S = (0.2, 0.6)  # before the second and the third try
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Response(msgspec.Struct, frozen=True):
    """A response: status, decoded JSON (numbers exact) or None, and case-insensitive headers."""

    status: int
    body: Any
    headers: Mapping[str, str] = {}

    @property
    def request_id(self) -> str | None:
        return self.body.get("requestId") if isinstance(self.body, dict) else None

    @property
    def error(self) -> str:
        if isinstance(self.body, dict) and isinstance(self.body.get("error"), str):
            return str(self.body["error"])
        return f"the server answered {self.status}"

    @property
    def retry_after_s(self) -> float:
        """The value of `Retry-After` in seconds; 0 without one, or if it is a date."""
        text = self.headers.get("Retry-After", "")
        return float(text) if text.isascii() and text.isdigit() else 0.0

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem in the body, with the field or node that it is about."""
        if not isinstance(self.body, dict):
            return ()
        problems = []
        for problem in self.body.get("errors") or [self.body]:
            if isinstance(problem, dict):
                field = str(problem.get("field") or problem.get("nodeId") or "")
                reason = str(problem.get("error") or problem.get("message") or "")
                problems.append(Problem(field, reason.removeprefix(f"{field}: ") if field else reason))
        return tuple(problems)


class Connection:
    """A server and a key for it. Its only state is a pool of open sockets."""

    def __init__(self, url: str, key: str | None) -> None:
        try:
            self.url = str(httpx.URL(url.strip())).rstrip("/")
        except httpx.InvalidURL as error:
            raise ConnectionFailedError(
                f"{url!r} is not a URL ({error}); write it like http://127.0.0.1:8000"
            ) from None
        self._key = key.strip() if key is not None else None
        if self._key and not (self._key.isascii() and self._key.isprintable() and " " not in self._key):
            # httpx would raise a UnicodeEncodeError for such a header, without naming the key.
            raise AuthenticationError("the API key contains spaces or characters that are not allowed: copy it again")
        self._key = self._key or None
        # The server compares the version in every request, because a kernel can stay open while the server is upgraded.
        headers = {"Accept": JSON, VERSION_HEADER: VERSION} | (
            {"Authorization": f"Bearer {self._key}"} if self._key else {}
        )
        local = httpx.URL(self.url).host in _LOOPBACK
        # On the loopback, decompressing Arrow (zstd: 0.6 µs a row) takes longer than receiving it uncompressed.
        self._encodings = {"Accept-Encoding": "identity"} if local else {}
        timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        # trust_env would send requests to the loopback through HTTP_PROXY.
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=not local)
        self._json_headers = httpx.Headers({**self._client.headers, "Content-Type": JSON})
        # Notebooks drop a Workbench without closing it. At the end of a process a `Client` still sends.
        weakref.finalize(self, self._client.close).atexit = False

    @property
    def has_key(self) -> bool:
        return self._key is not None

    def get(self, path: str, **params: str | int | None) -> Any:
        """Return the decoded JSON at `path`. Retries while the server is unavailable. Omits None parameters."""
        sent = {name: value for name, value in params.items() if value is not None}
        return retry(lambda: self._json(self.request("GET", path, params=sent)), _READ_PAUSES_S)

    # Writes are sent once: after a lost response a repetition could do the same thing twice.

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._json(self.request("POST", path, body={} if body is None else body))

    def post_bytes(self, path: str, body: bytes) -> Any:
        """Post a body that is JSON already; takes half of the time of `post`."""
        with self._translated_errors():
            response = self._client.send(
                httpx.Request("POST", f"{self.url}/api/v1{path}", headers=self._json_headers, content=body)
            )
        return self._json(_response(response))

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._json(self.request("PUT", path, body=body))

    def delete(self, path: str) -> Any:
        return self._json(self.request("DELETE", path))

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = JSON,
        timeout_s: float = _TIMEOUT_S,
    ) -> Response:
        """Return the response, with any status.

        Raises ConnectionFailedError without a connection, and UnknownOutcomeError without a complete response.
        """
        with self._translated_errors():
            response = self._client.request(
                method,
                f"/api/v1{path}",
                params=dict(params or {}),
                content=None if body is None else encode_exactly(body),
                headers={"Accept": accept} | ({"Content-Type": JSON} if body is not None else {}),
                timeout=httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S),
            )
        return _response(response)

    @contextmanager
    def stream_lines(self, path: str, **params: str | int | None) -> Iterator[Iterator[str]]:
        """Yield the lines of an event stream as they arrive. Raises the errors of `get`, even after some lines."""
        sent = {name: value for name, value in params.items() if value is not None}
        headers = {"Accept": EVENT_STREAM}
        with (
            self._translated_errors(),
            self._client.stream("GET", f"/api/v1{path}", params=sent, headers=headers) as response,
        ):
            if not response.headers.get("Content-Type", "").startswith(EVENT_STREAM):  # an error, as JSON
                response.read()
                self._json(_response(response))
            yield response.iter_lines()

    @contextmanager
    def stream_bytes(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        accept: str = BYTES,
        *,
        params: Mapping[str, int] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[Response, Iterator[bytes]]]:
        """Request once (GET without a body) and yield the response; the bytes of a successful one come as they arrive.

        Raises the errors of `request`, even after some bytes.
        """
        media = {"Accept": accept} | ({} if body is None else {"Content-Type": JSON})
        sent = {**media, **self._encodings, **(headers or {})}
        content = None if body is None else encode_exactly(body)
        with (
            self._translated_errors(),
            self._client.stream(
                "GET" if body is None else "POST", f"/api/v1{path}", params=params, content=content, headers=sent
            ) as response,
        ):
            if response.is_success:
                yield Response(response.status_code, None, headers=response.headers), response.iter_bytes()
            else:
                response.read()
                yield _response(response), iter(())

    def check(self, response: Response) -> Response:
        """Return a successful response unchanged; raise the error of this package for any other."""
        status, error = response.status, response.error
        kind: type[WorkbenchError]
        match status:
            case _ if status < 300:
                return response
            case 401 if not self.has_key:
                kind = AuthenticationError
                error = (
                    "the API key is missing: set WORKBENCH_KEY before starting JupyterLab (`make up` does), "
                    'or write Workbench(key="wb_…")'
                )
            case 401:
                kind = AuthenticationError
                error = (
                    f"the server does not know this key, or it was revoked: {error}. "
                    "`workbench key list --org NAME` lists the keys"
                )
            case 403:
                kind, error = PermissionDeniedError, f"this key may not do that: {error}"
            case 404:
                kind = NotFoundError
            case _ if status == 429 or status >= 500:
                kind, error = UnavailableError, f"the server cannot take this right now ({error}); try again shortly"
            case 409:
                kind = ConflictError
            case _:
                kind = InvalidRequestError
                if len(response.problems) > 1:
                    bullets = [f"  • {problem}" for problem in response.problems]
                    error = "\n".join([f"{len(bullets)} problems:", *bullets])
        raised = kind(error, response.problems, status=status, request_id=response.request_id)
        if isinstance(raised, UnavailableError):
            raised.retry_after_s = response.retry_after_s
        raise raised

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:  # no byte was sent
            raise ConnectionFailedError(
                f"no response from {self.url} ({_reason(error)}). Is the service running? `make up` starts it; "
                'WORKBENCH_URL or Workbench(url="…") sets its URL'
            ) from None
        except httpx.HTTPError as error:  # the server may have received and committed the request
            raise UnknownOutcomeError(
                f"the connection to {self.url} was lost before the response arrived ({_reason(error)})"
            ) from None

    def _json(self, response: Response) -> Any:
        if self.check(response).body is None:  # a proxy or another service answers with a page
            raise ConnectionFailedError(
                f"the server at {self.url} is not an Event Workbench: set WORKBENCH_URL to the URL of the service"
            )
        return response.body


def _response(response: httpx.Response) -> Response:
    """Return a response that was read completely; raise VersionError if the server does not support our version."""
    body = None
    if response.headers.get("Content-Type", "").startswith(JSON):
        with suppress(MalformedJsonError):
            body = decode(response.content)
    decoded = Response(response.status_code, body, response.headers)
    # Raised here and not in `check`, because some callers handle error responses without `check`.
    if decoded.status == 400 and [problem.field for problem in decoded.problems] == [VERSION_HEADER]:
        raise VersionError(decoded.problems[0].reason, status=decoded.status, request_id=decoded.request_id)
    return decoded


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


T = TypeVar("T")


def retry(read: Callable[[], T], pauses_s: Sequence[float]) -> T:
    """Return the result of `read`, which is retried after each pause while the server is unavailable."""
    for pause_s in pauses_s:
        try:
            return read()
        except (ConnectionFailedError, UnavailableError, UnknownOutcomeError):
            environment.sleep(pause_s)
    return read()


class TtlCache(Generic[T]):
    """A value that is read again after `ttl_s` seconds.

    IPython shows an object in several formats, and completes with every key press: either should cost one request.
    """

    def __init__(self, read: Callable[[], T], ttl_s: float = 2.0) -> None:
        self._read = read
        self._ttl_s = ttl_s
        self._cached: tuple[float, T] | None = None

    def __call__(self) -> T:
        """Return the value. Raises the errors of `read`."""
        if self._cached is not None and environment.monotonic_s() - self._cached[0] <= self._ttl_s:
            return self._cached[1]
        return self.refresh()

    def refresh(self) -> T:
        value = self._read()
        self._cached = environment.monotonic_s(), value
        return value
