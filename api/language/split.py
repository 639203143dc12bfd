"""Which branch a contact takes, and who is held out: always the same, whenever and wherever it is asked, in exact whole numbers.

The hash is SHA-256 of `automation id / node id / contact id` (UTF-8, joined by slashes); its first 32 bits, times 100, shifted
right by 32, are a number from 0 to 99; the branches take their percentages of these numbers in the order they are written. Of a
holdout of so many percent, the contacts with a smaller number are held out; its node id is empty, which no node's is. In SQL:
`('x' || left(encode(sha256(convert_to(a || '/' || n || '/' || c, 'UTF8')), 'hex'), 8))::bit(32)::bigint * 100 >> 32`.
"""

import hashlib
from collections.abc import Iterable

from api.language.action import Branch

HOLDOUT = ""  # in the place of a node id


def share(automation_id: str, node_id: str, contact_id: str) -> int:
    """Return the contact's number at this node, from 0 to 99."""
    digest = hashlib.sha256(f"{automation_id}/{node_id}/{contact_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") * 100 >> 32


def branch_of(branches: Iterable[Branch], number: int) -> str:
    """Return the handle of the branch that a number falls into; the percentages sum to 100."""
    upper = 0
    for branch in branches:
        upper += branch.percent
        if number < upper:
            return branch.handle
    raise ValueError(f"the branches end at {upper} percent")
