"""Contract logs as triggers (docs/contract.md 6).

A log becomes an event: its payload is its decoded parameters and its location on the chain, its contact the wallet in
one parameter.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from workbench.language.abi import (
    AbiEvent,
    AbiWord,
    address_problem,
    argument_problem,
    canonical_type,
    normalize_argument,
    read_signature,
)
from workbench.language.codec import Json, as_stored, encode, storage_problem
from workbench.language.event import Event, Identifiers
from workbench.language.filter import Filter
from workbench.language.problem import Problem, Problems

ONCHAIN_EVENT = "onchain_event"
MAX_CONFIRMATIONS = 1_000  # blocks
LOCATION_FIELDS = ("chainId", "contract", "txHash", "logIndex", "blockNumber")
ZERO_ADDRESS = "0x" + "0" * 40  # tokens are minted from it and burned to it
MAX_CHAIN_ID = 2**53 - 1  # the largest number that every reader of JSON keeps exact
_ZERO_WALLET = "is the zero address, which belongs to no contact: mints and burns start nothing"
_SAMPLE_LOCATION: Mapping[str, Json] = {"txHash": "0x" + "0" * 64, "logIndex": 0, "blockNumber": 0}


class LogSource(msgspec.Struct, frozen=True):
    """The logs of one contract event, and the parameter with the contact's wallet.

    `contract` is in lower case. `confirmations`: how many blocks must follow the block of a log before it starts an
    entry. `creates_contacts`: whether a wallet that belongs to no contact becomes one.
    """

    type: ClassVar = ONCHAIN_EVENT
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

    @property
    def name(self) -> str:
        """The name by which waits and goals refer to the logs."""
        return f"{self.contract}:{self.abi_event.name}"

    @property
    def shown_values(self) -> dict[str, Json]:
        """The values of the trigger spec as titles show them: the name of the event in place of its signature."""
        return {
            "chainId": self.chain_id,
            "contract": self.contract,
            "signature": self.abi_event.name,
            "walletArg": self.wallet_arg,
            "confirmations": self.confirmations,
            "createContacts": self.creates_contacts,
        }


def log_payload(stored: Mapping[str, Any], abi_event: AbiEvent | None = None) -> dict[str, Any]:
    """Return the payload of a log: its location (`LOCATION_FIELDS`), overridden by its parameters.

    `stored` has the location, and the parameters in `args`. Several automations can follow one log under different
    parameter names; `args` then has every value under each of them. `abi_event` selects the names of one automation;
    None selects all.
    """
    args: Mapping[str, Any] = stored["args"]
    if abi_event is not None:
        args = {parameter.name: args[parameter.name] for parameter in abi_event.parameters if parameter.name in args}
    return {**{name: stored[name] for name in LOCATION_FIELDS if name in stored}, **args}


LOG_SOURCE_SCHEMA: Mapping[str, Mapping[str, Json]] = {  # the fields that `read_log_source` reads
    "chainId": {"type": "integer", "minimum": 1, "maximum": MAX_CHAIN_ID},
    "contract": {"type": "string", "pattern": "^0x[0-9a-fA-F]{40}$"},
    "signature": {"type": "string", "examples": ["Transfer(address,address,uint256)"]},
    "walletArg": {"type": "string"},
    "confirmations": {"type": "integer", "minimum": 0, "maximum": MAX_CONFIRMATIONS, "default": 0},
    "createContacts": {"type": "boolean", "default": False},
}


def read_log_source(spec: Mapping[str, Any], field: str, problems: list[Problem]) -> LogSource | None:
    """Return the source in the trigger spec of an on-chain automation; add what is wrong with it to `problems`."""
    before = len(problems)
    chain_id = _read_whole(spec, "chainId", field, (1, MAX_CHAIN_ID), problems)
    contract, signature, wallet_arg = spec.get("contract"), spec.get("signature"), spec.get("walletArg")
    if (reason := address_problem(contract)) is not None:
        problems.append(Problem(f"{field}.contract", reason))
    abi_event: AbiEvent | str = "must be a text like Transfer(address,address,uint256)"
    if isinstance(signature, str):
        abi_event = read_signature(signature)
    if isinstance(abi_event, str):
        problems.append(Problem(f"{field}.signature", abi_event))
    elif (reason := _wallet_arg_problem(abi_event, wallet_arg)) is not None:
        problems.append(Problem(f"{field}.walletArg", reason))
    confirmations = _read_whole(spec, "confirmations", field, (0, MAX_CONFIRMATIONS), problems, 0)
    # False by default: anyone can write logs, so one automation could fill the contacts (docs/decisions/0036).
    creates_contacts = spec.get("createContacts", False)
    if not isinstance(creates_contacts, bool):
        problems.append(Problem(f"{field}.createContacts", "must be true or false"))
    if isinstance(abi_event, str) or len(problems) > before:
        return None
    return LogSource(chain_id, str(contract).lower(), abi_event, str(wallet_arg), confirmations, creates_contacts)


def log_sample(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a log with these parameters, as `read_log_sample` reads it."""
    return {"type": ONCHAIN_EVENT, "args": args}


