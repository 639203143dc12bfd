"""Publications that agents propose, and that a person approves or rejects."""

from typing import Any

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableSequence, TableView, moment, table_columns
from workbench.display.words import quantity
from workbench.errors import InvalidArgumentError, usage_example
from workbench.language.responses import ApprovalView


class Approval(ApprovalView, frozen=True, rename="camel"):
    """A publication that a key proposes.

    `receipts`: what the server found out about it. `reasons`: why it needs an approval, whatever the organization asks.
    """

    def summary(self) -> str:
        """Return why it needs an approval, and the numbers of the receipts, in one line."""
        results: dict[str, dict[str, Any]] = {receipt.kind: receipt.result for receipt in self.receipts}
        backtest, warnings = results.get("backtest", {}), results.get("check", {}).get("warnings", ())
        impact = results.get("impact", {})
        audience, planned = impact.get("audience"), impact.get("planned", {})
        parts = list(self.reasons)
        parts += [f"reaches {quantity(audience['contacts'], 'contact')}"] if audience else []
        if planned.get("broadcasts"):
            parts += [f"{quantity(planned['broadcasts'], 'broadcast')} to {quantity(planned['contacts'], 'contact')}"]
        if backtest:
            entered = f"{backtest.get('entered', 0)} of {backtest['sampled']} simulations enter"
            parts += [entered if backtest["sampled"] else "nothing to simulate: no recent event or contact (sampled 0)"]
        parts += [quantity(number, f"{channel} message") for channel, number in backtest.get("messages", {}).items()]
        parts += [quantity(len(warnings), "warning")] if warnings else []
        return ", ".join(parts)


class Approvals(TableSequence[Approval]):
    """Publications that wait for a person first, then those that were decided, as they were when it was made.

    `wb.approvals` reads them each time. Keep it in a variable between looking and deciding: a new proposal comes first.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        super().__init__(msgspec.convert(connection.get("/approvals")["approvals"], tuple[Approval, ...]))

    @usage_example(".approve(waiting[0])  # waiting = wb.approvals")
    def approve(self, approval: Approval | str) -> None:
        """Let the proposed draft be published, as long as it stays as it is. Not with the key that wrote it."""
        self._connection.post(f"/approvals/{_id_of(approval)}/approve", {})

    @usage_example(".reject(waiting[0])  # waiting = wb.approvals")
    def reject(self, approval: Approval | str) -> None:
        """Refuse the proposed draft; a changed draft may be proposed again."""
        self._connection.post(f"/approvals/{_id_of(approval)}/reject", {})

    def require(self, required: bool = True) -> None:
        """Set whether what agents propose is published only after an approval. Needs automations:publish."""
        zone = self._connection.get("/organization")["timezone"]
        self._connection.put("/organization", {"timezone": zone, "approvals": required})

    def _view(self) -> TableView:
        rows = [
            (item.automation, item.requested_by, moment(item.requested_at), item.state, item.summary(), item.id)
            for item in self
        ]
        columns = table_columns("automation", "proposed by", "at (UTC)", "state", "receipts", "id")
        return TableView(columns, rows, "Approvals", "No publication waits for an approval.")


def _id_of(approval: Approval | str) -> str:
    if isinstance(approval, Approval):
        return approval.id
    if not isinstance(approval, str):
        raise InvalidArgumentError("pass an approval of wb.approvals, or its id")
    return approval
