"""A node with scripted responses, for behaviour that nodes show rarely, or that only those of providers show."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

import msgspec

from api.clock import Clock
from tests.http_server import Handler, serving
from workbench.language.abi import event_topic

CONTRACT = "0x" + "c0" * 20
CONTRACTS = (CONTRACT, "0x" + "c1" * 20)
TRANSFER = "Transfer(address,address,uint256)"
APPROVAL = "Approval(address,address,uint256)"

Refuse = Callable[[str, list[Any]], "Refusal | None"]


class Refusal(msgspec.Struct):
    """A refusal: a JSON-RPC error, or any `body`."""

    message: str = ""
    code: int = -32000
    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = {}


class ScriptedNode:
    """A chain in memory: each block has `per_block` transfers of the block's number, `seconds` after the previous
    block.

    `refuse` decides which requests are refused; `padding`: extra bytes of a log; `accepts_batches`: whether it answers
    batches; `behind`: how many requests for ranges of logs reach another node that has only the first 10 blocks.
    """

    def __init__(self, blocks: int, per_block: int = 1, chain_id: int = 5, seconds: float = 12) -> None:
        self.head = blocks
        self.per_block = per_block
        self.chain_id = chain_id
        self.seconds = seconds
        self.padding = 0
        self.accepts_batches = True
        self.behind = 0
        self.largest = 0
        self.began = Clock().now().timestamp() - blocks * seconds
        self.refuse: Refuse = lambda _method, _params: None
        self.requests: list[tuple[str, list[Any]]] = []
        self.refused: list[tuple[str, list[Any]]] = []
        self.url = ""

    def answers(self, requests: list[tuple[str, list[Any]]]) -> list[Any]:
        """Return the results of one HTTP request."""
        ranges = any(method == "eth_getLogs" and "fromBlock" in params[0] for method, params in requests)
        is_behind = ranges and self.behind > 0
        self.behind -= is_behind
        return [self.answer(method, params, 10 if is_behind else None) for method, params in requests]

    def answer(self, method: str, params: list[Any], head: int | None = None) -> Any:
        head = self.head if head is None else head
        self.requests.append((method, params))
        match method:
            case "eth_chainId":
                return hex(self.chain_id)
            case "eth_getBlockByNumber":
                number = self.head if params[0] == "latest" else int(params[0], 16)
                return self._block(number) if number <= head else None
            case _:
                return self._logs(params[0], head)

    def ranges(self) -> list[int]:
        """Return the number of blocks of each request for a range of logs."""
        return [
            int(params[0]["toBlock"], 16) - int(params[0]["fromBlock"], 16) + 1
            for method, params in self.requests
            if method == "eth_getLogs" and "fromBlock" in params[0]
        ]

    def _block(self, number: int) -> dict[str, str]:
        parent = _hash(number - 1) if number else "0x" + "0" * 64
        return {
            "number": hex(number),
            "hash": _hash(number),
            "parentHash": parent,
            "timestamp": hex(int(self.began + number * self.seconds)),
        }

    def _logs(self, log_filter: dict[str, Any], head: int) -> list[dict[str, Any]]:
        if "blockHash" in log_filter:
            numbers = range(int(log_filter["blockHash"], 16), int(log_filter["blockHash"], 16) + 1)
        else:
            numbers = range(int(log_filter["fromBlock"], 16), min(int(log_filter["toBlock"], 16), head) + 1)
        addresses, (topics,) = log_filter["address"], log_filter["topics"]
        logs = (self.log(number, index) for number in numbers for index in range(self.per_block))
        return [log for log in logs if log["address"] in addresses and log["topics"][0] in topics]

    def log(self, number: int, index: int) -> dict[str, Any]:
        """Return one log of a block; contracts and events alternate."""
        return {
            "address": CONTRACTS[index % 2],
            "topics": [event_topic((TRANSFER, APPROVAL)[index // 2 % 2]), "0x" + "0" * 64, f"0x{number:064x}"],
            "data": f"0x{number:064x}" + "00" * self.padding,
            "blockNumber": hex(number),
            "blockHash": _hash(number),
            "transactionHash": f"0x{number:060x}{index:04x}",
            "logIndex": hex(index),
            "removed": False,
        }


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Ignore clients that disconnect."""


def _hash(number: int) -> str:
    return f"0x{number:064x}"


@contextmanager
def scripted(node: ScriptedNode) -> Iterator[ScriptedNode]:
    """Serve a node."""

    class Node(Handler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.read_body())
            is_batch = isinstance(body, list)
            requests = [(request["method"], request["params"]) for request in (body if is_batch else [body])]
            refusals = [node.refuse(*request) for request in requests]
            node.refused += [
                request for request, refusal in zip(requests, refusals, strict=True) if refusal is not None
            ]
            if is_batch and not node.accepts_batches:
                refusals = [Refusal("Invalid Request", -32600)]
            refusal = next(filter(None, refusals), None)
            if refusal is None:
                answers = [
                    {"jsonrpc": "2.0", "id": 1 + position, "result": result}
                    for position, result in enumerate(node.answers(requests))
                ]
                self._send(200, json.dumps(answers[::-1] if is_batch else answers[0]))
            elif refusal.body is not None:
                self._send(refusal.status, refusal.body.decode(), refusal.headers)
            else:
                error = {"code": refusal.code, "message": refusal.message}
                self._send(refusal.status, json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}), refusal.headers)

        def _send(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
            node.largest = max(node.largest, len(body))
            self.answer(status, body.encode(), headers or {})

    with serving(_Server(("127.0.0.1", 0), Node)) as server:
        node.url = f"http://127.0.0.1:{server.server_port}/v3/secret-of-the-operator"
        yield node
