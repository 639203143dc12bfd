"""The ready-made questions, against a few hundred events whose answers are counted out by hand in Python."""

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
from workbench import InvalidArgumentError, SqlError, Workbench
from workbench.reports import name_warnings

NAMES = ("visit", "signup", "deposit", "trade")
DAY = timedelta(days=1)
MIDNIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


class Happened(msgspec.Struct, frozen=True):
    who: str
    event: str
    at: datetime
    payload: dict[str, Any]


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


@pytest.fixture(scope="module")
def story(wb: Workbench) -> list[Happened]:
    """Four hundred events of thirty contacts in the last six days, none at the same moment."""
    chance = random.Random(20261121)
    moments = chance.sample(range(6 * 24 * 3600 - 7200), 400)
    people = [f"story-{number}" for number in range(30)]
    events = [
        Happened(
            chance.choice(people),
            f"story:{chance.choice(NAMES)}",
            MIDNIGHT - 5 * DAY + timedelta(seconds=second) - timedelta(hours=2),
            {"amount": chance.choice([5, 10.5, "7", None]), "method": chance.choice(["card", "wire"])},
        )
        for second in moments
    ]
    events = [each for each in events if each.at < datetime.now(UTC)]
    receipts = wb.events.send_many(
        [
            {
                "event": each.event,
                "contact": {"externalId": each.who},
                "attributes": {"plan": "pro" if each.who.endswith(("1", "2")) else "free"},
                "payload": each.payload,
                "occurredAt": each.at.isoformat(),
            }
            for each in events
        ]
    )
    assert not receipts.failed
    return sorted(events, key=lambda each: each.at)


def by_person(story: list[Happened]) -> dict[str, list[Happened]]:
    people: dict[str, list[Happened]] = defaultdict(list)
    for each in story:
        people[each.who].append(each)
    return people


def depths(events: list[Happened], steps: list[str], within: timedelta) -> dict[int, timedelta]:
    """Return the least time to each step over every beginning and every way, by trying them all."""
    best: dict[int, timedelta] = {}

    def follow(index: int, step: int, begun: datetime) -> None:
        took = events[index].at - begun
        best[step] = min(took, best.get(step, took))
        if step == len(steps):
            return
        for later in range(index + 1, len(events)):
            if events[later].at - begun > within:
                return
            if events[later].event == steps[step]:
                follow(later, step + 1, begun)

    for index, each in enumerate(events):
        if each.event == steps[0]:
            follow(index, 1, each.at)
    return best


@pytest.mark.parametrize("steps", [["visit", "signup", "deposit"], ["deposit", "deposit", "trade", "deposit"]])
@pytest.mark.parametrize("hours", [12, 48])
def test_a_funnel_counts_every_way(wb: Workbench, story: list[Happened], steps: list[str], hours: int) -> None:
    names = [f"story:{step}" for step in steps]
    frame = wb.funnel(names, within=f"{hours}h", days=7)
    people = [depths(events, names, timedelta(hours=hours)) for events in by_person(story).values()]
    took = {step: [each[step] for each in people if step in each] for step in range(1, len(steps) + 1)}
    assert frame["contacts"].to_list() == [len(took[step]) for step in took]
    assert frame["event"].to_list() == names
    for row in frame.iter_rows(named=True):
        assert row["of_first"] == pytest.approx(row["contacts"] / len(took[1]))
        if row["step"] > 1 and row["contacts"]:
            assert row["median_seconds"] == pytest.approx(median(each.total_seconds() for each in took[row["step"]]))
    assert 0 < frame["contacts"][1] < frame["contacts"][0]


def test_a_funnel_is_split_by_the_contact_and_by_the_first_step(wb: Workbench, story: list[Happened]) -> None:
    names = ["story:visit", "story:deposit"]
    people = by_person(story)
    reached = {who: depths(events, names, 2 * DAY) for who, events in people.items()}
    plans = Counter("pro" if who.endswith(("1", "2")) else "free" for who, each in reached.items() if 2 in each)
    frame = wb.funnel(names, within="2d", by="contact.plan", days=7)
    assert dict(frame.filter(pl.col("step") == 2).select("part", "contacts").iter_rows()) == plans
    first = {
        who: next((each.payload["method"] for each in events if each.event == names[0]), None)
        for who, events in people.items()
    }
    methods = Counter(first[who] for who, each in reached.items() if 1 in each)
    frame = wb.funnel(names, within="2d", by="method", days=7)
    assert dict(frame.filter(pl.col("step") == 1).select("part", "contacts").iter_rows()) == methods


