"""What `automation.backtest(…)` does: say what is tried and what it is compared with, and run it."""

from typing import Any, Literal, TypeAlias

from api.language.check import errors
from api.language.described import SIMULATED
from workbench.author import Draft
from workbench.backtest.order import Subject
from workbench.backtest.result import Backtest, Called
from workbench.backtest.run import Asked, Subjects, run
from workbench.connection import Connection
from workbench.errors import DraftError, NotThereError, StoppedError
from workbench.publish import Record, find

Against: TypeAlias = Literal["published"] | int


def backtested(
    connection: Connection, draft: Draft, record: Record | None, against: Against | None, asked: Asked
) -> Backtest:
    """Return what the draft would have done, compared with a version of its record; raise StoppedError when it is interrupted."""
    try:
        return _backtested(connection, draft, record, against, asked)
    except KeyboardInterrupt:
        raise StoppedError(_STOPPED) from None


_STOPPED = (
    "the backtest was stopped, and nothing is kept of it; sample=0.1 takes a tenth of the contacts and is done sooner"
)


def _backtested(
    connection: Connection, draft: Draft, record: Record | None, against: Against | None, asked: Asked
) -> Backtest:
    if not draft.nodes:
        raise DraftError('say first which event: .on("deposit")')
    payload = draft.payload()
    if against is not None:
        record = find(connection, draft.name) or record  # it may have been published since the draft was begun
    own = record.id if record is not None else None
    trigger, graph = payload["triggerSpec"], payload["graph"]
    version = None if against is None else _version(connection, draft.name, record, against)
    rival = None if version is None else Subject(own or SIMULATED, version["triggerSpec"], version["graph"])
    called = Called(
        draft.name,
        "" if version is None else f"version {version['version']}",
        saved=record is not None,
        problems=len(errors(draft.remarks())),
    )
    return Backtest(called, run(connection, Subjects(Subject(own or SIMULATED, trigger, graph), rival, own), asked))


def _version(connection: Connection, name: str, record: Record | None, against: Against) -> dict[str, Any]:
    """Return a published version as the server has it; raise NotThereError when there is none such."""
    if record is None or record.published_version is None:
        raise NotThereError(f"{name!r} was never published, so there is nothing to compare it with")
    number = record.published_version if against == "published" else against
    if isinstance(number, bool) or not isinstance(number, int):
        raise DraftError(f'against={against!r}: write against="published", or the number of a version')
    versions: list[dict[str, Any]] = connection.get(f"/automations/{record.id}/versions", limit=_MOST)["versions"]
    found = next((each for each in versions if each["version"] == number), None)
    if found is None:
        raise NotThereError(f"there is no version {number} of {name!r}; .versions() shows which there are")
    return found


_MOST = 100
