"""One EVM node over JSON-RPC: the four questions that following a chain takes.

Its address may carry a secret: that stands in no error and no log, not even where the node says it again. No answer is read further than
a follower has room for.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import httpx
import msgspec

from api.chain.answers import (
    Answer,
    Block,
    BlockJson,
    Log,
    LogJson,
    NodeError,
    Number,
    Question,
    answer_in,
    answers_in,
    number,
    refused,
)
from api.chain.wanted import Wanted

TIMEOUT = 20.0  # seconds without a byte of an answer
LONGEST = 60.0  # seconds for all of it
MOST_AT_ONCE = 8  # requests of one follower on their way
MOST_BYTES = 16 * 2**20  # of an answer, unpacked: some 25,000 logs
MOST_BYTES_WHOLE = 8 * MOST_BYTES  # of one that cannot be had in parts

_MOST_SAID = 200
_SHORTEST_SECRET = 4
_HIDDEN = "…"

_First = TypeVar("_First")
_Second = TypeVar("_Second")
_T = TypeVar("_T")
_NUMBER: msgspec.json.Decoder[str] = msgspec.json.Decoder(Number)
_BLOCK: msgspec.json.Decoder[BlockJson | None] = msgspec.json.Decoder(BlockJson | None)
_LOGS = msgspec.json.Decoder(list[LogJson])


class Node:
    """A node at an http(s) address."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        parts = urlsplit(url)
        self.name = parts.hostname or "node"
        self._url = url
        self._secrets = _secrets(parts)
        local = self.name in ("127.0.0.1", "localhost", "::1")
        self._client = httpx.AsyncClient(timeout=timeout, trust_env=not local)
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self._takes_several = True

    async def close(self) -> None:
        """End the connections."""
        await self._client.aclose()

    async def chain_id(self) -> int:
        """Return which chain it is a node of."""
        return number(await self._ask(Question("eth_chainId", [], _NUMBER)))

    async def block(self, number: int | Literal["latest"]) -> Block | None:
        """Return the head of a block, None when the node has none of that number."""
        found = await self._ask(_block(number if number == "latest" else hex(number)))
        return None if found is None else found.read()

    async def head(self) -> Block:
        """Return the newest block."""
        found = await self.block("latest")
        if found is None:
            raise NodeError("has no blocks", "away")
        return found

    async def logs_of(self, block_hash: str, wanted: Wanted, *, whole: bool = False) -> list[Log]:
        """Return the logs of one block; a node that does not have it refuses, instead of having none. `whole`: however many there are."""
        question = _logs({"blockHash": block_hash}, wanted)
        return _read(wanted, await self._ask(question, MOST_BYTES_WHOLE if whole else MOST_BYTES))

    async def logs_between(self, first: int, last: int, wanted: Wanted) -> tuple[list[Log], Block]:
        """Return the logs of blocks `first` to `last` and the last block, from one place where the node takes two questions at once.

        Behind one address there may be nodes that have not seen these blocks yet: they have no logs of them.
        """
        question = _logs({"fromBlock": hex(first), "toBlock": hex(last)}, wanted)
        found, block = await self._together(question, _block(hex(last)))
        if block is None:
            raise NodeError(f"does not have block {last} yet", "away")
        return _read(wanted, found), block.read()

    async def _together(self, first: Question[_First], second: Question[_Second]) -> tuple[_First, _Second]:
        """Ask two questions at once, or one after the other when the node takes one at a time only."""
        if self._takes_several:
            with self._discreet():
                response, content = await self._send([first.body(1), second.body(2)], MOST_BYTES)
                said = {str(each.id): each for each in answers_in(response, content) or ()}
                if said.keys() >= {"1", "2"}:
                    return first.read(_result(said["1"], response)), second.read(_result(said["2"], response))
        found = await self._ask(first), await self._ask(second)
        self._takes_several = False  # it has answered each, and would not both
        return found

    async def _ask(self, question: Question[_T], most: int = MOST_BYTES) -> _T:
        with self._discreet():
            response, content = await self._send(question.body(1), most)
            return question.read(_result(answer_in(response, content), response))

    async def _send(self, body: object, most: int) -> tuple[httpx.Response, bytes]:
        """Send a body; return the response and its content, of at most so many bytes."""
        content, headers = msgspec.json.encode(body), {"Content-Type": "application/json"}
        asking = self._client.stream("POST", self._url, content=content, headers=headers)
        try:
            async with self._turns, asyncio.timeout(LONGEST), asking as response:
                return response, await _content(response, most)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise NodeError(f"no answer ({type(error).__name__})", "away") from None

    @contextmanager
    def _discreet(self) -> Iterator[None]:
        """Let no error say what its address should not be known by."""
        try:
            yield
        except NodeError as error:
            said = self._secrets.sub(_HIDDEN, str(error))
            text = "".join(each if each.isprintable() else " " for each in said)[:_MOST_SAID]
            raise NodeError(text, error.kind, error.after) from None


async def _content(response: httpx.Response, most: int) -> bytes:
    content = bytearray()
    async for part in response.aiter_bytes():
        content += part
        if len(content) > most:
            raise NodeError(f"answers with more than {most:,} bytes", "large")
    return bytes(content)


def _block(where: str) -> Question[BlockJson | None]:
    return Question("eth_getBlockByNumber", [where, False], _BLOCK)


def _logs(where: dict[str, Any], wanted: Wanted) -> Question[list[LogJson]]:
    return Question("eth_getLogs", [{**where, "address": wanted.contracts, "topics": [wanted.topics]}], _LOGS)


def _read(wanted: Wanted, found: list[LogJson]) -> list[Log]:
    return wanted.only(each.read() for each in found if not each.removed)


def _result(answer: Answer, response: httpx.Response) -> msgspec.Raw:
    if answer.error is not None:
        raise refused(answer.error, response)
    return answer.result


def _secrets(parts: SplitResult) -> re.Pattern[str]:
    """Return what finds the parts of an address that only its owner should know, as they are written and as they are sent."""
    words = [*parts.path.split("/"), parts.path, parts.query, parts.username or "", parts.password or ""]
    words += [value for _, value in parse_qsl(parts.query)]
    words += [b64encode(f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()).decode()]
    known = {each for word in words for each in (word, unquote(word)) if len(each) >= _SHORTEST_SECRET}
    return re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True))) or "(?!)", re.IGNORECASE)
