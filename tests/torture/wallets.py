"""The wallets of people. Every second person has a wallet whose private key we have, so that it can sign in; every
fourth has a wallet of another chain, which can never sign in.
"""

import hashlib
from functools import cache

from tests.inapp.wallet import Wallet, evm_wallet

_EVERY = 2
_FOREIGN = 3  # of four


def has_wallet(person: int) -> bool:
    """Return whether a person can sign in."""
    return person % _EVERY == 0


@cache
def wallet_of(person: int) -> Wallet:
    """Return the wallet of a person with `has_wallet`; always the same for the same person."""
    return Wallet(hashlib.sha256(b"torture %d" % person).digest())


def spellings(person: int) -> tuple[str, str]:
    """Return a person's wallet address in one of two spellings."""
    if person % 4 == _FOREIGN:
        return f"BC1Qperson{person}", f"bc1qperson{person}"
    if not has_wallet(person):
        return evm_wallet(f"A11E7{person}"), evm_wallet(f"a11e7{person}")
    address = wallet_of(person).address
    return address, f"0x{address[2:].upper()}"
