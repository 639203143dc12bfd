"""A real EVM node, and a token on it. `make chain` installs the node."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from tests.running import free_port

HERE = Path(__file__).parent
OWNER = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266"  # the first account of every anvil
OTHER = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8"  # the second
_INSTALLED = HERE / "node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil"
PROGRAM = str(_INSTALLED) if _INSTALLED.exists() else "anvil"


class Anvil:
    """One node.

    `stop` and `start` keep its chain, `start(fresh=True)` begins another one with the same id.
    """

    def __init__(self, folder: Path, chain_id: int = 31337, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.chain_id = chain_id
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, fresh: bool = False) -> None:
        state = self._folder / f"anvil-{self.port}.json"
        if fresh:
            state.unlink(missing_ok=True)
            # The first block depends only on the second of its creation: within one second it would be the same block.
            time.sleep(1.0)
        command = [PROGRAM, "--silent", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--chain-id", str(self.chain_id), "--state", str(state), *self._options]
        self._process = subprocess.Popen(command, env={"HOME": str(self._folder), "PATH": os.environ["PATH"]})
        self._client = httpx.Client(transport=httpx.HTTPTransport(retries=8), timeout=30, trust_env=False)
        self.ask("eth_chainId")  # waits for the node: the transport retries the connection

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None
        self._client.close()

    def ask(self, method: str, *params: Any) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        body = self._client.post(self.url, json=request).json()
        assert "error" not in body, body
        return body["result"]

    def mine(self, blocks: int = 1, seconds: int = 1) -> None:
        """Mine blocks, `seconds` after one another."""
        self.ask("anvil_mine", hex(blocks), hex(seconds))

    def reorg(self, depth: int, transactions: list[Any] | None = None) -> None:
        self.ask("anvil_reorg", depth, transactions or [])

    def newest_transactions(self, blocks: int) -> list[str]:
        """Return the signed transactions of the newest blocks, in order."""
        head = self.head[0]
        hashes = [
            tx_hash
            for number in range(head - blocks + 1, head + 1)
            for tx_hash in self.ask("eth_getBlockByNumber", hex(number), False)["transactions"]
        ]
        return [self.ask("eth_getRawTransactionByHash", tx_hash) for tx_hash in hashes]

    def receipt(self, tx_hash: str) -> Any:
        """Return the receipt of a transaction, once it is in a block."""
        for _ in range(1_000):
            if (receipt := self.ask("eth_getTransactionReceipt", tx_hash)) is not None:
                return receipt
            time.sleep(0.01)
        raise AssertionError(f"{tx_hash} is in no block")

    @property
    def head(self) -> tuple[int, str]:
        """The number and the hash of the newest block."""
        block = self.ask("eth_getBlockByNumber", "latest", False)
        return int(block["number"], 16), block["hash"]


class Token:
    """A token on a node. Every call is a transaction of the owner, alone in its block if the node mines by itself."""

    def __init__(self, node: Anvil) -> None:
        self._node = node
        code, self._methods = _compiled()
        receipt = self._sent({"data": code})
        self.address: str = receipt["contractAddress"].lower()

    def mint(self, receiver: str, amount: int) -> str:
        return self._call("mint(address,uint256)", _word(int(receiver, 16)) + _word(amount))

    def transfer(self, receiver: str, amount: int) -> str:
        return self._call("transfer(address,uint256)", _word(int(receiver, 16)) + _word(amount))

    def scatter(self, first: int, count: int) -> str:
        """Transfer to `count` wallets, the first with the number `first`."""
        return self._call("scatter(uint256,uint256)", _word(first) + _word(count))

    def scattering(self, first: int, count: int) -> dict[str, str]:
        """Return the transaction that `scatter` sends."""
        return {"to": self.address, "data": self._selector("scatter(uint256,uint256)") + _word(first) + _word(count)}

    def together(self, *transactions: dict[str, str]) -> None:
        """Put transactions into one block."""
        self._node.ask("evm_setAutomine", False)
        for transaction in transactions:
            self._node.ask("eth_sendTransaction", {"from": OWNER, "gas": hex(50_000_000)} | transaction)
        self._node.mine()
        self._node.ask("evm_setAutomine", True)

    def note(self, tag: str, text: str, numbers: list[int]) -> str:
        parts = [_text(tag), _text(text), _word(len(numbers)) + "".join(map(_word, numbers))]
        offsets, at = "", 32 * len(parts)
        for part in parts:
            offsets, at = offsets + _word(at), at + len(part) // 2
        return self._call("note(string,string,int128[])", offsets + "".join(parts))

    def minting(self, receiver: str, amount: int) -> dict[str, str]:
        """Return the transaction that mints, for a block of a reorganization."""
        data = self._methods["mint(address,uint256)"] + _word(int(receiver, 16)) + _word(amount)
        return {"from": OWNER, "to": self.address, "data": data, "gas": hex(1_000_000)}

    def _call(self, method: str, arguments: str) -> str:
        # A fixed price, so that a repeated transaction is the same one.
        price = {"gas": hex(25_000_000), "gasPrice": hex(10**10)}
        transaction = {"from": OWNER, "to": self.address, "data": self._selector(method) + arguments, **price}
        tx_hash = str(self._node.ask("eth_sendTransaction", transaction))
        self._node.receipt(tx_hash)
        return tx_hash

    def _selector(self, method: str) -> str:
        return "0x" + self._methods[method][2:].rjust(8, "0")

    def _sent(self, transaction: dict[str, str]) -> Any:
        tx_hash = self._node.ask("eth_sendTransaction", {"from": OWNER, "gas": hex(5_000_000), **transaction})
        return self._node.receipt(tx_hash)


@contextmanager
def running(folder: Path, chain_id: int = 31337, *options: str) -> Iterator[Anvil]:
    """Run a node with a chain of its own."""
    node = Anvil(folder, chain_id, *options)
    node.start()
    try:
        yield node
    finally:
        node.stop()


@cache
def _compiled() -> tuple[str, dict[str, str]]:
    command = [
        str(Path(sys.executable).with_name("vyper")),
        "-f",
        "bytecode,method_identifiers",
        str(HERE / "token.vy"),
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    methods: dict[str, str] = httpx.Response(200, text=output[1]).json()
    return output[0], methods


def _word(number: int) -> str:
    return f"{number % 2**256:064x}"


def _text(text: str) -> str:
    raw = text.encode().hex()
    return _word(len(raw) // 2) + raw.ljust(-(-len(raw) // 64) * 64, "0")
