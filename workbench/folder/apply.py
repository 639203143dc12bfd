"""A folder brought to the server: all of it or, where anything stands in the way, nothing."""

from workbench import publish
from workbench.connection import Connection
from workbench.errors import DraftError, WorkbenchError
from workbench.folder.compare import Comparison, Item
from workbench.folder.lock import Known
from workbench.folder.server import bring


def apply(
    comparison: Comparison, connection: Connection, *, overwrite: bool = False, archive_missing: bool = False
) -> list[Item]:
    """Create, update, publish and switch what differs; return what was done.

    Raises DraftError when something stands in the way, before anything is changed; the error of the first automation that the server
    refuses, after those before it.
    """
    _refuse([*comparison.of("broken"), *([] if overwrite else comparison.of("conflict"))])
    for item in comparison.of("same"):
        _note(comparison, item)
    done = comparison.of("create", "update", *(("conflict",) if overwrite else ()))
    for item in done:
        assert item.kept is not None
        try:
            held = bring(connection, item.kept, item.there)
        except WorkbenchError as error:
            raise type(error)(f"{item.file}: {error}") from error
        comparison.lock.note(item.file, Known(held.record.id, held.kept.digest()))
    missing = comparison.of("missing") if archive_missing else []
    for item in missing:
        assert item.there is not None
        publish.switch(connection, item.there.record, "archive")
        comparison.lock.forget(item.file)
    return [*done, *missing]


def _refuse(items: list[Item]) -> None:
    if items:
        lines = [f"  {item.file}: {note}" for item in items for note in item.notes]
        raise DraftError("\n".join(["nothing was changed, because", *lines]))


def _note(comparison: Comparison, item: Item) -> None:
    """Know a file that says what the server says, however that came to be."""
    assert item.kept is not None
    assert item.there is not None
    known = Known(item.there.record.id, item.kept.digest())
    if comparison.lock.files.get(item.file) != known:
        comparison.lock.note(item.file, known)
