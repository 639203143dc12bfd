"""What `workbench top` shows: one screen of what all processes do now."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.observe.readings import Change

_MOST_ROWS = 8
_LATE_SECONDS = 5.0
_MEGABYTE = 1_048_576


def picture(change: Change, ready: str) -> RenderableType:
    """Return the screen; `ready` is what the API says of itself."""
    return Group(_headline(change, ready), Text(), _processes(change), Text(), _events(change), Text(), _steps(change))


def _headline(change: Change, ready: str) -> Text:
    line = Text(f"API {ready}", style="green" if ready.startswith("ready") else "bold red")
    late = change.after.largest("oldest_due_seconds")
    if late is not None:
        line.append(f"   oldest due entry {_span(late)} late", style="bold red" if late > _LATE_SECONDS else "default")
    waiting = change.after.total("ingest_waiting")
    line.append(f"   {waiting:,.0f} events wait   {change.after.total('sockets'):,.0f} sockets", style="default")
    return line


def _processes(change: Change) -> Table:
    table = _table("process", "CPU", "memory", "answers/s", "events/s", "steps/s", "connections")
    cpu = change.rates("process_cpu_seconds_total", "process")
    answers, events, steps = (
        change.rates(name, "process") for name in ("http_requests_total", "events_total", "steps_total")
    )
    for name in change.after.processes():
        busy, size = (change.after.total(f"pool_{what}", process=name) for what in ("busy", "connections"))
        table.add_row(
            name,
            f"{cpu[(name,)]:.0%}",
            f"{change.after.total('process_resident_memory_bytes', process=name) / _MEGABYTE:,.0f} MB",
            *(f"{rates[(name,)]:,.0f}" for rates in (answers, events, steps)),
            f"{busy:.0f} of {size:.0f}",
        )
    return table


def _events(change: Change) -> Table:
    table = _table("events", "per second", "total")
    _add_rows(table, change, "events_total", "outcome")
    _add_rows(table, change, "events_rejected_total", "field", "rejected: ")
    slow = [change.quantile("ingest_seconds", share) for share in (0.5, 0.99)]
    half, most = ("-" if each is None else f"≤ {each * 1000:g} ms" for each in slow)
    table.caption = f"answered: half {half}, 99 of 100 {most}"
    return table


def _steps(change: Change) -> Table:
    table = _table("steps", "per second", "total")
    _add_rows(table, change, "steps_total", "kind outcome")
    return table


def _add_rows(table: Table, change: Change, name: str, labels: str, prefix: str = "") -> None:
    names = labels.split()
    rates = change.rates(name, *names)
    for words in sorted(rates, key=lambda words: (-rates[words], words))[:_MOST_ROWS]:
        total = change.after.total(name, **dict(zip(names, words, strict=True)))
        table.add_row(prefix + " ".join(words), f"{rates[words]:,.1f}", f"{total:,.0f}")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", caption_justify="left")
    table.add_column(first, min_width=34, no_wrap=True)
    for each in others:
        table.add_column(each, justify="right", no_wrap=True)
    return table


def _span(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
