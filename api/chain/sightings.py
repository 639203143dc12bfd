"""Logs as organizations have them: who follows each, its parameters, and who it is about."""

import logging
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from api.chain.answers import Log
from api.chain.decode import UndecodableError
from api.chain.watching import Watch, Watched
from api.ingest.arrival import Arrival
from api.ingest.identifiers import People
from api.keyring import Keyring
from api.language.abi import Declared
from api.language.codec import Json, decode
from api.language.event import Event, Identifiers
from api.language.onchain import PLACE, payload_of
from api.store.chain import StoredLog

_log = logging.getLogger("workbench.chain")


Place = tuple[int, str, int]
"""Whose log it is, and where: organization, transaction, index."""


class Sighting(msgspec.Struct, gc=False):
    """A log, seen by an organization. `id`: its row, and the event of the entries it starts; `watches`: those of the organization.

    `log` None: the row was stored before, and its blocks of confirmation may have come now; `digest`: of the log's content, in hex.
    `seconds`: when its block was made, since the epoch. `faces`: who arrives with it, by the parameter that says so.
    """

    org_id: int
    id: str
    contract: str
    event: str
    signature: str
    tx_hash: str
    log_index: int
    block_number: int
    args: dict[str, Json]
    watches: tuple[Watch, ...]
    seconds: int = 0
    log: Log | None = None
    digest: str = ""
    faces: dict[str, Arrival] = {}

    @property
    def contact_id(self) -> str | None:
        """The contact it is about, the first that is known."""
        return next((each.contact_id for each in self.faces.values() if each.contact_id), None)

    @property
    def place(self) -> Place:
        """Where it is, and for whom."""
        return self.org_id, self.tx_hash, self.log_index

    @property
    def name(self) -> str:
        """What a wait for it is called."""
        return f"{self.contract}:{self.event.lower()}"

    def payload(self, chain_id: int, declared: Declared) -> dict[str, Json]:
        """Return what filters see of it who name its parameters like this."""
        where = (chain_id, self.contract, self.tx_hash, self.log_index, self.block_number)
        return payload_of(dict(zip(PLACE, where, strict=True)), self.args, declared)


def sighted(watched: Watched, logs: Iterable[Log]) -> list[Sighting]:
    """Return what organizations see in logs; those nobody follows are left out. Ids are still to be given."""
    found: list[Sighting] = []
    for log in logs:
        orgs = watched.by_topic.get((log.contract, log.topics[0]), {}) if log.topics else {}
        digest = _digest(log) if orgs else ""
        for org_id, watches in orgs.items():
            event = (log.contract, watches[0].declared.name, watches[0].declared.canonical)
            where = (log.tx_hash, log.log_index, log.block_number)
            args, seconds = _args(log, watches), log.seconds or 0
            found.append(Sighting(org_id, "", *event, *where, args, watches, seconds, log, digest))
    return found


def remembered(watched: Watched, rows: Iterable[StoredLog]) -> list[Sighting]:
    """Return stored logs with the automations that follow them now."""
    found: list[Sighting] = []
    for row in rows:
        watches = watched.by_spot.get((row.org_id, (row.contract, row.signature)), ())
        if watches:
            where = (row.tx_hash, row.log_index, row.block_number)
            args, what = decode(row.args), (row.contract, row.event, row.signature)
            found.append(Sighting(row.org_id, row.id, *what, *where, args, watches, row.seconds))
    return found


def _digest(log: Log) -> str:
    """Return 128 bits in hex that stand for all that a log says, wherever in the chain it says it."""
    said = " ".join((log.contract, *log.topics, log.data.lower()))
    return blake2b(said.encode(), digest_size=16).hexdigest()


def _args(log: Log, watches: tuple[Watch, ...]) -> dict[str, Json]:
    """Return the parameters by all the names that those who follow the event have for them; nothing when it is not what they say."""
    args: dict[str, Any] = {}
    for declared, decoder in {each.declared: each.decoder for each in reversed(watches)}.items():
        try:
            args |= decoder.args(log.topics, log.data)
        except (UndecodableError, RecursionError) as error:
            extra = {"contract": log.contract, "tx": log.tx_hash, "log_index": log.log_index, "event": declared.name}
            _log.warning("log_undecodable", extra={**extra, "reason": str(error)})
    return args


class Faces:
    """Who logs are about: wallets as ingest knows them, so that both find the same contacts."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._people = People()

    def of(self, sighting: Sighting) -> dict[str, Arrival]:
        """Return who arrives with a log, by the parameter that says it: not found among contacts yet."""
        found: dict[str, Arrival] = {}
        for name in dict.fromkeys(each.wallet_arg for each in sighting.watches):
            wallet = None if name is None else sighting.args.get(name)
            if isinstance(name, str) and isinstance(wallet, str):
                found[name] = self._arrival(sighting, wallet)
        return found

    def _arrival(self, sighting: Sighting, wallet: str) -> Arrival:
        who = Identifiers(wallet, None, None, wallet)
        keys, _ = self._people.indexed(sighting.org_id, self._keyring.of(sighting.org_id), who)
        event = Event(sighting.event, who, on_chain=True)
        return Arrival(sighting.org_id, event, sighting.id, "", "", "", 0, keys, (), "", dry=False)
