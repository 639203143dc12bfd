"""Logs of chains that were seen: samples for simulations."""

from collections.abc import Sequence
from typing import Any

from api.language.codec import encode
from workbench.connection import Connection
from workbench.display.table import Column, plain, table

_COLUMNS = (Column("block", number=True), Column("event"), Column("contract"), Column("args"))


class Logs(Sequence[dict[str, Any]]):
    """Logs, the newest first: a table, and samples: `a.simulate(wb.logs()[0])`."""

    def __init__(self, logs: Sequence[dict[str, Any]]) -> None:
        self._logs = logs

    def __getitem__(self, index: Any) -> Any:
        return self._logs[index]

    def __len__(self) -> int:
        return len(self._logs)

    def __repr__(self) -> str:
        return plain(_COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return table(_COLUMNS, self._rows())

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [(_block(each), each["event"], each["contract"], encode(each["args"]).decode()) for each in self._logs]


def _block(log: dict[str, Any]) -> str:
    return f"{log['blockNumber']} (removed)" if log["removed"] else str(log["blockNumber"])


def logs(connection: Connection, contract: str | None, event: str | None, before: str | None, limit: int) -> Logs:
    """Return the logs that were seen last, of a contract and an event, and before one, when they are named."""
    found = connection.get("/chain/events", contract=contract, event=event, before=before, limit=limit)
    return Logs(found["events"])