def read_log_sample(value: Mapping[str, Any], source: LogSource, field: str = "event") -> Event | Problems:
    """Return the event of a described log, or its problems.

    `args` has the parameters by name; `txHash`, `logIndex` and `blockNumber` are optional. If it has no wallet, it is
    about the wallet in `contact`, if there is one. Hand-written numbers and addresses are normalized to the form that a
    decoded log has.
    """
    sent_args, contact = value.get("args"), value.get("contact")
    if not isinstance(sent_args, Mapping):
        return (Problem(f"{field}.args", f"must be an object with the parameters of {source.abi_event.full}"),)
    if reason := storage_problem(dict(value)):
        return (Problem(field, reason),)
    if isinstance(contact, Mapping) and contact.get("walletAddress") is not None:
        sent_args = {source.wallet_arg: contact["walletAddress"], **sent_args}
    parameters = {parameter.name: parameter for parameter in source.abi_event.parameters}
    # A stored log states its signature, and may also have its values under the names of other automations.
    is_stored = value.get("signature") == source.abi_event.canonical
    problems = [
        Problem(f"{field}.args.{name}", f"is not a parameter of {source.abi_event.full}")
        for name in sent_args
        if name not in parameters and not is_stored
    ]
    args = {
        name: normalize_argument(parameters[name].type, arg) for name, arg in sent_args.items() if name in parameters
    }
    for name, parameter in parameters.items():
        if name == source.wallet_arg:
            reason = address_problem(sent_args.get(name)) or (_ZERO_WALLET if args[name] == ZERO_ADDRESS else None)
        else:
            reason = argument_problem(parameter, args[name]) if name in args else None
        if reason is not None:
            problems.append(Problem(f"{field}.args.{name}", reason))
    wallet = args.get(source.wallet_arg)
    if problems or not isinstance(wallet, str):
        return tuple(problems)
    location: dict[str, Json] = {name: value.get(name, default) for name, default in _SAMPLE_LOCATION.items()}
    location |= {"chainId": source.chain_id, "contract": source.contract}
    # In the order of the declaration, as the payload of an entry.
    payload = encode(log_payload({**location, "args": as_stored(args)}, source.abi_event))
    return Event(source.abi_event.name, Identifiers(wallet, None, None, wallet), payload=payload, source=source.key)


def source_warnings(source: LogSource, filters: tuple[Filter, ...]) -> Iterator[str]:
    """Yield warnings for the author: contacts created without limit, and filters that can never pass."""
    if source.creates_contacts and not filters:
        yield (
            f"every wallet in {source.wallet_arg} becomes a contact, up to the operator's hourly limit; "
            "add a filter to create fewer"
        )
    for filter_ in filters:
        parameter = source.abi_event.parameter(filter_.path)
        if parameter is not None and filter_.operator in ("eq", "neq", "in"):
            is_list = filter_.operator == "in" and isinstance(filter_.value, list)
            for value in filter_.value if is_list else [filter_.value]:
                if (reason := argument_problem(parameter, value)) is not None:
                    yield f"{filter_.path} {reason}"
    if any(
        filter_.operator == "eq" and filter_.path == source.wallet_arg and filter_.value == ZERO_ADDRESS
        for filter_ in filters
    ):
        yield f"{source.wallet_arg} {_ZERO_WALLET}"


def _wallet_arg_problem(abi_event: AbiEvent, name: Any) -> str | None:
    wallets = [parameter.name for parameter in abi_event.parameters if parameter.type == AbiWord("address", 20)]
    hint = f"its addresses are {', '.join(wallets)}" if wallets else "it has no address"
    if not isinstance(name, str) or not name:
        return f"must name the parameter with the wallet; {hint}"
    parameter = abi_event.parameter(name)
    if parameter is None:
        return f"{abi_event.name} has no parameter {name!r}; {hint}"
    return None if name in wallets else f"{name} is {canonical_type(parameter.type)}, not an address; {hint}"


def _read_whole(
    spec: Mapping[str, Any],
    name: str,
    field: str,
    bounds: tuple[int, int],
    problems: list[Problem],
    default: int | None = None,
) -> int:
    value, (least, greatest) = spec.get(name, default), bounds
    if type(value) is not int or not least <= value <= greatest:
        problems.append(Problem(f"{field}.{name}", f"must be a whole number from {least:,} to {greatest:,}"))
        return least
    return value
