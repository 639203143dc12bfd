"""One EVM node over JSON-RPC: the four questions that following a chain takes, and what its refusals mean.

The address may carry a secret: it stands in no error and no log. Hashes and addresses leave here in lower case.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

Kind = Literal["away", "limited", "refused"]

TIMEOUT = 20.0  # seconds for one answer
MOST_AT_ONCE = 8  # requests of one follower on their way

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
_MOST_SAID = 200
_LONGEST_ASKED = 60.0  # seconds a node may ask us to stay away


class NodeError(Exception):
    """A node that does not say what it was asked: it is `away`, wants fewer questions (`limited`), or `refused` this one.

    `after`: how many seconds it wants to be left alone, when it says so.
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


class _BlockJson(msgspec.Struct, rename="camel"):
    number: str
    hash: str
    parent_hash: str
    timestamp: str


class _LogJson(msgspec.Struct, rename="camel", gc=False):
    address: str
    topics: list[str]
    data: str
    block_number: str
    block_hash: str
    transaction_hash: str
    log_index: str
    block_timestamp: str | None = None
    removed: bool = False


class _Refusal(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Answer(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: _Refusal | None = None


_T = TypeVar("_T")
_ANSWER = msgspec.json.Decoder(_Answer, strict=False)
_TEXT = msgspec.json.Decoder(str)
_BLOCK: msgspec.json.Decoder[_BlockJson | None] = msgspec.json.Decoder(_BlockJson | None)
_LOGS = msgspec.json.Decoder(list[_LogJson])


class Node:
    """A node at an http(s) address."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        self.name = urlsplit(url).hostname or "node"
        self._url = url
        local = self.name in ("127.0.0.1", "localhost", "::1")
        self._client = httpx.AsyncClient(timeout=timeout, trust_env=not local)
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)

    async def close(self) -> None:
        """End the connections."""
        await self._client.aclose()

    async def chain_id(self) -> int:
        """Return which chain it is a node of."""
        return _number(await self._ask("eth_chainId", [], _TEXT))

    async def block(self, number: int | Literal["latest"]) -> Block | None:
        """Return the head of a block, None when the node has none of that number."""
        where = number if number == "latest" else hex(number)
        found = await self._ask("eth_getBlockByNumber", [where, False], _BLOCK)
        if found is None:
            return None
        return Block(_number(found.number), found.hash.lower(), found.parent_hash.lower(), _number(found.timestamp))

    async def logs_of(self, block_hash: str, contracts: Sequence[str], topics: Sequence[str]) -> list[Log]:
        """Return the logs of one block; a node that does not have it refuses, instead of having none."""
        return await self._logs({"blockHash": block_hash, "address": list(contracts), "topics": [list(topics)]})

    async def logs_between(self, first: int, last: int, contracts: Sequence[str], topics: Sequence[str]) -> list[Log]:
        """Return the logs of blocks `first` to `last`."""
        where = {"fromBlock": hex(first), "toBlock": hex(last)}
        return await self._logs({**where, "address": list(contracts), "topics": [list(topics)]})

    async def _logs(self, wanted: dict[str, Any]) -> list[Log]:
        found = await self._ask("eth_getLogs", [wanted], _LOGS)
        logs = [_log(each) for each in found if not each.removed]
        return sorted(logs, key=lambda log: (log.block_number, log.log_index))

    async def _ask(self, method: str, params: list[Any], decoder: msgspec.json.Decoder[_T]) -> _T:
        body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        try:
            async with self._turns:
                response = await self._client.post(
                    self._url, content=body, headers={"Content-Type": "application/json"}
                )
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise NodeError(f"no answer ({type(error).__name__})", "away") from None
        answer = _answer(response)
        if answer.error is not None:
            raise _refused(answer.error, response)
        try:
            return decoder.decode(answer.result)
        except msgspec.DecodeError:
            raise NodeError(f"answers {method} with something else", "away") from None


def _answer(response: httpx.Response) -> _Answer:
    """Return what is in an answer of any status: some providers refuse with 4xx and JSON, some with 200."""
    try:
        answer = _ANSWER.decode(response.content)
    except msgspec.DecodeError:
        answer = None
    if answer is not None and (answer.error is not None or response.status_code < 300):
        return answer
    if response.status_code == 429:
        return _Answer(error=_Refusal(429, "too many requests"))
    if response.status_code == 413:
        return _Answer(error=_Refusal(413, "answer too large"))
    said = f"status {response.status_code}" if response.status_code >= 300 else "no JSON-RPC"
    raise NodeError(f"answers with {said}", "away", _asked_after(response))


def _refused(refusal: _Refusal, response: httpx.Response) -> NodeError:
    said = refusal.message.lower()
    limited = (
        response.status_code == 429 or refusal.code in _LIMITED_CODES or any(word in said for word in _LIMITED_WORDS)
    )
    text = "".join(each if each.isprintable() else " " for each in refusal.message)[:_MOST_SAID]
    reason = f"says {refusal.code}: {text}"
    return NodeError(reason, "limited" if limited else "refused", _asked_after(response))


def _asked_after(response: httpx.Response) -> float | None:
    text = response.headers.get("Retry-After", "")
    return min(float(text), _LONGEST_ASKED) if text.isdecimal() else None


def _log(each: _LogJson) -> Log:
    return Log(
        each.address.lower(),
        [topic.lower() for topic in each.topics],
        each.data,
        _number(each.block_number),
        each.block_hash.lower(),
        each.transaction_hash.lower(),
        _number(each.log_index),
        None if each.block_timestamp is None else _number(each.block_timestamp),
    )


def _number(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise NodeError("answers with a number that is none", "away") from None
