"""Addresses of wallets, and a wallet with a known key."""

from eth_hash.auto import keccak
from eth_keys.datatypes import PrivateKey


def evm_wallet(digits: str | int) -> str:
    """Return a wallet that can sign in, which ends with these digits."""
    return f"0x{digits:0>40}"


class Wallet:
    """Signs as `personal_sign` does; `address` is in lower case."""

    def __init__(self, secret: bytes) -> None:
        self._key = PrivateKey(secret)
        self.address = self._key.public_key.to_address()

    def sign(self, text: str) -> str:
        message = text.encode()
        digest = keccak(b"\x19Ethereum Signed Message:\n%d" % len(message) + message)
        raw = self._key.sign_msg_hash(digest).to_bytes()
        return "0x" + (raw[:64] + bytes([raw[64] + 27])).hex()
