"""What a node says over JSON-RPC, and what its refusals mean. Hashes and addresses are in lower case from here on."""

from typing import Annotated, Any, Generic, Literal, TypeVar

import httpx
import msgspec

Kind = Literal["away", "limited", "refused", "large"]

_LIMITED_CODES = frozenset({429, -32029, -32007})
_LIMITED_WORDS = (
    "rate limit",
    "too many requests",
    "request limit",
    "requests per second",
    "requests/second",
    "compute units per second",
    "throughput",
    "daily request count",
    "quota",
    "capacity exceeded",
    "exceeded its",
)
_LARGE_WORDS = ("result", "size", "too large", "too big", "too many", "timeout", "timed out")
_LONGEST_ASKED = 60.0  # seconds a node may ask us to stay away
_MOST_NUMBER = 2**63 - 1
_MOST_INDEX = 2**31 - 1
_MOST_SECONDS = 253_402_300_799  # the end of the year 9999

_T = TypeVar("_T")
_Hash = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]{64}$")]
_Address = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]{40}$")]
Number = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]{1,64}$")]


class NodeError(Exception):
    """A node that does not say what it was asked.

    It is `away`, wants fewer questions (`limited`), `refused` this one, or its answer would be too `large`. `after`: how many seconds it
    wants to be left alone, when it says so.
    """

    def __init__(self, reason: str, kind: Kind, after: float | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.after = after


class Block(msgspec.Struct, frozen=True):
    """The head of a block; `seconds` since the epoch."""

    number: int
    hash: str
    parent_hash: str
    seconds: int


class Log(msgspec.Struct, frozen=True, gc=False):
    """A log as the node has it. `seconds`: the moment of its block, where the node says it."""

    contract: str
    topics: list[str]
    data: str
    block_number: int
    block_hash: str
    tx_hash: str
    log_index: int
    seconds: int | None


class Refusal(msgspec.Struct):
    """An error of JSON-RPC."""

    code: int = 0
    message: str = ""


class Answer(msgspec.Struct):
    """What is said to one question: a result, or an error."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Refusal | None = None


class Question(msgspec.Struct, Generic[_T], frozen=True):
    """A question, and how its result is read."""

    method: str
    params: list[Any]
    decoder: msgspec.json.Decoder[_T]

    def body(self, number: int) -> dict[str, Any]:
        """Return it as it is sent."""
        return {"jsonrpc": "2.0", "id": number, "method": self.method, "params": self.params}

    def read(self, result: msgspec.Raw) -> _T:
        """Return what a result says; raise NodeError when it is none."""
        try:
            return self.decoder.decode(result)
        except (msgspec.DecodeError, RecursionError):
            raise NodeError(f"answers {self.method} with something else", "away") from None


class BlockJson(msgspec.Struct, rename="camel"):
    """A block as nodes write it."""

    number: Number
    hash: _Hash
    parent_hash: _Hash
    timestamp: Number

    def read(self) -> Block:
        """Return it in our form."""
        seconds = number(self.timestamp, _MOST_SECONDS)
        return Block(number(self.number), self.hash.lower(), self.parent_hash.lower(), seconds)


class LogJson(msgspec.Struct, rename="camel", gc=False):
    """A log as nodes write it."""

    address: _Address
    topics: list[_Hash]
    data: str
    block_number: Number
    block_hash: _Hash
    transaction_hash: _Hash
    log_index: Number
    block_timestamp: Number | None = None
    removed: bool = False

    def read(self) -> Log:
        """Return it in our form."""
        return Log(
            self.address.lower(),
            [topic.lower() for topic in self.topics],
            self.data,
            number(self.block_number),
            self.block_hash.lower(),
            self.transaction_hash.lower(),
            number(self.log_index, _MOST_INDEX),
            None if self.block_timestamp is None else number(self.block_timestamp, _MOST_SECONDS),
        )


_ONE = msgspec.json.Decoder(Answer, strict=False)
_SEVERAL = msgspec.json.Decoder(Answer | list[Answer], strict=False)


def answer_in(response: httpx.Response, content: bytes) -> Answer:
    """Return what is in an answer of any status: some providers refuse with 4xx and JSON, some with 200."""
    return _said(response, _decoded(_ONE, content))


def answers_in(response: httpx.Response, content: bytes) -> list[Answer] | None:
    """Return what is said to several questions; None when the node takes one at a time only."""
    found = _decoded(_SEVERAL, content)
    if isinstance(found, list):
        return found
    if found is None and 400 <= response.status_code < 500 and response.status_code != 429:
        return None
    answer = _said(response, found)
    if answer.error is not None and (error := refused(answer.error, response)).kind == "limited":
        raise error
    return None


def refused(refusal: Refusal, response: httpx.Response) -> NodeError:
    """Return what a refusal means."""
    said = refusal.message.lower()
    kind: Kind = "refused"
    if response.status_code == 429 or refusal.code in _LIMITED_CODES or any(word in said for word in _LIMITED_WORDS):
        kind = "limited"
    elif refusal.code == 413 or any(word in said for word in _LARGE_WORDS):
        kind = "large"
    return NodeError(f"says {refusal.code}: {refusal.message}", kind, _asked_after(response))


def number(text: str, most: int = _MOST_NUMBER) -> int:
    """Return a number that a node writes in hex; raise NodeError for one that means nothing."""
    found = int(text, 16)
    if found > most:
        raise NodeError("answers with a number that is none", "away")
    return found


def _decoded(decoder: msgspec.json.Decoder[_T], content: bytes) -> _T | None:
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return None


def _said(response: httpx.Response, found: Answer | None) -> Answer:
    if found is not None and (found.error is not None or response.status_code < 300):
        return found
    if response.status_code == 429:
        return Answer(error=Refusal(429, "too many requests"))
    if response.status_code == 413:
        return Answer(error=Refusal(413, "answer too large"))
    said = f"status {response.status_code}" if response.status_code >= 300 else "no JSON-RPC"
    raise NodeError(f"answers with {said}", "away", _asked_after(response))


def _asked_after(response: httpx.Response) -> float | None:
    text = response.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_ASKED) if text.isdecimal() else None
