"""Keccak-256, as chains hash with it: topics of events, and the mixed case of addresses (EIP-55)."""

import re
from collections.abc import Callable
from functools import cache

ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)


def topic(canonical: str) -> str:
    """Return the topic that the logs of an event carry, such as that of `Transfer(address,address,uint256)`."""
    return "0x" + _keccak()(canonical.encode()).hex()


def checksummed(address: str) -> str:
    """Return an address in EIP-55's mixed case."""
    digits = address[2:].lower()
    marks = _keccak()(digits.encode()).hex()
    return "0x" + "".join(digit.upper() if mark >= "8" else digit for digit, mark in zip(digits, marks, strict=False))


def unfit_address(text: object) -> str | None:
    """Say why a value is no address of a contract or wallet, or return None. Mixed case has to be EIP-55's."""
    if not isinstance(text, str) or not ADDRESS.fullmatch(text):
        return "must be an address: 0x and 40 hexadecimal digits"
    digits = text[2:]
    if digits not in (digits.lower(), digits.upper()) and checksummed(text) != text:
        return "has a checksum that does not fit: a digit is wrong, or its case; all in lower case there is no checksum"
    return None


@cache
def _keccak() -> Callable[[bytes], bytes]:
    from eth_hash.auto import keccak  # takes 0.07 s to load, and most automations start from no chain

    return keccak
