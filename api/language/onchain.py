"""Logs of a chain as what starts an automation: contract §6, design §3 «On-chain».

A log is an event whose payload is its decoded parameters and where it happened; the wallet in one parameter is who it is about.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from api.language.abi import Declared, Word, read_signature, written
from api.language.arguments import as_decoded, unfit_argument
from api.language.codec import Json, encode, unfit
from api.language.event import Event, Identifiers
from api.language.filter import Filter
from api.language.keccak import unfit_address
from api.language.problem import Problem, Problems

TYPE = "onchain_event"
MOST_CONFIRMATIONS = 1_000
PLACE = ("chainId", "contract", "txHash", "logIndex", "blockNumber")
NOBODY = "0x" + "0" * 40
"""The zero address, from which tokens are minted and to which they are burned."""
MOST_CHAIN = 2**53 - 1  # the largest number that every reader of JSON keeps exact


class OnChain(msgspec.Struct, frozen=True):
    """Which logs are meant, and whose they are.

    `contract` in lower case. `wallet_arg`: the parameter whose wallet the entry is about. `confirmations`: how many blocks have
    to stand on top of the log's own. `creates_contacts`: whether a wallet that nobody knows becomes a contact.
    """

    chain_id: int
    contract: str
    declared: Declared
    wallet_arg: str
    confirmations: int = 0
    creates_contacts: bool = False

    @property
    def key(self) -> str:
        """Which logs are meant, as one text."""
        return f"{self.chain_id}:{self.contract}:{self.declared.canonical}"

    def means(self, chain_id: int, contract: str, signature: str) -> bool:
        """Return whether logs of this contract, by the canonical signature of the event, are meant."""
        return (self.chain_id, self.contract, self.declared.canonical) == (chain_id, contract, signature)


def payload_of(
    place: Mapping[str, Json], args: Mapping[str, Json], declared: Declared | None = None
) -> dict[str, Json]:
    """Return the payload of a log: where it happened (`PLACE`), and over that its parameters.

    `declared`: as who names them; a log that several follow has its parameters by all their names. None: all of these.
    """
    own = (
        args if declared is None else {each.name: args[each.name] for each in declared.parameters if each.name in args}
    )
    return {**place, **own}


def wallet_in(source: OnChain, args: Mapping[str, Json]) -> str | None:
    """Return the wallet that a log is about, None where the log could not be decoded, or names nobody."""
    wallet = args.get(source.wallet_arg)
    return wallet if isinstance(wallet, str) and wallet != NOBODY else None


def read_source(spec: Mapping[str, Any], field: str, problems: list[Problem]) -> OnChain | None:
    """Return what the trigger spec of an on-chain automation says, adding what is wrong to `problems`."""
    before = len(problems)
    chain_id = _number(spec, "chainId", field, (1, MOST_CHAIN), problems)
    if (reason := unfit_address(contract := spec.get("contract"))) is not None:
        problems.append(Problem(f"{field}.contract", reason))
    declared = _declared(spec.get("signature"), f"{field}.signature", problems)
    wallet_arg = spec.get("walletArg")
    if declared is not None and (said := _unfit_wallet(declared, wallet_arg)) is not None:
        problems.append(Problem(f"{field}.walletArg", said))
    confirmations = _number(spec, "confirmations", field, (0, MOST_CONFIRMATIONS), problems, 0)
    creates = spec.get("createContacts", False)
    if not isinstance(creates, bool):
        problems.append(Problem(f"{field}.createContacts", "must be true or false"))
    if declared is None or len(problems) > before:
        return None
    return OnChain(chain_id, str(contract).lower(), declared, str(wallet_arg), confirmations, creates)


def is_sample(event: Any) -> bool:
    """Return whether a described event is a log: `{"type": "onchain_event", "args": {…}}`."""
    return isinstance(event, Mapping) and event.get("type") == TYPE


def read_sample(value: Mapping[str, Any], source: OnChain, field: str = "event") -> Event | Problems:
    """Return the log in a sample, or what is wrong with it. `args` by name; `txHash`, `logIndex`, `blockNumber` if they matter.

    Numbers and addresses may be written as people do: they become what a real log has. A log that was kept (it says its `signature`) may
    have parameters by the names of others who follow it, which are left out.
    """
    given = value.get("args")
    if not isinstance(given, Mapping):
        return (Problem(f"{field}.args", f"must be an object with the parameters of {source.declared.full}"),)
    if reason := unfit(dict(value)):
        return (Problem(field, reason),)
    known = {each.name: each for each in source.declared.parameters}
    if value.get("signature") == source.declared.canonical:
        given = {name: each for name, each in given.items() if name in known}
    args = {name: as_decoded(known[name].type, given[name]) for name in given if name in known}
    problems = list(_unfit_arguments(args, given, source, f"{field}.args"))
    wallet = args.get(source.wallet_arg)
    if problems or not isinstance(wallet, str):
        return tuple(problems)
    place: dict[str, Json] = {name: value.get(name, default) for name, default in _NOWHERE.items()}
    place |= {"chainId": source.chain_id, "contract": source.contract}
    payload = encode(payload_of(place, args))
    return Event(source.declared.name, Identifiers(wallet, None, None, wallet), payload=payload, on_chain=True)


def _unfit_arguments(
    args: Mapping[str, Json], given: Mapping[str, Json], source: OnChain, field: str
) -> Iterator[Problem]:
    """Yield what is wrong with the parameters of a sample: `given` as they were written, `args` as a log would have them."""
    said = f"is no parameter of {source.declared.full}"
    yield from (Problem(f"{field}.{name}", said) for name in given if name not in args)
    for each in source.declared.parameters:
        if each.name == source.wallet_arg:
            reason = unfit_address(given.get(each.name)) or (_NO_WALLET if args[each.name] == NOBODY else None)
        else:
            reason = unfit_argument(each, args[each.name]) if each.name in args else None
        if reason is not None:
            yield Problem(f"{field}.{each.name}", reason)


_NO_WALLET = "is the zero address, which is nobody: what is minted from it or burned to it starts nothing"
_NOWHERE: Mapping[str, Json] = {"txHash": "0x" + "0" * 64, "logIndex": 0, "blockNumber": 0}


def remarks(source: OnChain, filters: tuple[Filter, ...]) -> Iterator[str]:
    """Yield what the author should know: that everybody becomes a contact, and which filters on parameters can never pass."""
    if source.creates_contacts and not filters:
        yield f"every wallet in {source.wallet_arg} becomes a contact, as many an hour as the operator allows; a filter lets in fewer"
    for each in filters:
        parameter = source.declared.parameter(each.path)
        if parameter is not None and each.operator in ("eq", "neq", "in"):
            values = each.value if each.operator == "in" and isinstance(each.value, list) else [each.value]
            said = (unfit_argument(parameter, value) for value in values)
            yield from (f"{each.path} {reason}" for reason in said if reason is not None)
    if any(each.operator == "eq" and each.path == source.wallet_arg and each.value == NOBODY for each in filters):
        yield f"{source.wallet_arg} {_NO_WALLET}"


def _declared(value: Any, field: str, problems: list[Problem]) -> Declared | None:
    found = read_signature(value) if isinstance(value, str) else "must be a text like Transfer(address,address,uint256)"
    if isinstance(found, str):
        problems.append(Problem(field, found))
        return None
    return found


def _unfit_wallet(declared: Declared, name: Any) -> str | None:
    wallets = [each.name for each in declared.parameters if each.type == Word("address", 20)]
    listed = f"its addresses are {', '.join(wallets)}" if wallets else "it has no address"
    if not isinstance(name, str) or not name:
        return f"must name the parameter with the wallet; {listed}"
    parameter = declared.parameter(name)
    if parameter is None:
        return f"{declared.name} has no parameter {name!r}; {listed}"
    return None if name in wallets else f"{name} is {written(parameter.type)}, not an address; {listed}"


def _number(
    spec: Mapping[str, Any],
    name: str,
    field: str,
    bounds: tuple[int, int],
    problems: list[Problem],
    default: int | None = None,
) -> int:
    value, (least, most) = spec.get(name, default), bounds
    if type(value) is not int or not least <= value <= most:
        problems.append(Problem(f"{field}.{name}", f"must be a whole number from {least:,} to {most:,}"))
        return least
    return value
