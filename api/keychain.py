"""The secrets of an installation, oldest first, as one text: what WORKBENCH_SECRET holds.

    old                        one secret, which all is made with
    old,next:new               rotation, first part: indexes are written with both
    former:old,new             second part: all is made with the new one, and what the old one made is still read
    retired:9f…,new            over: of the old one there is left what indexes are layered on, which opens and proves nothing

`retired:` holds no secret but a key derived from it. Each secret is a generation, which whatever it makes carries as a number.
"""

import hmac
from functools import cache
from typing import Literal

import msgspec

MOST = 15  # generations: the number is one hexadecimal digit of an index
_ROLES = ("former", "next", "retired")

Part = Literal["settled", "next", "former"]


class ChainError(Exception):
    """The text is no chain of secrets."""


class Generation(msgspec.Struct, frozen=True):
    """A secret: its number from 1, the root of its indexes, and the root of everything else (None: retired)."""

    number: int
    indexes: bytes
    root: bytes | None


class Chain(msgspec.Struct, frozen=True):
    """Generations, oldest first; `current` makes everything, `other` is the one before or after it while a rotation lasts."""

    generations: tuple[Generation, ...]
    current: Generation
    other: Generation | None

    @property
    def part(self) -> Part:
        """How far a rotation has come."""
        if self.other is None:
            return "settled"
        return "next" if self.other.number > self.current.number else "former"

    def of(self, number: int) -> Generation | None:
        """Return a generation by its number."""
        return self.generations[number - 1] if 0 < number <= len(self.generations) else None


@cache
def read_chain(text: str) -> Chain:
    """Return the chain in a text; raise ChainError. A text without roles is one secret, whatever it holds."""
    links = _links(text)
    generations = tuple(_generation(number, *link) for number, link in enumerate(links, 1))
    roles = [role for role, _ in links]
    at = roles.index("")
    if len(links) > MOST:
        raise ChainError(f"there are more than {MOST} secrets")
    if roles not in ([*["retired"] * at, ""], [*["retired"] * at, "", "next"], [*["retired"] * (at - 1), "former", ""]):
        raise ChainError(
            "the secrets must be: retired ones, a former one, the one in use, or: retired ones, the one in use, the next"
        )
    others = [each for role, each in zip(roles, generations, strict=True) if role in ("next", "former")]
    return Chain(generations, generations[at], others[0] if others else None)


def advanced(text: str, fresh: str) -> str:
    """Return the text for what comes next; a rotation begins with the secret `fresh`."""
    *before, last = [":".join(filter(None, link)) for link in _links(text)]
    match read_chain(text).part:
        case "settled":
            return ",".join([*before, last, f"next:{fresh}"])
        case "next":
            *before, old = before
            return ",".join([*before, f"former:{old}", last.removeprefix("next:")])
        case "former":
            *before, old = before
            return ",".join([*before, f"retired:{_generation(1, *_link(old)).indexes.hex()}", last])


def expand(root: bytes, purpose: bytes) -> bytes:
    """Return the 32 bytes derived for a purpose: HKDF-Expand (RFC 5869), one block."""
    return hmac.digest(root, purpose + b"\x01", "sha256")


def _links(text: str) -> list[tuple[str, str]]:
    links = [_link(each.strip()) for each in text.split(",")]
    if not any(role for role, _ in links):
        return [("", text)]
    if sum(not role for role, _ in links) != 1 or not all(secret for _, secret in links):
        raise ChainError("exactly one of the secrets is the one in use, without a word before it")
    return links


def _link(text: str) -> tuple[str, str]:
    role, colon, secret = text.partition(":")
    return (role, secret) if colon and role in _ROLES else ("", text)


def _generation(number: int, role: str, secret: str) -> Generation:
    if role == "retired":
        try:
            indexes = bytes.fromhex(secret)
        except ValueError:
            indexes = b""
        if len(indexes) != 32:
            raise ChainError("what follows `retired:` is not what `workbench secret rotate` has written")
        return Generation(number, indexes, None)
    root = hmac.digest(b"event-workbench/1", secret.encode(), "sha256")
    return Generation(number, expand(root, b"indexes"), root)