def test_retention_by_day(wb: Workbench, story: list[Happened]) -> None:
    frame = wb.retention("story:signup", "story:trade", every="day", periods=5, days=8)
    cohorts: dict[datetime, set[str]] = defaultdict(set)
    traded = defaultdict(set)
    for who, events in by_person(story).items():
        starts = [each.at for each in events if each.event == "story:signup"]
        if starts:
            cohorts[midnight(starts[0])].add(who)
        for each in events:
            if each.event == "story:trade" and starts and each.at >= starts[0]:
                traded[midnight(each.at)].add(who)
    wanted = {
        (cohort, number): len(people & traded[cohort + number * DAY])
        for cohort, people in cohorts.items()
        for number in range(6)
        if cohort + number * DAY < datetime.now(UTC)
    }
    assert {(row["cohort"], row["number"]): row["contacts"] for row in frame.iter_rows(named=True)} == wanted
    assert {row["cohort"]: row["size"] for row in frame.iter_rows(named=True)} == {
        at: len(people) for at, people in cohorts.items()
    }


def test_cohorts_add_up_what_their_contacts_brought(wb: Workbench, story: list[Happened]) -> None:
    frame = wb.cohorts("story:visit", "story:deposit", value="amount", every="day", periods=7, days=8)
    began = {
        who: next((each.at for each in events if each.event == "story:visit"), None)
        for who, events in by_person(story).items()
    }
    total = sum(
        each.payload["amount"]
        for each in story
        if each.event == "story:deposit" and isinstance(each.payload["amount"], int | float)
        if (start := began[each.who]) is not None and each.at >= start
    )
    assert frame["total"].sum() == pytest.approx(total)
    last = frame.group_by("cohort").agg(pl.col("so_far").last(), pl.col("size").first())
    assert (last["so_far"] * last["size"]).sum() == pytest.approx(total)


def test_active_users_by_day(wb: Workbench, story: list[Happened]) -> None:
    frame = wb.active_users("story:visit", every="day", days=8)
    seen: dict[datetime, set[str]] = defaultdict(set)
    for each in story:
        if each.event == "story:visit":
            seen[midnight(each.at)].add(each.who)
    before: set[str] = set()
    for row in frame.iter_rows(named=True):
        people = seen[row["at"]]
        assert (row["contacts"], row["new"], row["stayed"]) == (
            len(people),
            len(people - before),
            len(people & seen[row["at"] - DAY]),
        )
        before |= people
    assert frame.height == 9


def test_paths_after_the_first_event(wb: Workbench, story: list[Happened]) -> None:
    frame = wb.paths("story:signup", steps=3, within="1d", limit=1_000, days=8)
    ways: Counter[tuple[str, ...]] = Counter()
    for events in by_person(story).values():
        starts = [each.at for each in events if each.event == "story:signup"]
        if not starts:
            continue
        path: list[str] = []
        for each in events:
            if starts[0] <= each.at <= starts[0] + DAY and (not path or path[-1] != each.event):
                path.append(each.event)
        ways[tuple(path[:3])] += 1
    assert {tuple(path): contacts for path, contacts in frame.select("path", "contacts").iter_rows()} == ways
    assert frame["share"].sum() == pytest.approx(1)


def test_revenue_by_a_property(wb: Workbench, story: list[Happened]) -> None:
    frame = wb.revenue("story:deposit", "amount", by="method", days=8)
    for part in ("card", "wire"):
        events = [each for each in story if each.event == "story:deposit" and each.payload["method"] == part]
        amounts = [each.payload["amount"] for each in events if isinstance(each.payload["amount"], int | float)]
        (row,) = frame.filter(pl.col("part") == part).iter_rows(named=True)
        assert (row["events"], float(row["total"]), row["median"]) == (len(events), sum(amounts), median(amounts))
        assert row["contacts"] == len({each.who for each in events})
    (everything,) = wb.revenue("story:deposit", "amount", days=8).iter_rows(named=True)
    assert everything["events"] == frame["events"].sum()


