"""A node that says what a test wants: for what real nodes do rarely, or providers only."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from api.clock import Clock
from workbench.language.abi import event_topic

CONTRACT = "0x" + "c0" * 20
CONTRACTS = (CONTRACT, "0x" + "c1" * 20)
TRANSFER = "Transfer(address,address,uint256)"
APPROVAL = "Approval(address,address,uint256)"

Says = Callable[[str, list[Any]], "Refusal | None"]


class Refusal(msgspec.Struct):
    """What it answers instead: a JSON-RPC error, or (`body`) anything at all."""

    message: str = ""
    code: int = -32000
    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = {}


class ScriptedNode:
    """A chain in memory: in each block `per_block` transfers of the block's number, `seconds` after the one before.

    `says` decides what is refused; `padding`: bytes more than a log takes; `takes_several`: whether it answers two questions at once;
    `behind`: how many requests for logs come to a neighbour that has only the first 10 blocks.
    """

    def __init__(self, blocks: int, per_block: int = 1, chain_id: int = 5, seconds: float = 12) -> None:
        self.head = blocks
        self.per_block = per_block
        self.chain_id = chain_id
        self.seconds = seconds
        self.padding = 0
        self.takes_several = True
        self.behind = 0
        self.largest = 0
        self.began = Clock().now().timestamp() - blocks * seconds
        self.says: Says = lambda _method, _params: None
        self.asked: list[tuple[str, list[Any]]] = []
        self.refused: list[tuple[str, list[Any]]] = []
        self.url = ""

    def answers(self, asked: list[tuple[str, list[Any]]]) -> list[Any]:
        """Answer what comes in one request."""
        ranges = any(method == "eth_getLogs" and "fromBlock" in params[0] for method, params in asked)
        is_behind = ranges and self.behind > 0
        self.behind -= is_behind
        return [self.answer(method, params, 10 if is_behind else None) for method, params in asked]

    def answer(self, method: str, params: list[Any], most: int | None = None) -> Any:
        head = self.head if most is None else most
        self.asked.append((method, params))
        match method:
            case "eth_chainId":
                return hex(self.chain_id)
            case "eth_getBlockByNumber":
                number = self.head if params[0] == "latest" else int(params[0], 16)
                return self._block(number) if number <= head else None
            case _:
                return self._logs(params[0], head)

    def ranges(self) -> list[int]:
        """Return how many blocks each question for logs was about."""
        return [
            int(params[0]["toBlock"], 16) - int(params[0]["fromBlock"], 16) + 1
            for method, params in self.asked
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

    def _logs(self, wanted: dict[str, Any], head: int) -> list[dict[str, Any]]:
        if "blockHash" in wanted:
            numbers = range(int(wanted["blockHash"], 16), int(wanted["blockHash"], 16) + 1)
        else:
            numbers = range(int(wanted["fromBlock"], 16), min(int(wanted["toBlock"], 16), head) + 1)
        found = (self.log(number, index) for number in numbers for index in range(self.per_block))
        return [
            each for each in found if each["address"] in wanted["address"] and each["topics"][0] in wanted["topics"][0]
        ]

    def log(self, number: int, index: int) -> dict[str, Any]:
        """Return one of a block: of one contract after the other, of one event after the other."""
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
        """Say nothing of clients that leave in the middle."""


def _hash(number: int) -> str:
    return f"0x{number:064x}"


@contextmanager
def scripted(node: ScriptedNode) -> Iterator[ScriptedNode]:
    """Serve a node."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            several = isinstance(body, list)
            asked = [(each["method"], each["params"]) for each in (body if several else [body])]
            refusals = [node.says(*each) for each in asked]
            node.refused += [each for each, refusal in zip(asked, refusals, strict=True) if refusal is not None]
            if several and not node.takes_several:
                refusals = [Refusal("Invalid Request", -32600)]
            refusal = next(filter(None, refusals), None)
            if refusal is None:
                answers = [
                    {"jsonrpc": "2.0", "id": 1 + at, "result": each} for at, each in enumerate(node.answers(asked))
                ]
                self._send(200, json.dumps(answers[::-1] if several else answers[0]))
            elif refusal.body is not None:
                self._send(refusal.status, refusal.body.decode(), refusal.headers)
            else:
                error = {"code": refusal.code, "message": refusal.message}
                self._send(refusal.status, json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}), refusal.headers)

        def _send(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
            node.largest = max(node.largest, len(body))
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    node.url = f"http://127.0.0.1:{server.server_port}/v3/secret-of-the-operator"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield node
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
