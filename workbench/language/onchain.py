"""Contract logs as triggers (docs/contract.md 6).

A log becomes an event: its payload is its decoded parameters and its location on the chain, its contact the wallet in
one parameter.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from workbench.language.abi import (
    AbiEvent,
    AbiWord,
    address_problem,
    argument_problem,
    canonical_type,
    normalise_argument,
    read_signature,
)
from workbench.language.codec import Json, encode, storage_problem
from workbench.language.event import Event, Identifiers
from workbench.language.filter import Filter
from workbench.language.problem import Problem, Problems

ONCHAIN_EVENT = "onchain_event"
MOST_CONFIRMATIONS = 1_000
LOCATION_FIELDS = ("chainId", "contract", "txHash", "logIndex", "blockNumber")
ZERO_ADDRESS = "0x" + "0" * 40
"""The zero address, from which tokens are minted and to which they are burned."""
MAX_CHAIN_ID = 2**53 - 1  # the largest number that every reader of JSON keeps exact


class LogSource(msgspec.Struct, frozen=True):
    """The logs of one contract event, and the parameter with the contact's wallet.

    `contract` in lower case. `wallet_arg`: the parameter whose wallet the entry is about. `confirmations`: how many
    blocks have to stand on top of the log's own. `creates_contacts`: whether an unknown wallet becomes a contact.
    """

    chain_id: int
    contract: str
    abi_event: AbiEvent
    wallet_arg: str
    confirmations: int = 0
    creates_contacts: bool = False

    @property
    def key(self) -> str:
        """Chain, contract and event as one text."""
        return f"{self.chain_id}:{self.contract}:{self.abi_event.canonical}"

    def matches_log(self, chain_id: int, contract: str, signature: str) -> bool:
        """Return whether logs of this contract, by the canonical signature of the event, belong to this source."""
        return (self.chain_id, self.contract, self.abi_event.canonical) == (chain_id, contract, signature)


def log_payload(
    place: Mapping[str, Json], args: Mapping[str, Json], declared: AbiEvent | None = None
) -> dict[str, Json]:
    """Return the payload of a log: where it happened (`PLACE`), and over that its parameters.

    `declared`: as who names them; a log that several follow has its parameters by all their names. None: all of these.
    """
    own = (
        args if declared is None else {each.name: args[each.name] for each in declared.parameters if each.name in args}
    )
    return {**place, **own}


def log_wallet(source: LogSource, args: Mapping[str, Json]) -> str | None:
    """Return the wallet that a log is about, or None if the log could not be decoded, or has the zero address."""
    wallet = args.get(source.wallet_arg)
    return wallet if isinstance(wallet, str) and wallet != ZERO_ADDRESS else None


def read_log_source(spec: Mapping[str, Any], field: str, problems: list[Problem]) -> LogSource | None:
    """Return what the trigger spec of an on-chain automation says, adding what is wrong to `problems`."""
    before = len(problems)
    chain_id = _number(spec, "chainId", field, (1, MAX_CHAIN_ID), problems)
    if (reason := address_problem(contract := spec.get("contract"))) is not None:
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
    return LogSource(chain_id, str(contract).lower(), declared, str(wallet_arg), confirmations, creates)


def is_log_sample(event: Any) -> bool:
    """Return whether a described event is a log: `{"type": "onchain_event", "args": {…}}`."""
    return isinstance(event, Mapping) and event.get("type") == ONCHAIN_EVENT


def read_log_sample(value: Mapping[str, Any], source: LogSource, field: str = "event") -> Event | Problems:
    """Return the log in a sample, or what is wrong with it. `args` by name; `txHash`, `logIndex`, `blockNumber` if they
    matter.

    Numbers and addresses may be written as people do: they become what a real log has. A log that was kept (it says its
    `signature`) may have parameters by the names of others who follow it, which are left out.
    """
    given = value.get("args")
    if not isinstance(given, Mapping):
        return (Problem(f"{field}.args", f"must be an object with the parameters of {source.abi_event.full}"),)
    if reason := storage_problem(dict(value)):
        return (Problem(field, reason),)
    known = {each.name: each for each in source.abi_event.parameters}
    if value.get("signature") == source.abi_event.canonical:
        given = {name: each for name, each in given.items() if name in known}
    args = {name: normalise_argument(known[name].type, given[name]) for name in given if name in known}
    problems = list(_argument_problems(args, given, source, f"{field}.args"))
    wallet = args.get(source.wallet_arg)
    if problems or not isinstance(wallet, str):
        return tuple(problems)
    place: dict[str, Json] = {name: value.get(name, default) for name, default in _NOWHERE.items()}
    place |= {"chainId": source.chain_id, "contract": source.contract}
    payload = encode(log_payload(place, args))
    return Event(source.abi_event.name, Identifiers(wallet, None, None, wallet), payload=payload, on_chain=True)


def _argument_problems(
    args: Mapping[str, Json], given: Mapping[str, Json], source: LogSource, field: str
) -> Iterator[Problem]:
    """Yield what is wrong with the parameters of a sample: `given` as they were written, `args` as a log would have
    them.
    """
    said = f"is no parameter of {source.abi_event.full}"
    yield from (Problem(f"{field}.{name}", said) for name in given if name not in args)
    for each in source.abi_event.parameters:
        if each.name == source.wallet_arg:
            reason = address_problem(given.get(each.name)) or (_NO_WALLET if args[each.name] == ZERO_ADDRESS else None)
        else:
            reason = argument_problem(each, args[each.name]) if each.name in args else None
        if reason is not None:
            yield Problem(f"{field}.{each.name}", reason)


_NO_WALLET = "is the zero address, which is nobody: what is minted from it or burned to it starts nothing"
_NOWHERE: Mapping[str, Json] = {"txHash": "0x" + "0" * 64, "logIndex": 0, "blockNumber": 0}


def source_warnings(source: LogSource, filters: tuple[Filter, ...]) -> Iterator[str]:
    """Yield what the author should know: that everybody becomes a contact, and which filters on parameters can never
    pass.
    """
    if source.creates_contacts and not filters:
        yield f"every wallet in {source.wallet_arg} becomes a contact, as many an hour as the operator allows; a filter lets in fewer"
    for each in filters:
        parameter = source.abi_event.parameter(each.path)
        if parameter is not None and each.operator in ("eq", "neq", "in"):
            values = each.value if each.operator == "in" and isinstance(each.value, list) else [each.value]
            said = (argument_problem(parameter, value) for value in values)
            yield from (f"{each.path} {reason}" for reason in said if reason is not None)
    if any(each.operator == "eq" and each.path == source.wallet_arg and each.value == ZERO_ADDRESS for each in filters):
        yield f"{source.wallet_arg} {_NO_WALLET}"


def _declared(value: Any, field: str, problems: list[Problem]) -> AbiEvent | None:
    found = read_signature(value) if isinstance(value, str) else "must be a text like Transfer(address,address,uint256)"
    if isinstance(found, str):
        problems.append(Problem(field, found))
        return None
    return found


def _unfit_wallet(declared: AbiEvent, name: Any) -> str | None:
    wallets = [each.name for each in declared.parameters if each.type == AbiWord("address", 20)]
    listed = f"its addresses are {', '.join(wallets)}" if wallets else "it has no address"
    if not isinstance(name, str) or not name:
        return f"must name the parameter with the wallet; {listed}"
    parameter = declared.parameter(name)
    if parameter is None:
        return f"{declared.name} has no parameter {name!r}; {listed}"
    return None if name in wallets else f"{name} is {canonical_type(parameter.type)}, not an address; {listed}"


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
