"""Wallets: their addresses, and who signed a text (EIP-191 `personal_sign`, secp256k1). Contracts' signatures are not read."""

import re

from eth_hash.auto import keccak
from eth_keys.datatypes import Signature
from eth_keys.exceptions import BadSignature
from eth_utils.address import to_checksum_address
from eth_utils.exceptions import ValidationError

_SIGNATURE = re.compile(r"0x[0-9a-fA-F]{130}", re.ASCII)
_PARITY = {0: 0, 1: 1, 27: 0, 28: 1}


def checksummed(address: str) -> str:
    """Return the address in EIP-55's mixed case."""
    return to_checksum_address(address)


def signer(text: str, signature: str) -> str | None:
    """Return the address, in lower case, of the wallet that signed the text; None for what is no signature."""
    if not _SIGNATURE.fullmatch(signature):
        return None
    raw = bytes.fromhex(signature[2:])
    parity = _PARITY.get(raw[64])
    if parity is None:
        return None
    message = text.encode()
    digest = keccak(b"\x19Ethereum Signed Message:\n%d" % len(message) + message)
    try:
        key = Signature(raw[:64] + bytes([parity])).recover_public_key_from_msg_hash(digest)
    except (BadSignature, ValidationError, ValueError):
        return None
    return key.to_address()
