"""What is to be lived through, as it is handed to a process, and what is said of a bucket that is done."""

from datetime import datetime
from typing import Any

import msgspec

from api.language.codec import decode, encode, normalise
from api.language.effect import Message
from api.language.graph import Graph, read_graph
from api.language.simulate import Automation
from api.language.trigger import Trigger, read_trigger
from workbench.errors import DraftError


class Subject(msgspec.Struct, frozen=True):
    """An automation as JSON has it; by its id a split knows who goes where."""

    id: str
    trigger_spec: dict[str, Any]
    graph: dict[str, Any]

    def automation(self) -> Automation:
        """Return what the interpreter runs; raise DraftError when its shape is wrong. Compiles templates."""
        trigger, graph = read_trigger(normalise(self.trigger_spec)), read_graph(normalise(self.graph))
        if isinstance(trigger, Trigger) and isinstance(graph, Graph):
            return Automation(trigger, graph, self.id)
        problems = [*(trigger if isinstance(trigger, tuple) else ()), *(graph if isinstance(graph, tuple) else ())]
        raise DraftError("; ".join(map(str, problems)))


class Order(msgspec.Struct, frozen=True):
    """What to do: for these automations, with the rows that lie in `folder`, until the time is over."""

    folder: str
    until: datetime
    subjects: tuple[Subject, ...]

    def line(self) -> bytes:
        """Return it as a line of JSON, numbers exact."""
        return encode(self) + b"\n"


class Lived(msgspec.Struct, frozen=True):
    """What is said of a bucket: its events, how many of its contacts are erased, and the first message of each node by subject.

    `masked`: addresses came as `a•••@example.com`, for a key that may not see them.
    """

    events: int = 0
    erased: int = 0
    masked: bool = False
    messages: tuple[tuple[Message, ...], ...] = ()

    def line(self) -> bytes:
        """Return it as a line of JSON."""
        return encode(self) + b"\n"


def read_order(line: bytes) -> Order:
    """Return the order in a line."""
    return msgspec.convert(decode(line), Order)


def read_lived(line: bytes) -> Lived:
    """Return what is said in a line."""
    return msgspec.convert(decode(line), Lived)
