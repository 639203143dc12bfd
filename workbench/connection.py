"""HTTP to the service: one client, one way to turn refusals into errors of this package.

Reading is repeated when the server is briefly away; writing never is, except by `events`, which has a key for it.
"""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import httpx
import msgspec

from api.language.codec import MalformedJsonError, decode, encode
from api.language.problem import Problem
from api.language.version import HEADER, VERSION
from workbench import surroundings
from workbench.errors import (
    DraftError,
    KeyRefusedError,
    NotThereError,
    RefusedError,
    StaleError,
    UnavailableError,
    UnknownOutcomeError,
    UnreachableError,
    VersionError,
    WorkbenchError,
)

JSON: Final = "application/json"
STREAM: Final = "text/event-stream"
_SECONDS = 30.0
_TIMEOUT = httpx.Timeout(_SECONDS, connect=5.0)
_READ_PAUSES = (0.2, 0.6)
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})  # never by way of a proxy


class Answer(msgspec.Struct, frozen=True):
    """What came back: status, decoded JSON (numbers exact) or raw bytes, headers whose names know no case."""

    status: int
    body: Any
    raw: bytes = b""
    headers: Mapping[str, str] = {}

    @property
    def request_id(self) -> str | None:
        """The server's name for this request, in its log too."""
        return self.body.get("requestId") if isinstance(self.body, dict) else None

    @property
    def error(self) -> str:
        """The server's own sentence."""
        if isinstance(self.body, dict) and isinstance(self.body.get("error"), str):
            return str(self.body["error"])
        return f"the server answered {self.status}"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem that the server named."""
        if not isinstance(self.body, dict):
            return ()
        listed = self.body.get("errors") or [self.body]
        return tuple(_problem(each) for each in listed if isinstance(each, dict))


class Connection:
    """A server and a key for it. Holds no state but open sockets."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = _address(url)
        self._key = _presentable(key)
        headers = {"Accept": JSON, HEADER: VERSION} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        local = httpx.URL(self.url).host in _LOOPBACK
        self._codings = {"Accept-Encoding": "identity"} if local else {}  # there, unpacking takes longer than receiving
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=_TIMEOUT, trust_env=not local)
        weakref.finalize(self, self._client.close)  # notebooks drop their workbenches without a word

    @property
    def has_key(self) -> bool:
        """Whether there is a key to speak with."""
        return self._key is not None

    def get(self, path: str, **params: str | int | None) -> Any:
        """Return the decoded JSON at `path`; repeats when the server is briefly away."""
        known = {name: value for name, value in params.items() if value is not None}
        for pause in (*_READ_PAUSES, None):
            try:
                return self._json(self.exchange("GET", path, params=known))
            except (UnreachableError, UnavailableError, UnknownOutcomeError):
                if pause is None:
                    raise
                surroundings.sleep(pause)
        raise AssertionError("the loop above returns or raises")

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Post a JSON object once and return the decoded answer."""
        return self._json(self.exchange("POST", path, body={} if body is None else body))

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """Put a JSON object once and return the decoded answer."""
        return self._json(self.exchange("PUT", path, body=body))

    def delete(self, path: str) -> Any:
        """Delete what is at `path` and return the decoded answer."""
        return self._json(self.exchange("DELETE", path))

    def exchange(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = JSON,
        seconds: float = _SECONDS,
    ) -> Answer:
        """Return whatever the server answers, of any status, within some seconds; raise when there is no complete answer."""
        headers = {"Accept": accept} | ({"Content-Type": JSON} if body is not None else {})
        content = None if body is None else _written(body)
        with self._in_our_words():
            response = self._client.request(
                *(method, f"/api/v1{path}"),
                params=dict(params or {}),
                content=content,
                headers=headers,
                timeout=httpx.Timeout(seconds, connect=5.0),
            )
        return _answer(response)

    @contextmanager
    def lines(self, path: str, **params: str | int | None) -> Iterator[Iterator[str]]:
        """Give the lines of a stream of events as they come; raise what `get` raises, also while it lasts."""
        known = {name: value for name, value in params.items() if value is not None}
        headers = {"Accept": STREAM}
        with (
            self._in_our_words(),
            self._client.stream("GET", f"/api/v1{path}", params=known, headers=headers) as response,
        ):
            if not response.headers.get("Content-Type", "").startswith(STREAM):
                response.read()
                self._json(_answer(response))
            yield response.iter_lines()

    @contextmanager
    def pieces(self, path: str, body: Mapping[str, Any], accept: str) -> Iterator[tuple[Answer, Iterator[bytes]]]:
        """Post once and give the answer: of a success, its bytes as they come. Raise what `exchange` raises, also while it lasts."""
        headers = {"Accept": accept, "Content-Type": JSON} | self._codings
        with (
            self._in_our_words(),
            self._client.stream("POST", f"/api/v1{path}", content=_written(body), headers=headers) as response,
        ):
            if response.is_success:
                yield Answer(response.status_code, None, headers=response.headers), response.iter_bytes()
            else:
                response.read()
                yield _answer(response), iter(())

    def check(self, answer: Answer) -> Answer:
        """Return a successful answer as it is; raise the error that fits any other."""
        return self._checked(answer)

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
            raise UnreachableError(self._unreachable(error)) from None
        except httpx.HTTPError as error:
            raise UnknownOutcomeError(
                f"the connection to {self.url} broke before the answer came ({_said(error)})"
            ) from None

    def _json(self, answer: Answer) -> Any:
        """Return the JSON of a successful answer; raise UnreachableError when it has none, so is not this service's."""
        if self._checked(answer).body is None:
            raise UnreachableError(f"what answers at {self.url} is not this service: WORKBENCH_URL says where it is")
        return answer.body

    def _checked(self, answer: Answer) -> Answer:
        if answer.status < 300:
            return answer
        raise self._error(answer)

    def _error(self, answer: Answer) -> WorkbenchError:
        if answer.status in (401, 403):
            return KeyRefusedError(self._key_refusal(answer))
        match answer.status:
            case 404:
                return NotThereError(answer.error)
            case 409:
                return StaleError(answer.error, answer.problems, answer.request_id)
            case status if status == 429 or status >= 500:
                return UnavailableError(f"the server cannot take this right now ({answer.error}); try again shortly")
            case _:
                return RefusedError(_listed(answer), answer.problems, answer.request_id)

    def _key_refusal(self, answer: Answer) -> str:
        if answer.status == 403:
            return f"this key may not do that: {answer.error}"
        if not self.has_key:
            return (
                "there is no key: set WORKBENCH_KEY before starting JupyterLab (`make up` does), "
                'or write Workbench(key="wb_…")'
            )
        return (
            f"the server does not know this key, or it was revoked: {answer.error}. "
            "`workbench key list --org NAME` shows the keys there are"
        )

    def _unreachable(self, error: Exception) -> str:
        return (
            f"no answer from {self.url} ({_said(error)}). Is the service running? `make up` starts it; "
            'WORKBENCH_URL or Workbench(url="…") says where it is'
        )


