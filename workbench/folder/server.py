"""What the server holds, in the words of files, and the way there: every change says which revision it was made from."""

from typing import Any

import msgspec

from workbench import publish
from workbench.connection import Connection
from workbench.folder.file import Kept, State
from workbench.publish import Record


class There(msgspec.Struct, frozen=True):
    """An automation of the server. `kept`: what is live of it, the draft where nothing is; `unpublished`: its draft says something else."""

    record: Record
    kept: Kept
    unpublished: bool = False


def everything(connection: Connection) -> list[There]:
    """Return all automations that are not put away."""
    return [_there(connection, record) for record in publish.everything(connection)]


def bring(connection: Connection, kept: Kept, there: There | None) -> There:
    """Make the server hold what a file says, and return what it holds then.

    Raises StaleError when somebody changed it a moment ago, and PublishError naming nodes.
    """
    record = _saved(connection, kept, there)
    if kept.state == "off" and record.active:
        record = publish.switch(connection, record, "deactivate")
    if kept.state != "draft":
        record = publish.release(connection, record)
    if kept.state == "live" and not record.active:
        record = publish.switch(connection, record, "activate")
    return There(record, _kept(record, kept.state, record.trigger_spec, record.graph))


def _saved(connection: Connection, kept: Kept, there: There | None) -> Record:
    body: dict[str, Any] = kept.payload
    if there is None:
        return _record(connection.post("/automations", body | ({"active": False} if kept.state == "off" else {})))
    if _kept(there.record, kept.state, there.record.trigger_spec, there.record.graph).digest() == kept.digest():
        return there.record
    address = f"/automations/{there.record.id}"
    return _record(connection.put(address, body | {"revision": there.record.revision}))


def _record(answer: dict[str, Any]) -> Record:
    return msgspec.convert(answer, Record)


def _there(connection: Connection, record: Record) -> There:
    version = publish.live(connection, record)
    if version is None:
        return There(record, _kept(record, "draft", record.trigger_spec, record.graph))
    kept = _kept(record, "live" if record.active else "off", version.trigger_spec, version.graph)
    draft = _kept(record, kept.state, record.trigger_spec, record.graph)
    return There(record, kept, unpublished=draft.digest() != kept.digest())


def _kept(record: Record, state: State, trigger_spec: dict[str, Any], graph: dict[str, Any]) -> Kept:
    return Kept(record.name, state, trigger_spec, graph)
