"""An EVM node over JSON-RPC: the requests to follow a chain. Hashes and addresses are returned in lower case.

A log filter names contracts and topics. A node returns every combination of the two, so the response is filtered
again here. Where the response would be too large, the filter is halved.

A node's URL may contain a secret: a key in the path, the query or the user part. It is removed from every error and
log, also where the node repeats it. A response is read up to the size that a follower has memory for.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Generic, Literal, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import httpx
import msgspec

READ_TIMEOUT_S = 20.0  # without a byte of the response
RESPONSE_TIMEOUT_S = 60.0  # for the whole response
MAX_CONCURRENT_REQUESTS = 8  # per follower
MAX_RESPONSE_BYTES = 16 * 2**20  # decompressed: about 25,000 logs
MAX_UNDIVIDED_BYTES = 8 * MAX_RESPONSE_BYTES  # for a response that cannot be requested in parts

NodeErrorKind = Literal["unavailable", "rate_limited", "refused", "too_large"]

_RATE_LIMIT_CODES = frozenset({429, -32029, -32007})
# Providers agree neither on codes nor on texts; these are the words they use.
_RATE_LIMIT = re.compile(
    "rate limit|too many requests|request limit|requests per second|requests/second|compute units per second|"
    "throughput|daily request count|quota|capacity exceeded|exceeded its"
)
_TOO_LARGE = re.compile("result|size|too large|too big|too many|timeout|timed out")
_MAX_RETRY_AFTER_S = 60.0
_MAX_NUMBER = 2**63 - 1  # bigint
_MAX_LOG_INDEX = 2**31 - 1  # integer
_MAX_TIMESTAMP_S = 253_402_300_799  # the end of the year 9999, the last that `datetime` has
_MAX_ERROR_CHARACTERS = 200
_MIN_SECRET_CHARACTERS = 4
_HIDDEN = "…"

_T = TypeVar("_T")
_First = TypeVar("_First")
_Second = TypeVar("_Second")
_Hash = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]{64}$")]
_Address = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]{40}$")]
_HexNumber = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-fA-F]{1,64}$")]


class NodeError(Exception):
    """A node did not return the requested data.

    `kind`: `unavailable` (no response, or an invalid one), `rate_limited`, `refused` (this request), or `too_large`
    (its response). `retry_after_s`: the pause that the node requests, or None.
    """

    def __init__(self, reason: str, kind: NodeErrorKind, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.retry_after_s = retry_after_s


class Block(msgspec.Struct, frozen=True):
    """The header of a block; `seconds`: its timestamp, since the epoch."""

    number: int
    hash: str
    parent_hash: str
    seconds: int


class Log(msgspec.Struct, frozen=True, gc=False):
    """A log as the node has it. `seconds`: the timestamp of its block, if the node includes it."""

    contract: str
    topics: list[str]
    data: str
    block_number: int
    block_hash: str
    tx_hash: str
    log_index: int
    seconds: int | None


class RpcError(msgspec.Struct):
    code: int = 0
    message: str = ""


class RpcResponse(msgspec.Struct):
    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: RpcError | None = None


class RpcRequest(msgspec.Struct, Generic[_T], frozen=True):
    """A request, and the decoder of its result."""

    method: str
    params: list[Any]
    decoder: msgspec.json.Decoder[_T]

    def body(self, request_id: int) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": request_id, "method": self.method, "params": self.params}

    def read(self, response: RpcResponse, http_response: httpx.Response) -> _T:
        """Return the result of a response; raise NodeError."""
        if response.error is not None:
            raise _node_error(response.error, http_response)
        try:
            return self.decoder.decode(response.result)
        except (msgspec.DecodeError, RecursionError):
            raise NodeError(f"returned an invalid result of {self.method}", "unavailable") from None


class BlockJson(msgspec.Struct, rename="camel"):
    number: _HexNumber
    hash: _Hash
    parent_hash: _Hash
    timestamp: _HexNumber

    def read(self) -> Block:
        seconds = _number(self.timestamp, _MAX_TIMESTAMP_S)
        return Block(_number(self.number), self.hash.lower(), self.parent_hash.lower(), seconds)


class LogJson(msgspec.Struct, rename="camel", gc=False):
    address: _Address
    topics: list[_Hash]
    data: str
    block_number: _HexNumber
    block_hash: _Hash
    transaction_hash: _Hash
    log_index: _HexNumber
    block_timestamp: _HexNumber | None = None
    removed: bool = False

    def read(self) -> Log:
        return Log(
            self.address.lower(),
            [topic.lower() for topic in self.topics],
            self.data,
            _number(self.block_number),
            self.block_hash.lower(),
            self.transaction_hash.lower(),
            _number(self.log_index, _MAX_LOG_INDEX),
            None if self.block_timestamp is None else _number(self.block_timestamp, _MAX_TIMESTAMP_S),
        )


class LogFilter(msgspec.Struct, frozen=True):
    """Contracts, and the topics that are wanted of each."""

    topics_of: Mapping[str, frozenset[str]]

    @property
    def contracts(self) -> list[str]:
        return sorted(self.topics_of)

    @property
    def topics(self) -> list[str]:
        return sorted(frozenset[str]().union(*self.topics_of.values()))

    def select(self, logs: Iterable[Log]) -> list[Log]:
        """Return the wanted logs, each once, in the order of the chain: nodes may return more, or a log twice."""
        by_position = {
            (log.block_number, log.log_index): log
            for log in logs
            if log.topics and log.topics[0] in self.topics_of.get(log.contract, ())
        }
        return [by_position[position] for position in sorted(by_position)]

    def halves(self) -> "tuple[LogFilter, LogFilter] | None":
        """Return two filters that together match the same logs; None for a single topic of a single contract."""
        contracts, topics = self.contracts, self.topics
        if len(contracts) > 1:
            middle = len(contracts) // 2
            return self.part(contracts[:middle]), self.part(contracts[middle:])
        if len(topics) > 1:
            middle = len(topics) // 2
            (contract,) = contracts
            return LogFilter({contract: frozenset(topics[:middle])}), LogFilter({contract: frozenset(topics[middle:])})
        return None

    def part(self, contracts: Iterable[str]) -> "LogFilter":
        return LogFilter({contract: self.topics_of[contract] for contract in contracts})


_NUMBER: msgspec.json.Decoder[str] = msgspec.json.Decoder(_HexNumber)
_BLOCK: msgspec.json.Decoder[BlockJson | None] = msgspec.json.Decoder(BlockJson | None)
_LOGS = msgspec.json.Decoder(list[LogJson])
_SINGLE = msgspec.json.Decoder(RpcResponse, strict=False)
_SINGLE_OR_BATCH = msgspec.json.Decoder(RpcResponse | list[RpcResponse], strict=False)


class EvmNode:
    def __init__(self, url: str, timeout_s: float = READ_TIMEOUT_S) -> None:
        parts = urlsplit(url)
        self.name = parts.hostname or "node"
        self._url = url
        self._secrets = _secrets(parts)
        is_local = self.name in ("127.0.0.1", "localhost", "::1")
        self._client = httpx.AsyncClient(timeout=timeout_s, trust_env=not is_local)  # no proxy for a local node
        self._requests = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
        self._accepts_batches = True

    async def close(self) -> None:
        await self._client.aclose()

    async def chain_id(self) -> int:
        return _number(await self._call(RpcRequest("eth_chainId", [], _NUMBER)))

    async def block(self, number: int | Literal["latest"]) -> Block | None:
        block = await self._call(_block_request(number if number == "latest" else hex(number)))
        return None if block is None else block.read()

    async def head(self) -> Block:
        block = await self.block("latest")
        if block is None:
            raise NodeError("has no blocks", "unavailable")
        return block

    async def logs_of(self, block_hash: str, log_filter: LogFilter, *, undivided: bool = False) -> list[Log]:
        """Return the logs of one block; raises NodeError if the node lacks it. `undivided`: allow a larger response."""
        max_bytes = MAX_UNDIVIDED_BYTES if undivided else MAX_RESPONSE_BYTES
        logs = await self._call(_logs_request({"blockHash": block_hash}, log_filter), max_bytes)
        return _selected(log_filter, logs)

    async def logs_between(self, first: int, last: int, log_filter: LogFilter) -> tuple[list[Log], Block]:
        """Return the logs of the blocks `first` to `last`, and the last block."""
        # Several nodes may share one address, and one that lacks the last blocks returns no logs of them. A batch is
        # usually answered by one machine, so the block in the same batch shows that this machine has them.
        request = _logs_request({"fromBlock": hex(first), "toBlock": hex(last)}, log_filter)
        logs, block = await self._call_both(request, _block_request(hex(last)))
        if block is None:
            raise NodeError(f"does not have block {last} yet", "unavailable")
        return _selected(log_filter, logs), block.read()

    async def _call(self, request: RpcRequest[_T], max_bytes: int = MAX_RESPONSE_BYTES) -> _T:
        with self._secrets_hidden():
            http_response, content = await self._post(request.body(1), max_bytes)
            # Whatever the status: some providers refuse with 4xx and JSON, some with 200.
            return request.read(_checked(http_response, _decode(_SINGLE, content)), http_response)

    async def _call_both(self, first: RpcRequest[_First], second: RpcRequest[_Second]) -> tuple[_First, _Second]:
        """Send two requests in a batch, or one after the other if the node does not accept batches."""
        if self._accepts_batches:
            with self._secrets_hidden():
                http_response, content = await self._post([first.body(1), second.body(2)], MAX_RESPONSE_BYTES)
                responses = {str(response.id): response for response in _batch_responses(http_response, content)}
                if responses.keys() >= {"1", "2"}:
                    return first.read(responses["1"], http_response), second.read(responses["2"], http_response)
        results = await self._call(first), await self._call(second)
        self._accepts_batches = False  # set only now: each request worked alone, but the batch did not
        return results

    async def _post(self, body: object, max_bytes: int) -> tuple[httpx.Response, bytes]:
        request = self._client.stream(
            "POST", self._url, content=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
        )
        content = bytearray()
        try:
            async with self._requests, asyncio.timeout(RESPONSE_TIMEOUT_S), request as response:
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > max_bytes:
                        raise NodeError(f"returned more than {max_bytes:,} bytes", "too_large")
                return response, bytes(content)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise NodeError(f"no response ({type(error).__name__})", "unavailable") from None

    @contextmanager
    def _secrets_hidden(self) -> Iterator[None]:
        """Remove the secrets of the URL from the text of a NodeError."""
        try:
            yield
        except NodeError as error:
            text = self._secrets.sub(_HIDDEN, str(error))
            printable = "".join(character if character.isprintable() else " " for character in text)
            raise NodeError(printable[:_MAX_ERROR_CHARACTERS], error.kind, error.retry_after_s) from None


def _block_request(number: str) -> RpcRequest[BlockJson | None]:
    return RpcRequest("eth_getBlockByNumber", [number, False], _BLOCK)


def _logs_request(blocks: dict[str, Any], log_filter: LogFilter) -> RpcRequest[list[LogJson]]:
    params = {**blocks, "address": log_filter.contracts, "topics": [log_filter.topics]}
    return RpcRequest("eth_getLogs", [params], _LOGS)


def _selected(log_filter: LogFilter, logs: list[LogJson]) -> list[Log]:
    return log_filter.select(log.read() for log in logs if not log.removed)


def _number(text: str, maximum: int = _MAX_NUMBER) -> int:
    number = int(text, 16)
    if number > maximum:
        raise NodeError(f"returned a number that is out of range: {text}", "unavailable")
    return number


def _decode(decoder: msgspec.json.Decoder[_T], content: bytes) -> _T | None:
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return None


def _batch_responses(http_response: httpx.Response, content: bytes) -> list[RpcResponse]:
    """Return the responses to a batch, or none if the node does not accept batches."""
    responses = _decode(_SINGLE_OR_BATCH, content)
    if isinstance(responses, list):
        return responses
    status = http_response.status_code
    if responses is None and 400 <= status < 500 and status != 429:
        return []
    single = _checked(http_response, responses)
    if single.error is not None and (error := _node_error(single.error, http_response)).kind == "rate_limited":
        raise error
    return []


def _checked(http_response: httpx.Response, response: RpcResponse | None) -> RpcResponse:
    """Return the response, or one made from the HTTP status; raise NodeError if the status is not specific."""
    status = http_response.status_code
    if response is not None and (response.error is not None or status < 300):
        return response
    if status == 429:
        return RpcResponse(error=RpcError(429, "too many requests"))
    if status == 413:
        return RpcResponse(error=RpcError(413, "response too large"))
    reason = f"status {status}" if status >= 300 else "text that is not JSON-RPC"
    raise NodeError(f"returned {reason}", "unavailable", _retry_after_s(http_response))


def _node_error(error: RpcError, http_response: httpx.Response) -> NodeError:
    message = error.message.lower()
    kind: NodeErrorKind = "refused"
    is_rate_limit = http_response.status_code == 429 or error.code in _RATE_LIMIT_CODES
    if is_rate_limit or _RATE_LIMIT.search(message):
        kind = "rate_limited"
    elif error.code == 413 or _TOO_LARGE.search(message):
        kind = "too_large"
    return NodeError(f"returned error {error.code}: {error.message}", kind, _retry_after_s(http_response))


def _retry_after_s(http_response: httpx.Response) -> float | None:
    text = http_response.headers.get("Retry-After", "")
    return min(float(text), _MAX_RETRY_AFTER_S) if text.isdecimal() else None


def _secrets(parts: SplitResult) -> re.Pattern[str]:
    """Return a pattern for the parts of a URL that may be secret."""
    # Each part as it is written and as it is sent: a node may repeat either form in its errors.
    words = [*parts.path.split("/"), parts.path, parts.query, parts.username or "", parts.password or ""]
    words += [value for _, value in parse_qsl(parts.query)]
    words += [b64encode(f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()).decode()]
    secrets = {text for word in words for text in (word, unquote(word)) if len(text) >= _MIN_SECRET_CHARACTERS}
    pattern = "|".join(map(re.escape, sorted(secrets, key=len, reverse=True)))  # so that the longest matches first
    return re.compile(pattern or "(?!)", re.IGNORECASE)