def _address(url: str) -> str:
    try:
        return str(httpx.URL(url.strip())).rstrip("/")
    except httpx.InvalidURL as error:
        raise UnreachableError(f"{url!r} is not an address ({error}); write it like http://127.0.0.1:8000") from None


def _presentable(key: str | None) -> str | None:
    """Return the key without the blanks around it; raise KeyRefusedError for what no header can carry."""
    key = key.strip() if key is not None else None
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise KeyRefusedError("this is no key: it holds blanks or letters that no key has")
    return key or None


def _written(body: Mapping[str, Any]) -> bytes:
    try:
        return encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DraftError(f"this cannot be written as JSON: {error}") from None


def _answer(response: httpx.Response) -> Answer:
    """Return an answer that is there whole; raise VersionError when the server does not serve our version."""
    raw = response.content
    if not response.headers.get("Content-Type", "").startswith(JSON):
        return Answer(response.status_code, None, raw)
    try:
        answer = Answer(response.status_code, decode(raw), raw)
    except MalformedJsonError:
        return Answer(response.status_code, None, raw)
    if answer.status == 400 and [problem.field for problem in answer.problems] == [HEADER]:
        raise VersionError(answer.problems[0].reason)
    return answer


def _problem(value: dict[str, Any]) -> Problem:
    field = str(value.get("field") or value.get("nodeId") or "")
    text = str(value.get("error") or value.get("message") or "")
    return Problem(field, text.removeprefix(f"{field}: ") if field else text)


def _listed(answer: Answer) -> str:
    if len(answer.problems) < 2:
        return answer.error
    return "\n".join([f"{len(answer.problems)} problems:", *(f"  • {each}" for each in answer.problems)])


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
