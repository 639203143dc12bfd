"""Whose wallets people have: every second person has one whose key we know, so that somebody can sign in with it."""

import hashlib
from functools import cache

from tests.inapp.wallet import Wallet

_EVERY = 2


def has_wallet(person: int) -> bool:
    """Return whether a person can sign in."""
    return person % _EVERY == 0


@cache
def wallet_of(person: int) -> Wallet:
    """Return the wallet of a person who has one; the same for everybody who knows this person."""
    return Wallet(hashlib.sha256(b"torture %d" % person).digest())


def spellings(person: int) -> tuple[str, str]:
    """Return a person's wallet address as two clients write it."""
    if not has_wallet(person):
        return f"0xWallet{person}", f"0xwallet{person}"
    address = wallet_of(person).address
    return address, f"0x{address[2:].upper()}"
