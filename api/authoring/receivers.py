"""Who may receive a test: contacts of the organization, the endpoints of its published automations, and whom the operator names.

Whoever writes automations may send tests without publishing anything. So they go to nobody whom the organization does not know already.
"""

from urllib.parse import urlsplit

import msgspec

from api.keyring import OrgKeys
from api.language.contact import Contact
from api.language.event import Identifiers
from api.language.problem import Problem, Problems
from api.language.retry import Channel
from api.store import delivery
from api.store.contacts import stored_contact
from api.store.database import Transaction
from api.store.test_sends import published_urls

_ASK = "; the operator can allow it (WORKBENCH_TEST_RECEIVERS)"


class To(msgspec.Struct, frozen=True):
    """Where tests go, one address for each channel that is to be tried."""

    email: str | None = None
    wallet: str | None = None
    url: str | None = None


class Receivers(msgspec.Struct, frozen=True):
    """Whom the operator names: addresses, wallets, and domains, for the addresses and endpoints in them. `*` is everybody.

    `emails_stay`: there is no mail server, so no email reaches anybody.
    """

    named: frozenset[str] = frozenset()
    emails_stay: bool = False

    def include(self, *names: str) -> bool:
        """Return whether one of these names was given."""
        return not self.named.isdisjoint({"*", *names})


async def unwilling(
    tx: Transaction, org_id: int, keys: OrgKeys, receivers: Receivers, to: To
) -> frozenset[Channel] | Problems:
    """Return the channels whose receiver wants no messages; or what stands against the receivers."""
    owners = {
        "to.email": await _owner(tx, org_id, keys, Identifiers(email=to.email)),
        "to.walletAddress": await _owner(tx, org_id, keys, Identifiers(wallet=to.wallet)),
    }
    problems = [
        *_stranger("to.email", to.email, owners, receivers.emails_stay or receivers.include(*_names(to.email))),
        *_stranger("to.walletAddress", to.wallet, owners, receivers.include(to.wallet or "")),
        *await _unknown_endpoint(tx, org_id, receivers, to.url),
    ]
    if problems:
        return tuple(problems)
    opted_out = {"inapp"} & _channels(owners["to.walletAddress"]) | {"email"} & _channels(owners["to.email"])
    if to.email is not None:
        digest = keys.digest("email", to.email)
        opted_out |= {"email"} if await delivery.suppressed(tx, "email", {(org_id, digest)}) else set()
    return frozenset(msgspec.convert(opted_out, set[Channel]))


def digests(keys: OrgKeys, to: To) -> dict[str, str]:
    """Return the blind index of each receiver: who has the address can find it, and nobody reads it."""
    known = {"email": to.email, "walletAddress": to.wallet, "url": to.url}
    kinds = {"email": "email", "walletAddress": "wallet", "url": "url"}
    return {name: keys.digest(kinds[name], value) for name, value in known.items() if value is not None}


def _names(email: str | None) -> tuple[str, ...]:
    return () if email is None else (email, email.rpartition("@")[2])


async def _owner(tx: Transaction, org_id: int, keys: OrgKeys, who: Identifiers) -> Contact | None:
    return None if who == Identifiers() else await stored_contact(tx, org_id, keys, who)


def _channels(contact: Contact | None) -> set[str]:
    return set() if contact is None else set(contact.opted_out)


def _stranger(field: str, address: str | None, owners: dict[str, Contact | None], named: bool) -> Problems:
    if address is None or named or owners[field] is not None:
        return ()
    return (Problem(field, f"is no contact's of yours{_ASK}"),)


async def _unknown_endpoint(tx: Transaction, org_id: int, receivers: Receivers, url: str | None) -> Problems:
    if url is None or receivers.include(host := _host(url)) or host in map(_host, await published_urls(tx, org_id)):
        return ()
    return (Problem("to.url", f"no published automation sends to this host{_ASK}"),)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
