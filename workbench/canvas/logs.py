"""Logs of contracts on a canvas: the newest ones to try, or one of zeros, and what can be chosen from their parameters."""

from collections.abc import Iterable
from typing import Any

from api.language.abi import Array, Declared, Parameter, Text, Tuple, Type, Word, read_signature, written
from api.language.arguments import SAFE_BITS
from api.language.codec import decode, encode
from api.language.onchain import PLACE, OnChain
from workbench.author import JsonObject
from workbench.canvas.known import Known
from workbench.canvas.samples import Sample
from workbench.display.page import moment
from workbench.display.words import short, value

_SHOWN = 3
_MOST_ZEROS = 256
_NOBODY = "0x" + "ab" * 20


def log_samples(known: Known, source: OnChain) -> list[Sample]:
    """Return the newest logs that an automation starts from; where none was seen, one that is made up."""
    found = [
        Sample(f"{source.declared.name}, {moment(at)}", source.declared.name, args, contact_id or "", short(wallet))
        for args, at, wallet, contact_id in known.logs(source)
    ]
    return found or [Sample("a log of zeros", source.declared.name, encode(_zeros(source)).decode())]


def parameters(known: Known, trigger: JsonObject, source: OnChain | None) -> list[JsonObject]:
    """Return what filters of a trigger can look at: parameters with their types, and values that were seen.

    `source` None: the trigger is not filled in yet.
    """
    declared = read_signature(str(trigger.get("signature", "")))
    if not isinstance(declared, Declared):
        return []
    seen = [decode(row[0].encode()) for row in known.logs(source)] if source is not None else []
    own = [_path(each.name, written(each.type), [args.get(each.name) for args in seen]) for each in declared.parameters]
    return [*own, *(_path(name, "where it happened", ()) for name in PLACE)]


def _path(name: str, kind: str, values: Iterable[Any]) -> JsonObject:
    samples = dict.fromkeys(value(each) for each in values if each is not None)
    return {"path": name, "types": [kind], "samples": [*samples][:_SHOWN]}


def _zeros(source: OnChain) -> JsonObject:
    return {each.name: _zero_of(each) for each in source.declared.parameters} | {source.wallet_arg: _NOBODY}


def _zero_of(parameter: Parameter) -> Any:
    is_hash = parameter.indexed and not isinstance(parameter.type, Word)
    return f"0x{'00' * 32}" if is_hash else _zero(parameter.type)


def _zero(kind: Type) -> Any:
    match kind:
        case Word(kind="bool"):
            return False
        case Word(kind="uint" | "int", size=bits):
            return "0" if bits > SAFE_BITS else 0
        case Word(size=size):
            return f"0x{'00' * size}"
        case Text(kind=of):
            return "0x" if of == "bytes" else ""
        case Tuple(parts=parts):
            return {each.name: _zero(each.type) for each in parts}
        case Array(of=of, length=length):
            return [_zero(of)] * (length or 0) if _size(kind) <= _MOST_ZEROS else []


def _size(kind: Type) -> int:
    """Return how many values there are in one, at least."""
    match kind:
        case Array(of=of, length=length):
            return _size(of) * (length or 0)
        case Tuple(parts=parts):
            return sum(_size(each.type) for each in parts)
        case _:
            return 1
