"""The reports equal results that plain Python computes from a few hundred events."""

import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from statistics import median
from typing import Any

import msgspec
import polars as pl
import pytest

from tests.running import Running
from workbench import InvalidArgumentError, NotFoundError, SqlError, Workbench
from workbench.reports import name_warnings

NAMES = ("visit", "signup", "deposit", "trade")
DAY = timedelta(days=1)
MIDNIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


class StoryEvent(msgspec.Struct, frozen=True):
    contact: str
    event: str
    at: datetime
    payload: dict[str, Any]


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


@pytest.fixture(scope="module")
def sent_events(wb: Workbench) -> list[StoryEvent]:
    """Four hundred events of thirty contacts in the last six days, each at a different time."""
    chance = random.Random(20261121)
    offsets_s = chance.sample(range(6 * 24 * 3600 - 7200), 400)
    contacts = [f"story-{number}" for number in range(30)]
    events = [
        StoryEvent(
            chance.choice(contacts),
            f"story:{chance.choice(NAMES)}",
            MIDNIGHT - 5 * DAY + timedelta(seconds=second) - timedelta(hours=2),
            {"amount": chance.choice([5, 10.5, "7", None]), "method": chance.choice(["card", "wire"])},
        )
        for second in offsets_s
    ]
    events = [event for event in events if event.at < datetime.now(UTC)]
    receipts = wb.events.send_many(
        [
            {
                "event": event.event,
                "contact": {"externalId": event.contact},
                "attributes": {"plan": "pro" if event.contact.endswith(("1", "2")) else "free"},
                "payload": event.payload,
                "occurredAt": event.at.isoformat(),
            }
            for event in events
        ]
    )
    assert not receipts.failed
    return sorted(events, key=lambda event: event.at)


def events_by_contact(sent_events: list[StoryEvent]) -> dict[str, list[StoryEvent]]:
    contacts: dict[str, list[StoryEvent]] = defaultdict(list)
    for event in sent_events:
        contacts[event.contact].append(event)
    return contacts


def depths(events: list[StoryEvent], steps: list[str], within: timedelta) -> dict[int, timedelta]:
    """Return the shortest time to each step, by trying every first event and every path."""
    best: dict[int, timedelta] = {}

    def follow(index: int, step: int, begun: datetime) -> None:
        duration = events[index].at - begun
        best[step] = min(duration, best.get(step, duration))
        if step == len(steps):
            return
        for later in range(index + 1, len(events)):
            if events[later].at - begun > within:
                return
            if events[later].event == steps[step]:
                follow(later, step + 1, begun)

    for index, event in enumerate(events):
        if event.event == steps[0]:
            follow(index, 1, event.at)
    return best


@pytest.mark.parametrize("steps", [["visit", "signup", "deposit"], ["deposit", "deposit", "trade", "deposit"]])
@pytest.mark.parametrize("hours", [12, 48])
def test_a_funnel_equals_the_one_computed_in_python(
    wb: Workbench, sent_events: list[StoryEvent], steps: list[str], hours: int
) -> None:
    names = [f"story:{step}" for step in steps]
    frame = wb.funnel(names, within=f"{hours}h", days=7)
    depths_by_contact = [
        depths(events, names, timedelta(hours=hours)) for events in events_by_contact(sent_events).values()
    ]
    durations = {
        step: [depth[step] for depth in depths_by_contact if step in depth] for step in range(1, len(steps) + 1)
    }
    assert frame["contacts"].to_list() == [len(durations[step]) for step in durations]
    assert frame["event"].to_list() == names
    for row in frame.iter_rows(named=True):
        assert row["of_first"] == pytest.approx(row["contacts"] / len(durations[1]))
        if row["step"] > 1 and row["contacts"]:
            assert row["median_seconds"] == pytest.approx(
                median(time.total_seconds() for time in durations[row["step"]])
            )
    assert 0 < frame["contacts"][1] < frame["contacts"][0]


