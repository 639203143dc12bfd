"""Pages: results for people without a notebook, saved as a file or mailed on a schedule."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from workbench import environment
from workbench.connection import Connection
from workbench.display.html import TableSequence, TableView, html, moment, printable_text, table_columns
from workbench.display.words import quantity
from workbench.errors import InvalidArgumentError, NotFoundError
from workbench.language.page import MAX_SECTIONS, PageSection, page_html, row_limit
from workbench.language.responses import PageRunView, PageScheduleView

if TYPE_CHECKING:
    from workbench.frames import Result

PageContent: TypeAlias = "Result | tuple[str, Result]"
"""A section of a page: a report, or a title and a result of `wb.sql`."""

_EVERY = re.compile(r"(?P<days>[a-z]+(?:,\s*[a-z]+)*)\s+(?P<hour>\d{1,2}):(?P<minute>\d\d)", re.ASCII | re.IGNORECASE)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS = {"day": "* *", "weekday": "* mon-fri", "month": "1 *"}


class ReportPage:
    """Reports as one document, displayed in a frame. `html` is the document; it needs no network."""

    def __init__(self, title: object, reports: Sequence[PageContent]) -> None:
        if not isinstance(title, str) or not title.strip():
            raise InvalidArgumentError('a page has a title: wb.page("Monday numbers", wb.funnel([…]))')
        if not 1 <= len(reports) <= MAX_SECTIONS:
            raise InvalidArgumentError(f"a page has 1 to {MAX_SECTIONS} reports, not {len(reports)}")
        self.title = title
        self._results = [_titled(report, number) for number, report in enumerate(reports, 1)]
        self.html = page_html(title, [_section(*result) for result in self._results], environment.now())

    def save(self, path: str | Path) -> Path:
        """Write the document into a file, and return its path."""
        target = Path(path)
        target.write_text(self.html, "utf-8")
        return target

    def sections(self) -> list[dict[str, Any]]:
        """Return the queries of the page, as a schedule stores them."""
        return [
            {
                "title": title,
                "sql": result.statement,
                "params": result.params or None,
                "relative": [
                    {"name": name, **msgspec.to_builtins(time)}
                    for name, time in getattr(result, "relative", {}).items()
                ],
                "report": _is_report(result),
                "titles": dict(getattr(result, "titles", {})),
            }
            for title, result in self._results
        ]

    @printable_text
    def __repr__(self) -> str:
        return f"Page {self.title!r} with {quantity(len(self._results), 'report')}. .save(path) writes it"

    def _repr_html_(self) -> str:
        return html("page.html.j2", document=self.html, title=self.title)


def _titled(report: PageContent, number: int) -> tuple[str, "Result"]:
    from workbench.frames import Result

    match report:
        case (str() as title, Result() as result):
            pass
        case Result() as result:
            view = getattr(result, "view", None)
            title = view.title if view is not None else ""
        case _:
            raise InvalidArgumentError(
                f"report {number} is {type(report).__name__}: pass a report, or a title and a result, "
                'as in ("Assets", wb.sql("…"))'
            )
    if not title.strip():
        raise InvalidArgumentError(f'report {number} has no title: pass ("its title", result)')
    if result.statement is None:
        raise InvalidArgumentError(f"report {number} was changed, so it is not the result of its query any more")
    return title, result


def _is_report(result: "Result") -> bool:
    return hasattr(result, "titles")  # of a `Report`, which is imported with Altair only


def _section(title: str, result: "Result") -> PageSection:
    view = getattr(result, "view", None)
    limit = row_limit(result.columns, report=_is_report(result))
    return PageSection(
        title=title,
        columns=tuple(result.columns),
        rows=result.head(limit).rows(),
        complete=result.height <= limit,
        report=_is_report(result),
        titles=getattr(result, "titles", {}),
        query_hash=result.query_hash,
        watermark=result.watermark,
        warnings=view.warnings if view is not None else (),
    )


def cron_of(every: object) -> str:
    """Return the cron expression of `monday 08:00`, `mon,thu 8:30`, `day 07:00`, `weekday …` or `month …`."""
    text = every.strip().lower() if isinstance(every, str) else ""
    if len(text.split()) == 5 and (":" not in text):
        return text
    match = _EVERY.fullmatch(text)
    if match is None or int(match["hour"]) > 23 or int(match["minute"]) > 59:
        raise InvalidArgumentError(
            f'every={every!r} is not a time: write "monday 08:00", "day 07:30", "weekday 09:00", "month 08:00" '
            '(on the first), or five fields of cron: "0 8 * * mon"'
        )
    days = [day.strip() for day in match["days"].split(",")]
    if len(days) == 1 and days[0] in _DAYS:
        day, weekdays = _DAYS[days[0]].split()
        return f"{int(match['minute'])} {int(match['hour'])} {day} * {weekdays}"
    names = [next((name for name in _WEEKDAYS if day in (name, name[:3])), None) for day in days]
    if None in names:
        raise InvalidArgumentError(f"every={every!r}: {days[names.index(None)]!r} is not a day")
    return f"{int(match['minute'])} {int(match['hour'])} * * {','.join(str(name)[:3] for name in names)}"


class PageRun(PageRunView, frozen=True, rename="camel"):
    """A run of a scheduled page."""

    def sentence(self) -> str:
        """Return the numbers of emails by outcome, or the state of the run, and the errors."""
        counts = {"sent": self.sent, "waiting": self.waiting, "not sent": self.failed, "unknown": self.unknown}
        emails = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
        reasons = "; ".join(filter(None, (self.error, self.email_error)))
        return ": ".join(filter(None, (emails or self.state, reasons)))


class PageSchedule(PageScheduleView, frozen=True, rename="camel"):
    """A page that the engine makes and mails. `recipients` are masked without pii:read."""

    last_run: PageRun | None


class PageSchedules(TableSequence[PageSchedule]):
    """The scheduled pages of the organization, newest first. `wb.page_schedules` reads them again each time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        super().__init__(msgspec.convert(connection.get("/page-schedules")["schedules"], tuple[PageSchedule, ...]))

    def runs(self, schedule: PageSchedule | str, limit: int = 20) -> "PageRuns":
        """Return the newest runs of a schedule (itself, its id, or its title)."""
        schedule_id = self._id_of(schedule)
        return PageRuns(self._connection, schedule_id, limit)

    def delete(self, schedule: PageSchedule | str) -> None:
        """Delete a schedule, its runs and their pages."""
        self._connection.delete(f"/page-schedules/{self._id_of(schedule)}")

    def _id_of(self, schedule: PageSchedule | str) -> str:
        if isinstance(schedule, PageSchedule):
            return schedule.id
        ids = [item.id for item in self if schedule in (item.id, item.title)]
        if len(ids) > 1:
            raise InvalidArgumentError(f"{len(ids)} scheduled pages have the title {schedule!r}: pass the id of one")
        if not ids:
            raise NotFoundError(f"scheduled page not found: {schedule!r}. wb.page_schedules lists them")
        return ids[0]

    def _view(self) -> TableView:
        columns = table_columns("title", "times", "to", "next (UTC)", "last run", "id")
        rows = [
            (
                item.title,
                f"{item.cron} {item.timezone}",
                ", ".join(item.recipients),
                moment(item.next_at) or "never",
                "" if item.last_run is None else f"{moment(item.last_run.at)}: {item.last_run.sentence()}",
                item.id,
            )
            for item in self
        ]
        empty = 'Nothing yet. wb.schedule(page, every="monday 08:00", to=["ada@example.com"]) mails a page.'
        return TableView(columns, rows, "Scheduled pages", empty)