def test_numbers_that_are_none_and_keys_with_dots(wb: Workbench) -> None:
    name = "absurd:paid"
    amounts: list[Any] = [Decimal("1e300"), Decimal("1e-300"), Decimal("-1e24"), "12abc", None, 5, Decimal("2.50")]
    payloads = [{"order.usd": amount, "order": {"kind": "a"}} for amount in amounts]
    payloads.append({"order": {"usd": 10, "kind": "b"}, "order.kind": "a"})
    wb.events.send_many({"event": name, "contact": {"externalId": "absurd"}, "payload": each} for each in payloads)
    (row,) = wb.revenue(name, "order.usd", by="order.kind", days=1).iter_rows(named=True)
    assert (row["part"], row["events"], row["total"], row["largest"]) == ("a", 8, Decimal("17.5"), 10)
    (cohort,) = wb.cohorts(name, name, value="order.usd", every="month", periods=1, days=1)["total"]
    assert cohort == 17.5


def test_steps_that_nobody_took_have_their_rows(wb: Workbench) -> None:
    frame = wb.funnel(["nobody:did", "nor:this"])
    assert frame.select("step", "contacts", "of_first").rows() == [(1, 0, None), (2, 0, None)]
    assert "0" in frame._repr_html_()


@pytest.mark.parametrize(
    ("ask", "doubt"),
    [
        (lambda wb: wb.funnel(["story:visit", "story:signp"]), "'story:signp' was received in the last 30 days; did you mean 'story:signup'?"),
        (lambda wb: wb.retention("story:visits"), "did you mean 'story:visit'?"),
        (lambda wb: wb.retention("story:visit", "story:trad"), "did you mean 'story:trade'?"),
        (lambda wb: wb.cohorts("story:visit", "story:trad"), "did you mean 'story:trade'?"),
        (lambda wb: wb.time_to_convert("story:visit", "story:trad"), "did you mean 'story:trade'?"),
        (lambda wb: wb.revenue("story:deposit", "amont"), "'amont' was never seen in story:deposit: did you mean 'amount'?"),
        (lambda wb: wb.revenue("story:deposit", "method"), "'method' in story:deposit was never a number, but text"),
        (lambda wb: wb.revenue("story:deposit", "amount", by="methd"), "did you mean 'method'?"),
    ],
)  # fmt: skip
def test_a_name_that_may_be_wrong_is_doubted(wb: Workbench, story: list[Happened], ask: Any, doubt: str) -> None:
    report = ask(wb)
    (said,) = report.view.warnings
    assert said.endswith(doubt)
    assert said in str(report)
    assert "Warning:" in report._repr_html_()


def test_right_names_are_not_doubted(wb: Workbench, story: list[Happened]) -> None:
    for report in (wb.funnel(["story:visit", "story:signup"]), wb.revenue("story:deposit", "amount"), wb.paths()):
        assert report.view is not None
        assert not report.view.warnings
    alone = Workbench(wb.url, "wb_nobody")
    assert name_warnings(alone._connection, ["story:vist"]) == []


def test_cohorts_have_room_for_their_periods(wb: Workbench) -> None:
    weeks = wb.retention("story:visit", every="week", periods=8)
    months = wb.cohorts("story:visit", "story:trade", every="month", periods=6, until="2026-07-01")
    assert weeks.params is not None
    assert months.params is not None
    assert datetime.now(UTC) - datetime.fromisoformat(weeks.params["since"]) > 62 * DAY
    assert months.params["since"] < "2026-01-01"


def test_time_to_convert(wb: Workbench, story: list[Happened]) -> None:
    frame = wb.time_to_convert("story:signup", "story:trade", within="3d", days=8)
    spans = []
    started = 0
    for events in by_person(story).values():
        start = next((each.at for each in events if each.event == "story:signup"), None)
        started += start is not None
        if start is not None:
            spans += [each.at - start for each in events if each.event == "story:trade" and each.at > start][:1]
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


def test_every_answer_shows_its_picture_and_can_be_asked_again(wb: Workbench, story: list[Happened]) -> None:
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