def test_a_funnel_is_split_by_the_contact_and_by_the_first_step(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    names = ["story:visit", "story:deposit"]
    contacts = events_by_contact(sent_events)
    reached = {contact: depths(events, names, 2 * DAY) for contact, events in contacts.items()}
    plans = Counter(
        "pro" if contact.endswith(("1", "2")) else "free" for contact, depth in reached.items() if 2 in depth
    )
    frame = wb.funnel(names, within="2d", by="contact.plan", days=7)
    assert dict(frame.filter(pl.col("step") == 2).select("part", "contacts").iter_rows()) == plans
    first = {
        contact: next((event.payload["method"] for event in events if event.event == names[0]), None)
        for contact, events in contacts.items()
    }
    methods = Counter(first[contact] for contact, depth in reached.items() if 1 in depth)
    frame = wb.funnel(names, within="2d", by="method", days=7)
    assert dict(frame.filter(pl.col("step") == 1).select("part", "contacts").iter_rows()) == methods


def test_retention_by_day(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    frame = wb.retention("story:signup", "story:trade", every="day", periods=5, days=8)
    cohorts: dict[datetime, set[str]] = defaultdict(set)
    traded = defaultdict(set)
    for contact, events in events_by_contact(sent_events).items():
        starts = [event.at for event in events if event.event == "story:signup"]
        if starts:
            cohorts[midnight(starts[0])].add(contact)
        for event in events:
            if event.event == "story:trade" and starts and event.at >= starts[0]:
                traded[midnight(event.at)].add(contact)
    wanted = {
        (cohort, number): len(contacts & traded[cohort + number * DAY])
        for cohort, contacts in cohorts.items()
        for number in range(6)
        if cohort + number * DAY < datetime.now(UTC)
    }
    assert {(row["cohort"], row["number"]): row["contacts"] for row in frame.iter_rows(named=True)} == wanted
    assert {row["cohort"]: row["size"] for row in frame.iter_rows(named=True)} == {
        at: len(contacts) for at, contacts in cohorts.items()
    }
    assert all(
        row["complete"] == (row["cohort"] + row["number"] * DAY < MIDNIGHT) for row in frame.iter_rows(named=True)
    )


def test_a_day_that_the_period_cuts_is_not_complete(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    def complete(**period: Any) -> list[bool]:
        return wb.active_users(every="day", **period)["complete"].to_list()  # type: ignore[no-any-return]

    assert complete(since=MIDNIGHT - 3 * DAY, until=MIDNIGHT - DAY) == [True, True]
    assert complete(since=MIDNIGHT - 2.5 * DAY, until=MIDNIGHT - 0.5 * DAY) == [False, True, False]
    days = wb.active_users(every="day", days=2).chart().to_dict()["datasets"].values()
    assert [row["dashed"] for rows in days for row in rows if row["group"] == "Active"] == [True, True, True]
    view = wb.active_users(every="day", since=MIDNIGHT - 2.5 * DAY, until=MIDNIGHT - DAY).view
    assert view is not None
    assert [row[-1] for row in view.rows] == ["in part", ""]


def test_a_cohort_that_the_period_cuts_is_not_complete(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    def complete(**period: Any) -> dict[tuple[int, int], bool]:
        """Return whether each period is complete, by the days from its cohort to today and its number."""
        frames = [
            wb.retention("story:visit", every="day", **period),
            wb.cohorts("story:visit", "story:deposit", every="day", **period),
        ]
        first, second = (
            {
                ((MIDNIGHT - cohort).days, number): complete
                for cohort, number, complete in frame.select("cohort", "number", "complete").iter_rows()
            }
            for frame in frames
        )
        assert first == second
        return first

    cut = complete(since=MIDNIGHT - 3.5 * DAY, until=MIDNIGHT - 1.5 * DAY)
    assert cut == {(4, 0): False, (4, 1): False, (4, 2): False, (3, 0): True, (3, 1): False, (2, 0): False}
    by_default = complete(periods=2)
    assert {key: by_default[key] for key in by_default if key[0] == 2} == {(2, 0): True, (2, 1): True, (2, 2): False}


def test_reports_are_grouped_by_the_segments_of_contacts(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    wb.segments.define("story-pro", sql="SELECT id AS contact_id FROM contacts WHERE metadata ->> 'plan' = 'pro'")
    wb.segments.define("story-all", sql="SELECT id AS contact_id FROM contacts WHERE external_id LIKE 'story-%'")
    for name in ("story-pro", "story-all"):
        wb.segments[name].refresh()
    deposits = Counter(event.contact for event in sent_events if event.event == "story:deposit")
    plans = sum(count for contact, count in deposits.items() if contact.endswith(("1", "2")))
    frame = wb.revenue("story:deposit", "amount", by="contact.segments", days=8)
    assert dict(frame.select("part", "events").iter_rows()) == {"story-pro": plans, "story-all": deposits.total()}
    names = ["story:visit", "story:deposit"]
    frame = wb.funnel(names, within="2d", by="contact.segments", days=7)
    parts = {part: list(rows["contacts"]) for (part,), rows in frame.group_by("part")}
    assert parts["story-all"] == wb.funnel(names, within="2d", days=7, segment="story-all")["contacts"].to_list()
    assert parts["story-pro"] == wb.funnel(names, within="2d", days=7, segment="story-pro")["contacts"].to_list()


def test_cohorts_sum_the_values_of_their_contacts(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    frame = wb.cohorts("story:visit", "story:deposit", value="amount", every="day", periods=7, days=8)
    began = {
        contact: next((event.at for event in events if event.event == "story:visit"), None)
        for contact, events in events_by_contact(sent_events).items()
    }
    total = sum(
        event.payload["amount"]
        for event in sent_events
        if event.event == "story:deposit" and isinstance(event.payload["amount"], int | float)
        if (start := began[event.contact]) is not None and event.at >= start
    )
    assert frame["total"].sum() == pytest.approx(total)
    last = frame.group_by("cohort").agg(pl.col("so_far").last(), pl.col("size").first())
    assert (last["so_far"] * last["size"]).sum() == pytest.approx(total)


def test_active_users_by_day(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    frame = wb.active_users("story:visit", every="day", days=8)
    visited: dict[datetime, set[str]] = defaultdict(set)
    for event in sent_events:
        if event.event == "story:visit":
            visited[midnight(event.at)].add(event.contact)
    before: set[str] = set()
    for row in frame.iter_rows(named=True):
        contacts = visited[row["at"]]
        assert (row["contacts"], row["new"], row["stayed"]) == (
            len(contacts),
            len(contacts - before),
            len(contacts & visited[row["at"] - DAY]),
        )
        before |= contacts
    assert frame.height == 9


def test_paths_after_the_first_event(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    frame = wb.paths("story:signup", steps=3, within="1d", limit=1_000, days=8)
    ways: Counter[tuple[str, ...]] = Counter()
    for events in events_by_contact(sent_events).values():
        starts = [event.at for event in events if event.event == "story:signup"]
        if not starts:
            continue
        path: list[str] = []
        for event in events:
            if starts[0] <= event.at <= starts[0] + DAY and (not path or path[-1] != event.event):
                path.append(event.event)
        ways[tuple(path[:3])] += 1
    assert {tuple(path): contacts for path, contacts in frame.select("path", "contacts").iter_rows()} == ways
    assert frame["share"].sum() == pytest.approx(1)


def test_revenue_by_day(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    since = MIDNIGHT - 4 * DAY + DAY / 2
    deposits = [event for event in sent_events if event.event == "story:deposit" and event.at >= since]
    totals: dict[datetime, float] = defaultdict(float)
    for event in deposits:
        amount = event.payload["amount"]
        totals[midnight(event.at)] += amount if isinstance(amount, int | float) else 0
    frame = wb.revenue("story:deposit", "amount", every="day", since=since)
    assert {at: float(total or 0) for at, total in frame.select("at", "total").iter_rows()} == totals
    assert frame["at"].is_sorted()
    cut = totals.keys() & {MIDNIGHT - 4 * DAY, MIDNIGHT}
    assert set(frame.filter(~pl.col("complete"))["at"]) == cut
    parts = wb.revenue("story:deposit", "amount", by="method", every="day", since=since)
    assert parts.group_by("at", maintain_order=True).agg(pl.col("events").sum())["events"].equals(frame["events"])
    assert '"strokeDash"' in parts.chart().to_json()
    assert "in part" in parts._repr_html_()


def test_segments_are_compared(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    contacts = wb.sql("SELECT id AS contact_id, external_id FROM contacts WHERE external_id LIKE 'story-%'")
    wb.audience(contacts.filter(pl.col("external_id") < "story-2"), name="story-few")
    wb.audience(contacts, name="story-whole")
    both = ["story-few", "story-whole"]
    for ask in (
        lambda **of: wb.funnel(["story:visit", "story:signup"], **of),
        lambda **of: wb.active_users("story:visit", **of),
        lambda **of: wb.retention("story:visit", every="day", periods=3, **of),
        lambda **of: wb.cohorts("story:visit", "story:deposit", **of),
        lambda **of: wb.revenue("story:deposit", "amount", by="contact.plan", every="day", **of),
        lambda **of: wb.paths("story:signup", **of),
        lambda **of: wb.time_to_convert("story:signup", "story:deposit", **of),
    ):
        compared = ask(segments=both)
        assert compared["segment"].unique(maintain_order=True).to_list() == both
        for name in both:
            assert compared.filter(pl.col("segment") == name).drop("segment").rows() == ask(segment=name).rows()
        assert [part["title"] for part in compared.chart().to_dict()["vconcat"]] == both
        assert "data:image/svg+xml" in compared._repr_html_()
    with pytest.raises(NotFoundError):
        wb.active_users(segments=["story-few", "story-nobody"])


def test_revenue_by_a_property(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    frame = wb.revenue("story:deposit", "amount", by="method", days=8)
    for part in ("card", "wire"):
        events = [event for event in sent_events if event.event == "story:deposit" and event.payload["method"] == part]
        amounts = [event.payload["amount"] for event in events if isinstance(event.payload["amount"], int | float)]
        (row,) = frame.filter(pl.col("part") == part).iter_rows(named=True)
        assert (row["events"], float(row["total"]), row["median"]) == (len(events), sum(amounts), median(amounts))
        assert row["contacts"] == len({event.contact for event in events})
    (everything,) = wb.revenue("story:deposit", "amount", days=8).iter_rows(named=True)
    assert everything["events"] == frame["events"].sum()


def test_values_that_are_not_numbers_and_keys_with_dots(wb: Workbench) -> None:
    name = "absurd:paid"
    amounts: list[Any] = [Decimal("1e300"), Decimal("1e-300"), Decimal("-1e24"), "12abc", None, 5, Decimal("2.50")]
    payloads = [{"order.usd": amount, "order": {"kind": "a"}} for amount in amounts]
    payloads.append({"order": {"usd": 10, "kind": "b"}, "order.kind": "a"})
    wb.events.send_many(
        {"event": name, "contact": {"externalId": "absurd"}, "payload": payload} for payload in payloads
    )
    (row,) = wb.revenue(name, "order.usd", by="order.kind", days=1).iter_rows(named=True)
    assert (row["part"], row["events"], row["total"], row["largest"]) == ("a", 8, Decimal("17.5"), 10)
    (cohort,) = wb.cohorts(name, name, value="order.usd", every="month", periods=1, days=1)["total"]
    assert cohort == 17.5


def test_funnel_steps_without_contacts_have_rows(wb: Workbench) -> None:
    frame = wb.funnel(["nobody:did", "nor:this"])
    assert frame.select("step", "contacts", "of_first").rows() == [(1, 0, None), (2, 0, None)]
    assert "0" in frame._repr_html_()


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda wb: wb.funnel(["story:visit", "story:signp"]), "last 30 days; did you mean 'story:signup'?"),
        (lambda wb: wb.retention("story:visits"), "did you mean 'story:visit'?"),
        (lambda wb: wb.retention("story:visit", "story:trad"), "did you mean 'story:trade'?"),
        (lambda wb: wb.cohorts("story:visit", "story:trad"), "did you mean 'story:trade'?"),
        (lambda wb: wb.time_to_convert("story:visit", "story:trad"), "did you mean 'story:trade'?"),
        (lambda wb: wb.revenue("story:deposit", "amont"), "never seen in story:deposit: did you mean 'amount'?"),
        (lambda wb: wb.revenue("story:deposit", "method"), "'method' in story:deposit was never a number, but a text"),
        (lambda wb: wb.revenue("story:deposit", "amount", by="methd"), "did you mean 'method'?"),
    ],
)  # fmt: skip
def test_a_misspelled_name_causes_a_warning(
    wb: Workbench, sent_events: list[StoryEvent], ask: Any, expected: str
) -> None:
    report = ask(wb)
    (warning,) = report.view.warnings
    assert warning.endswith(expected)
    assert warning in str(report)
    assert "Warning:" in report._repr_html_()


def test_correct_names_cause_no_warning(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    for report in (wb.funnel(["story:visit", "story:signup"]), wb.revenue("story:deposit", "amount"), wb.paths()):
        assert report.view is not None
        assert not report.view.warnings
    alone = Workbench(wb.url, "wb_nobody")
    assert name_warnings(alone._connection, ["story:vist"]) == []


@pytest.mark.parametrize(
    ("every", "until", "since"),
    [
        ("day", "2026-07-02T12:00:00+02:00", "2026-06-26"),
        ("day", "2026-07-02", "2026-06-25"),
        ("week", "2026-07-02", "2026-05-18"),
        ("week", "2026-06-29", "2026-05-11"),
        ("month", "2026-07-02", "2026-01-01"),
        ("month", "2026-07-01", "2025-12-01"),
    ],
)
def test_the_default_period_begins_with_a_whole_cohort(wb: Workbench, every: Any, until: str, since: str) -> None:
    for report in (
        wb.retention("story:visit", every=every, periods=6, until=until),
        wb.cohorts("story:visit", "story:trade", every=every, periods=6, until=until),
    ):
        assert report.params is not None
        assert report.params["since"] == f"{since}T00:00:00+00:00"
    weeks = wb.retention("story:visit", every="week", periods=1)
    assert weeks.params is not None
    assert weeks.params["since"] == (MIDNIGHT - (MIDNIGHT.weekday() + 7) * DAY).isoformat()
    assert weeks.query_hash == wb.retention("story:visit", every="week", periods=1).query_hash
    again = wb.retention("story:visit", every="week", periods=1, as_of=weeks)
    assert again.params is not None
    assert (again.params["since"], again.rows()) == (weeks.params["since"], weeks.rows())


def test_time_to_convert(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    frame = wb.time_to_convert("story:signup", "story:trade", within="3d", days=8)
    spans = []
    started = 0
    for events in events_by_contact(sent_events).values():
        start = next((event.at for event in events if event.event == "story:signup"), None)
        started += start is not None
        if start is not None:
            spans += [event.at - start for event in events if event.event == "story:trade" and event.at > start][:1]
    for row in frame.iter_rows(named=True):
        after, within = timedelta(seconds=row["after_seconds"]), timedelta(seconds=row["within_seconds"])
        assert row["contacts"] == sum(after < span <= within for span in spans)
    assert frame["share_so_far"][-1] == pytest.approx(sum(span <= 3 * DAY for span in spans) / started)


def test_message_performance_against_a_goal(wb: Workbench) -> None:
    name = "report-messages"
    automation = wb.automation(name).on(f"{name}:begin").send_inapp(title="Hi", body="there")
    automation.publish()
    for number in range(3):
        receipt = wb.events.send(f"{name}:begin", wallet_address=f"0x{number:040x}")
        automation.wait_for_entry(receipt)
    wb.events.send(f"{name}:goal", wallet_address=f"0x{1:040x}")
    frame = wb.message_performance(f"{name}:goal", within="1d", days=1)
    (row,) = frame.filter(pl.col("automation") == name).iter_rows(named=True)
    assert (row["messages"], row["sent"], row["contacts"], row["converted"]) == (3, 3, 3, 1)
    assert row["rate"] == pytest.approx(1 / 3)


def test_every_report_has_a_chart_and_a_repeatable_query(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    answers = [
        wb.funnel(["story:visit", "story:trade"], days=8),
        wb.retention("story:visit", every="day", days=8),
        wb.cohorts("story:visit", "story:trade", every="day", days=8),
        wb.active_users(days=8),
        wb.paths(days=8),
        wb.revenue("story:deposit", "amount", days=8),
        wb.time_to_convert("story:visit", "story:trade", days=8),
        wb.message_performance(days=8),
    ]
    for answer in answers:
        shown = answer._repr_html_()
        assert "data:image/svg+xml;base64," in shown
        assert "<summary>SQL, as of 20" in shown
        assert wb.sql(answer.statement, **answer.params).columns == answer.columns


def test_a_period_between_two_moments(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    since, until = MIDNIGHT - 3 * DAY, MIDNIGHT - 2 * DAY
    frame = wb.active_users("story:visit", since=since, until=until)
    contacts = {event.contact for event in sent_events if event.event == "story:visit" and since <= event.at < until}
    assert frame["contacts"].sum() == len(contacts)
    assert (
        wb.active_users("story:visit", since=since.date(), until=f"{until:%Y-%m-%d}")["contacts"].to_list()
        == frame["contacts"].to_list()
    )


def test_a_contact_is_new_only_once_also_before_the_period(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    visits = sorted((event.at, event.contact) for event in sent_events if event.event == "story:visit")
    first = {contact: at for at, contact in reversed(visits)}
    since = MIDNIGHT - 3 * DAY
    new = sum(at >= since for at in first.values())
    assert 0 < new < len({contact for at, contact in visits if at >= since})
    assert wb.active_users("story:visit", since=since)["new"].sum() == new
    for report in (
        wb.retention("story:visit", every="day", since=since),
        wb.cohorts("story:visit", "story:deposit", every="day", since=since),
    ):
        assert report.filter(pl.col("number") == 0)["size"].sum() == new


@pytest.mark.parametrize("event", ["story:visit", None])
def test_a_contact_returns_also_in_the_first_periods(
    wb: Workbench, sent_events: list[StoryEvent], event: str | None
) -> None:
    since, contacts = MIDNIGHT - 3.5 * DAY, "SELECT id AS contact_id FROM contacts WHERE external_id LIKE 'story-%'"
    wb.audience(wb.sql(contacts), name="story-returning")
    frame = wb.active_users(event, since=since, segment="story-returning")
    days = {
        day: {e.contact for e in sent_events if event in (None, e.event) and midnight(e.at) == day}
        for day in (MIDNIGHT - number * DAY for number in range(6))
    }
    first = {e.contact for e in sent_events if event in (None, e.event) and since <= e.at < MIDNIGHT - 3 * DAY}
    before = {e.contact for e in sent_events if event in (None, e.event) and e.at < since}
    assert frame["contacts"].to_list()[:2] == [len(first), len(days[MIDNIGHT - 3 * DAY])]
    assert frame["new"].to_list()[0] == len(first - before)
    assert frame["stayed"].to_list()[:2] == [
        len(first & days[MIDNIGHT - 5 * DAY]),
        len(days[MIDNIGHT - 4 * DAY] & days[MIDNIGHT - 3 * DAY]),
    ]
    assert 0 < frame["stayed"][0] < frame["contacts"][0]


def test_days_count_back_from_the_end(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    whole = wb.active_users("story:visit", since=MIDNIGHT - 3 * DAY, until=MIDNIGHT - DAY)
    assert wb.active_users("story:visit", days=2, until=MIDNIGHT - DAY).rows() == whole.rows()
    with pytest.raises(InvalidArgumentError, match="ends before it begins"):
        wb.active_users("story:visit", since=MIDNIGHT, until=MIDNIGHT - DAY)


def test_a_period_ends_before_the_next_one_begins(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    frame = wb.active_users("story:visit", since=MIDNIGHT - 3 * DAY, until=MIDNIGHT - DAY)
    assert frame["at"].to_list() == [MIDNIGHT - 3 * DAY, MIDNIGHT - 2 * DAY]


def test_a_report_as_of_a_watermark_ignores_later_events(wb: Workbench) -> None:
    def reports(**options: Any) -> list[Any]:
        return [
            wb.funnel(["past:begin", "past:end"], **options),
            wb.retention("past:begin", every="day", periods=3, **options),
            wb.cohorts("past:begin", "past:end", value="usd", every="day", periods=3, **options),
            wb.active_users("past:end", **options),
            wb.paths("past:begin", **options),
            wb.revenue("past:end", "usd", by="method", **options),
            wb.time_to_convert("past:begin", "past:end", **options),
        ]

    def send_events(contact: str) -> None:
        for event in ("past:begin", "past:end"):
            wb.events.send(event, external_id=contact, payload={"usd": 5, "method": "card"})

    send_events("past-1")
    before = reports(days=3)
    send_events("past-2")
    for first, now, again in zip(before, reports(days=3), reports(days=3, as_of=before[0]), strict=True):
        assert first.watermark != now.watermark
        assert again.to_dicts() == first.to_dicts() != now.to_dicts()
        assert wb.sql(first.statement, as_of=first.watermark, **first.params).query_hash == first.query_hash
    shown = before[0]._repr_html_()
    assert f"SQL, as of {before[0].watermark[:19].replace('T', ' ')} (UTC)" in shown
    assert before[0].query_hash in shown


def test_tables_without_history_reject_as_of(wb: Workbench, sent_events: list[StoryEvent]) -> None:
    watermark = wb.paths(days=1).watermark
    for ask in (
        lambda: wb.message_performance(as_of=watermark),
        lambda: wb.revenue("story:deposit", "amount", by="contact.plan", as_of=watermark),
    ):
        with pytest.raises(SqlError, match="asOf"):
            ask()


def test_an_empty_report_shows_a_message(wb: Workbench) -> None:
    assert "No data in this period" in wb.retention("story:never")._repr_html_()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda wb: wb.funnel(["signup"]), "2 to 12 steps"),
        (lambda wb: wb.funnel("signup"), "list of event names"),
        (lambda wb: wb.funnel(["a", "b"], within="soon"), "within='soon' is not a duration"),
        (lambda wb: wb.retention("a", every="fortnight"), "every='fortnight' must be one of day, week, month"),
        (lambda wb: wb.active_users(days=0), "days=0"),
        (lambda wb: wb.active_users(segments=["whales"]), "must name two or more different segments"),
        (lambda wb: wb.active_users(segments=3), "segments=3 must name two or more different segments"),
        (lambda wb: wb.active_users(since=datetime(2026, 1, 1)), "since=.* needs a time zone"),  # noqa: DTZ001
        (lambda wb: wb.active_users(segments=["a", "b"], segment="a"), "pass segment= or segments=, not both"),
        (lambda wb: wb.active_users(days=3, since="2026-01-01"), "not both"),
        (lambda wb: wb.active_users(as_of="yesterday"), "as_of='yesterday' is not a watermark"),
        (lambda wb: wb.active_users(since="yesterday"), "since='yesterday' is not a date or time"),
        (lambda wb: wb.revenue("a", "b..c"), "is not a path"),
        (
            lambda wb: wb.revenue("story:deposit", "amount", by="contact.pln"),
            "none of up to 10,000 contacts .*; did you mean 'plan'?",
        ),
        (lambda wb: wb.revenue("story:deposit", "amount", by="contact.segment"), "did you mean 'segments'?"),
    ],
)
def test_invalid_arguments_are_explained(wb: Workbench, sent_events: list[StoryEvent], call: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call(wb)


def test_a_report_accepts_an_attribute_that_only_other_contacts_have(
    wb: Workbench, sent_events: list[StoryEvent]
) -> None:
    attributes = {"utm.source": "mail"} | {f"extra{number:02}": 1 for number in range(12)}
    wb.events.send("other:event", external_id="other", attributes=attributes)
    assert wb.revenue("story:deposit", "amount", by="contact.utm.source", days=8)["part"].to_list() == [None]
    with pytest.raises(InvalidArgumentError, match=r"; contacts have: (\w+, ){10}…$"):
        wb.revenue("story:deposit", "amount", by="contact.zzz", days=8)
    assert wb.revenue("story:never", "amount", by="contact.zzz", days=8).is_empty()


def midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)
