"""Logs of a chain as what starts an automation: contract §6, design §3 «On-chain».

A log is an event whose payload is its decoded parameters and where it happened; the wallet in one parameter is who it is about.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from api.language.abi import Declared, Type, Word, read_signature, written
from api.language.codec import Json, encode, unfit
from api.language.event import Event, Identifiers
from api.language.filter import Filter
from api.language.keccak import unfit_address
from api.language.problem import Problem, Problems

TYPE = "onchain_event"
MOST_CONFIRMATIONS = 1_000
SAFE_BITS = 48  # numbers of more are texts of all their digits, whatever the value
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
    """Return the wallet that a log is about, None where the log could not be decoded."""
    wallet = args.get(source.wallet_arg)
    return wallet if isinstance(wallet, str) else None


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

    Numbers and addresses may be written as people do: they become what a real log has.
    """
    given = value.get("args")
    if not isinstance(given, Mapping):
        return (Problem(f"{field}.args", f"must be an object with the parameters of {source.declared.full}"),)
    if reason := unfit(dict(value)):
        return (Problem(field, reason),)
    known = {each.name: each.type for each in source.declared.parameters}
    said = f"is no parameter of {source.declared.full}"
    problems = [Problem(f"{field}.args.{name}", said) for name in given if name not in known]
    args = {name: _as_decoded(known[name], given[name]) for name in given if name in known}
    wallet = args.get(source.wallet_arg)
    if (reason := unfit_address(given.get(source.wallet_arg))) is not None:
        problems.append(Problem(f"{field}.args.{source.wallet_arg}", reason))
    if problems or not isinstance(wallet, str):
        return tuple(problems)
    place: dict[str, Json] = {name: value.get(name, default) for name, default in _NOWHERE.items()}
    place |= {"chainId": source.chain_id, "contract": source.contract}
    payload = encode(payload_of(place, args))
    return Event(source.declared.name, Identifiers(wallet, None, None, wallet), payload=payload, on_chain=True)


def _as_decoded(kind: Type, value: Json) -> Json:
    match kind:
        case Word(kind="uint" | "int", size=bits) if type(value) is int and bits > SAFE_BITS:
            return str(value)
        case Word(kind="address" | "bytes") if isinstance(value, str):
            return value.lower()
        case _:
            return value


_NOWHERE: Mapping[str, Json] = {"txHash": "0x" + "0" * 64, "logIndex": 0, "blockNumber": 0}


def remarks(source: OnChain, filters: tuple[Filter, ...]) -> Iterator[str]:
    """Yield what the author should know: that everybody becomes a contact, and which filters on parameters can never pass."""
    if source.creates_contacts and not filters:
        yield f"every wallet in {source.wallet_arg} becomes a contact, as many an hour as the operator allows; a filter lets in fewer"
    for each in filters:
        parameter = source.declared.parameter(each.path)
        if parameter is not None and each.operator in ("eq", "neq", "in"):
            values = each.value if each.operator == "in" and isinstance(each.value, list) else [each.value]
            yield from (
                f"{each.path} {said}" for value in values if (said := _never(parameter.type, value)) is not None
            )


def _never(kind: Type, value: Json) -> str | None:
    """Say why no parameter of a type equals a value, or return None."""
    if not isinstance(kind, Word):
        return None
    if kind.kind in ("address", "bytes") and isinstance(value, str) and value != value.lower():
        return f"is compared in lower case: write {value.lower()}"
    if kind.kind in ("uint", "int"):
        is_text, is_wide = isinstance(value, str), kind.size > SAFE_BITS
        if is_wide and not is_text:
            return f"is {written(kind)}, whose values are texts of all their digits: write {str(value)!r}"
        if is_text and not is_wide:
            return f"is {written(kind)}, whose values are numbers: write {value}"
    return None


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