def test_a_period_between_two_moments(wb: Workbench, story: list[Happened]) -> None:
    since, until = MIDNIGHT - 3 * DAY, MIDNIGHT - 2 * DAY
    frame = wb.active_users("story:visit", since=since, until=until)
    people = {each.who for each in story if each.event == "story:visit" and since <= each.at < until}
    assert frame["contacts"].sum() == len(people)
    assert (
        wb.active_users("story:visit", since=since.date(), until=f"{until:%Y-%m-%d}")["contacts"].to_list()
        == frame["contacts"].to_list()
    )


def test_days_count_back_from_the_end(wb: Workbench, story: list[Happened]) -> None:
    whole = wb.active_users("story:visit", since=MIDNIGHT - 3 * DAY, until=MIDNIGHT - DAY)
    assert wb.active_users("story:visit", days=2, until=MIDNIGHT - DAY).rows() == whole.rows()
    with pytest.raises(InvalidArgumentError, match="ends before it begins"):
        wb.active_users("story:visit", since=MIDNIGHT, until=MIDNIGHT - DAY)


def test_a_period_ends_before_the_next_one_begins(wb: Workbench, story: list[Happened]) -> None:
    frame = wb.active_users("story:visit", since=MIDNIGHT - 3 * DAY, until=MIDNIGHT - DAY)
    assert frame["at"].to_list() == [MIDNIGHT - 3 * DAY, MIDNIGHT - 2 * DAY]


def test_an_answer_is_had_again_whatever_came_since(wb: Workbench) -> None:
    def asked(**when: Any) -> list[Any]:
        return [
            wb.funnel(["past:begin", "past:end"], **when),
            wb.retention("past:begin", every="day", periods=3, **when),
            wb.cohorts("past:begin", "past:end", value="usd", every="day", periods=3, **when),
            wb.active_users("past:end", **when),
            wb.paths("past:begin", **when),
            wb.revenue("past:end", "usd", by="method", **when),
            wb.time_to_convert("past:begin", "past:end", **when),
        ]

    def came(who: str) -> None:
        for event in ("past:begin", "past:end"):
            wb.events.send(event, external_id=who, payload={"usd": 5, "method": "card"})

    came("past-1")
    before = asked(days=3)
    came("past-2")
    for first, now, again in zip(before, asked(days=3), asked(days=3, as_of=before[0]), strict=True):
        assert first.watermark != now.watermark
        assert again.to_dicts() == first.to_dicts() != now.to_dicts()
        assert wb.sql(first.statement, as_of=first.watermark, **first.params).query_hash == first.query_hash
    shown = before[0]._repr_html_()
    assert f"SQL, as of {before[0].watermark[:19].replace('T', ' ')} (UTC)" in shown
    assert before[0].query_hash in shown


def test_what_keeps_no_past_is_not_asked_of_an_earlier_moment(wb: Workbench, story: list[Happened]) -> None:
    watermark = wb.paths(days=1).watermark
    for ask in (
        lambda: wb.message_performance(as_of=watermark),
        lambda: wb.revenue("story:deposit", "amount", by="contact.plan", as_of=watermark),
    ):
        with pytest.raises(SqlError, match="asOf"):
            ask()


def test_nothing_found_is_said(wb: Workbench) -> None:
    assert "No data in this period" in wb.retention("story:never")._repr_html_()


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda wb: wb.funnel(["signup"]), "2 to 12 steps"),
        (lambda wb: wb.funnel("signup"), "list of event names"),
        (lambda wb: wb.funnel(["a", "b"], within="soon"), "within='soon' is not a duration"),
        (lambda wb: wb.retention("a", every="fortnight"), "every='fortnight' must be one of day, week, month"),
        (lambda wb: wb.active_users(days=0), "days=0"),
        (lambda wb: wb.active_users(days=3, since="2026-01-01"), "not both"),
        (lambda wb: wb.active_users(as_of="yesterday"), "as_of='yesterday' is not a watermark"),
        (lambda wb: wb.active_users(since="yesterday"), "since='yesterday' is not a date or time"),
        (lambda wb: wb.revenue("a", "b..c"), "is not a path"),
    ],
)
def test_a_question_that_cannot_be_asked_says_why(wb: Workbench, ask: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        ask(wb)


def midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)