class PageRuns(TableSequence[PageRun]):
    """The newest runs of a scheduled page. `.html(run)` is the page that was mailed."""

    def __init__(self, connection: Connection, schedule_id: str, limit: int) -> None:
        self._connection, self._path = connection, f"/page-schedules/{schedule_id}/runs"
        super().__init__(msgspec.convert(connection.get(self._path, limit=limit)["runs"], tuple[PageRun, ...]))

    def html(self, run: PageRun) -> str:
        """Return the document of a run. Raises NotFoundError once it is not kept any more."""
        text: str = self._connection.get(f"{self._path}/{run.id}")["html"]
        return text

    def _view(self) -> TableView:
        rows = [(moment(run.at), moment(run.made_at), run.state, run.sentence(), run.id) for run in self]
        return TableView(table_columns("at (UTC)", "made (UTC)", "state", "emails", "id"), rows, "Runs")


def schedule(
    connection: Connection, page: ReportPage, every: object, to: Sequence[str], timezone: str | None
) -> PageSchedule:
    """Let the engine make the page at these times and mail it."""
    if not isinstance(page, ReportPage):
        raise InvalidArgumentError('pass a page: wb.schedule(wb.page("Monday", …), every="monday 08:00", to=["…"])')
    recipients = [to] if isinstance(to, str) else [*to]
    body = {"title": page.title, "sections": page.sections(), "cron": cron_of(every), "to": recipients}
    answer = connection.post("/page-schedules", body | ({} if timezone is None else {"timezone": timezone}))
    return msgspec.convert(answer, PageSchedule)
