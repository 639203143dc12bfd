"""Who the demo organization's people are, and the market they trade in: drawn from the source of chance they are given.

All names are made up, all addresses are under example.com, example.net or example.org.

Sixty days of a trading product that does not exist, for the demo organization: the same for the same `now`.

About 2,000 people sign up, most only look around, some deposit and trade, a few do most of it; people and amounts are
drawn from one seeded source, so every picture of the demo can be told in words. All names are made up, all addresses
are under example.com, example.net or example.org. The import path writes it (`api/imports/importer.py`), nothing else.

The organization `demo` that `workbench up` prepares: its keys, kept in a private file, and its history.

The file is believed only as far as the database knows its keys, so a new database under an old data folder gets new ones.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TypeVarTuple

import msgspec

from api.auth import keys
from api.auth.key_format import KINDS, Kind
from api.auth.keys import session
from api.cli import database
from api.clock import from_us, to_us
from api.crypto import Keyring
from api.imports.errors import Rejects, default_rejects_path
from api.imports.formats import ReadOptions, find_sources
from api.imports.importer import import_history
from api.settings import Settings
from api.store.migrate import has_events
from workbench.language.codec import Json, encode

_Columns = TypeVarTuple("_Columns")
DAYS, PEOPLE = 60, 2_000
MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000
_WEEK = (1.0, 1.04, 1.06, 1.02, 0.96, 0.7, 0.74)  # Monday first
_HOURS = (2, 1, 1, 1, 1, 2, 4, 8, 10, 9, 8, 8, 10, 9, 8, 8, 9, 11, 14, 17, 18, 16, 10, 5)  # local time
_COUNTRIES = (  # code, language, hours ahead of UTC, share
    ("US", "en", -5, 24), ("DE", "de", 1, 14), ("GB", "en", 0, 12), ("BR", "pt", -3, 11), ("FR", "fr", 1, 8),
    ("NG", "en", 1, 8), ("IN", "en", 5, 8), ("JP", "ja", 9, 6), ("ES", "es", 1, 5), ("TR", "tr", 3, 4),
)  # fmt: skip
_DEVICES = (
    ("ios", "iOS 19.1", "iPhone 17", 34), ("android", "Android 16", "Pixel 10", 22),
    ("android", "Android 15", "Galaxy S25", 16), ("web", "macOS 26", "Safari", 12), ("web", "Windows 11", "Chrome", 16),
)  # fmt: skip
_SOURCES = (("organic", 38), ("ads", 24), ("referral", 18), ("social", 14), ("partner", 6))
ASSETS = {"BTC": 96_400.0, "ETH": 3_620.0, "SOL": 214.0, "LINK": 17.8, "DOGE": 0.21}  # first price in USD
_ADJECTIVES = ("amber", "brave", "calm", "dusty", "eager", "gentle", "icy", "jolly", "keen", "lunar", "mellow", "quiet")
_ANIMALS = ("otter", "heron", "lynx", "badger", "finch", "gecko", "ibis", "koala", "marmot", "newt", "raven", "wombat")
_DOMAINS = (("example.com", 62), ("example.org", 22), ("mail.example.net", 16))


class Habit(msgspec.Struct, frozen=True):
    """ReadOptions a kind of person behaves. `leaves`: chance per day to leave for good; money in USD, medians."""

    share: int
    sessions: float  # a day
    trades: float  # a session, once there is money
    leaves: float
    deposits: float  # chance per session to make the first deposit
    deposit: float
    trade: float


_HABITS = (
    Habit(share=54, sessions=0.9, trades=0.3, leaves=0.30, deposits=0.10, deposit=45, trade=18),  # looks around
    Habit(share=32, sessions=0.85, trades=0.8, leaves=0.022, deposits=0.34, deposit=160, trade=55),  # regular
    Habit(share=11, sessions=2.3, trades=1.9, leaves=0.007, deposits=0.6, deposit=620, trade=140),  # trader
    Habit(share=3, sessions=1.3, trades=1.7, leaves=0.005, deposits=0.65, deposit=14_000, trade=3_200),  # whale
)


class DemoContact(msgspec.Struct, frozen=True):
    """One contact to be. `knows` are the identifiers sent at sign-up; `wallet` may be connected only later."""

    habit: Habit
    signed_up_us: int
    country: tuple[str, str, int]
    device: tuple[str, str, str]
    source: str
    knows: dict[str, Json]
    wallet: str | None

    @property
    def contact(self) -> dict[str, Json]:
        """The identifiers the product's own systems send once a wallet is connected, which may be all they know."""
        return self.knows if self.wallet is None else {"walletAddress": self.wallet}


class Market(msgspec.Struct, frozen=True):
    """What all people live in: how lively each day is, and each asset's price on it."""

    first_us: int
    mood: list[float]
    prices: dict[str, list[float]]

    def price(self, asset: str, at_us: int) -> float:
        """Return the asset's price in USD on the day of a moment."""
        return self.prices[asset][min(max((at_us - self.first_us) // DAY, 0), DAYS)]


def open_market(first_us: int, chance: Random) -> Market:
    """Return prices and moods from a moment on, day by day."""
    weekday = from_us(first_us).weekday()
    mood = [_WEEK[(weekday + day) % 7] * chance.lognormvariate(0, 0.09) for day in range(DAYS + 1)]
    for day in (19, 20, 44):  # the days everybody talked about
        mood[day] *= 1.7
    prices = {asset: list(_walk(price, chance)) for asset, price in ASSETS.items()}
    return Market(first_us, mood, prices)


def _walk(price: float, chance: Random) -> Iterator[float]:
    for _ in range(DAYS + 1):
        yield price
        price *= math.exp(chance.gauss(0.001, 0.028))


def make_person(number: int, market: Market, chance: Random) -> DemoContact:
    """Return somebody who signs up on one of the days."""
    code, language, ahead = pick(_COUNTRIES, chance)
    platform, version, model = pick(_DEVICES, chance)
    launch = [(2.2 if day == 0 else 1.0) * math.exp(0.018 * day) for day in range(DAYS + 1)]
    day = chance.choices(range(DAYS + 1), [push * mood for push, mood in zip(launch, market.mood, strict=True)])[0]
    signed_up_us = max(moment_of_day(market, day, ahead, chance), market.first_us + chance.randrange(HOUR))
    knows, wallet = _identity(number, chance)
    return DemoContact(
        habit=chance.choices(_HABITS, [habit.share for habit in _HABITS])[0],
        signed_up_us=signed_up_us,
        country=(code, language, ahead),
        device=(platform, version, model),
        source=pick(_SOURCES, chance)[0],
        knows=knows,
        wallet=wallet,
    )


def _identity(number: int, chance: Random) -> tuple[dict[str, Json], str | None]:
    """Return what is known at sign-up and the wallet, if there is one: at once, later, or never."""
    email = f"{chance.choice(_ADJECTIVES)}.{chance.choice(_ANIMALS)}{number}@{pick(_DOMAINS, chance)[0]}"
    wallet = _wallet(chance)
    external_id = f"user_{100_000 + number * 7}"
    kind = chance.choices(
        ("wallet only", "email only", "account", "account and wallet", "all at once"), (21, 6, 27, 36, 10)
    )[0]
    match kind:
        case "wallet only":
            return {"walletAddress": wallet}, wallet
        case "email only":
            return {"email": email}, None
        case "account":
            return {"email": email, "externalId": external_id}, None
        case "account and wallet":
            return {"email": email, "externalId": external_id}, wallet
        case _:
            return {"email": email, "walletAddress": wallet, "externalId": external_id}, wallet


def _wallet(chance: Random) -> str:
    if chance.random() < 0.12:
        return "".join(chance.choices("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", k=44))
    return "0x" + "".join(chance.choice((c, c.upper())) for c in chance.randbytes(20).hex())


def moment_of_day(market: Market, day: int, ahead: int, chance: Random) -> int:
    """Return a likely moment of a day for somebody whose clock is so many hours ahead of UTC, in microseconds."""
    hour = chance.choices(range(24), _HOURS)[0] - ahead
    midnight_us = market.first_us // DAY * DAY + day * DAY
    return midnight_us + hour * HOUR + chance.randrange(HOUR)


def pick(rows: Sequence[tuple[*_Columns, int]], chance: Random) -> tuple[*_Columns]:
    """Return one of the rows without its last column, which is its share."""
    return chance.choices(rows, [row[-1] for row in rows])[0][:-1]


SEED = 20_260
_QUIET = 3 * MINUTE  # the newest event is a little older than `now`
_TIERS = (("platinum", 400_000.0), ("gold", 40_000.0), ("silver", 4_000.0))  # by volume traded, USD
_PLANS = (("plus", Decimal("9.99"), 70), ("pro", Decimal("29.99"), 30))


class DemoEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One line of the history, in the shape of the contract."""

    event: str
    contact: dict[str, Json]
    occurred_at: str
    payload: dict[str, Json] = {}
    attributes: dict[str, Json] = {}
    idempotency_key: str | None = None


def write_history(path: Path, now: datetime) -> int:
    """Write the history that ends at `now` to `path`, one event of the contract per line by time; return their number."""
    chance = Random(SEED)
    now_us = to_us(now)
    market = open_market(now_us - DAYS * DAY, chance)
    people = [make_person(number, market, chance) for number in range(PEOPLE)]
    newest = _text(now_us - _QUIET)
    happenings = [each for person in people for each in _Life(person, market, chance).events()]
    happenings += _referrals(people, chance)
    happenings = [each for each in happenings if each.occurred_at <= newest]
    happenings += _second_accounts(people, happenings, newest, chance)
    happenings.sort(key=lambda each: each.occurred_at)
    with path.open("wb") as file:
        file.writelines(encode(happening) + b"\n" for happening in happenings)
    return len(happenings)


class _Life:
    """What one person does from sign-up to the end of the history, in order of time."""

    def __init__(self, person: DemoContact, market: Market, chance: Random) -> None:
        self._person, self._market, self._chance = person, market, chance
        self._contact = person.knows
        self._verified = False
        self._deposits = 0
        self._balance = 0.0
        self._volume = 0.0
        self._tier = "bronze"
        self._renews_us: int | None = None
        self._plan: tuple[str, Decimal] = ("free", Decimal(0))

    def events(self) -> Iterator[DemoEvent]:
        """Yield the sign-up and what each session brings."""
        yield self._sign_up()
        for at_us in self._sessions():
            yield from self._renewal(at_us)
            yield from self._session(at_us)

    def _sessions(self) -> list[int]:
        person, market, chance = self._person, self._market, self._chance
        habit = person.habit
        first_day = (person.signed_up_us - market.first_us) // DAY
        keen = chance.lognormvariate(0, 0.35)
        moments = [person.signed_up_us + chance.randrange(2, 40) * MINUTE]
        for day in range(first_day, DAYS + 1):
            if day > first_day and chance.random() < habit.leaves:
                break
            count = _count(habit.sessions * keen * market.mood[day], chance)
            moments += [moment_of_day(market, day, person.country[2], chance) for _ in range(count)]
        return list(_apart(sorted(at_us for at_us in moments if at_us > person.signed_up_us)))

    def _sign_up(self) -> DemoEvent:
        person, chance = self._person, self._chance
        country, language, _ = person.country
        utm: dict[str, Json] = {"medium": person.source}
        if person.source in ("ads", "social"):
            utm["campaign"] = chance.choice(("autumn-launch", "zero-fees", "learn-and-earn"))
        attributes: dict[str, Json] = {"plan": "free", "tier": "bronze", "country": country, "language": language}
        if chance.random() < 0.7:
            attributes["marketingOptIn"] = chance.random() < 0.55
        return self._happening(
            "signup",
            person.signed_up_us,
            {"source": person.source, "utm": utm, "platform": person.device[0]},
            attributes,
        )

    def _session(self, at_us: int) -> Iterator[DemoEvent]:
        chance = self._chance
        yield self._app_open(at_us)
        for step in (
            self._connect,
            self._verify,
            self._deposit,
            self._trade,
            self._withdraw,
            self._subscribe,
            self._talk,
        ):
            at_us += chance.randrange(15, 150) * 1_000_000
            yield from step(at_us)

    def _app_open(self, at_us: int) -> DemoEvent:
        platform, version, model = self._person.device
        app = f"3.{(at_us - self._market.first_us) // (14 * DAY)}.{self._chance.randrange(3)}"
        payload: dict[str, Json] = {
            "platform": platform,
            "appVersion": app,
            "screen": self._chance.choice(("home", "home", "markets", "portfolio", "rewards")),
            "device": {"os": version, "model": model},
        }
        return self._happening("app_open", at_us, payload, {"appVersion": app} if self._chance.random() < 0.1 else {})

    def _connect(self, at_us: int) -> Iterator[DemoEvent]:
        wallet = self._person.wallet
        if wallet is None or self._contact is not self._person.knows or self._chance.random() < 0.3:
            return
        kind, chain = (
            ("phantom", None) if not wallet.startswith("0x") else ("metamask", self._chance.choice((1, 1, 8453)))
        )
        known = {key: value for key, value in self._person.knows.items() if key == "externalId"}
        both: dict[str, Json] = {**known, "walletAddress": wallet}
        yield self._happening("wallet_connected", at_us, {"wallet": {"kind": kind, "chainId": chain}}, contact=both)
        self._contact = self._person.contact

    def _verify(self, at_us: int) -> Iterator[DemoEvent]:
        if self._verified or self._chance.random() > 0.2 + self._person.habit.deposits:
            return
        self._verified = True
        level = 2 if self._person.habit.deposit > 500 else 1
        payload: dict[str, Json] = {
            "level": level,
            "document": self._chance.choice(("passport", "id_card", "id_card", "driving_licence")),
            "durationSeconds": self._chance.randrange(70, 900),
        }
        yield self._happening("kyc_completed", at_us, payload, {"kycLevel": level})

    def _deposit(self, at_us: int) -> Iterator[DemoEvent]:
        habit, chance = self._person.habit, self._chance
        again = 0.3 if self._balance < habit.trade else 0.03
        if not self._verified or chance.random() > (again if self._deposits else habit.deposits):
            return
        amount = _amount(habit.deposit, 0.8, chance)
        self._deposits += 1
        self._balance += float(amount)
        on_chain = self._person.wallet is not None and chance.random() < 0.6
        asset = chance.choice(("USDC", "USDC", "ETH", "BTC")) if on_chain else "USD"
        payload: dict[str, Json] = {"amountUsd": amount, "asset": asset, "first": self._deposits == 1}
        if on_chain:
            payload |= {"method": "crypto", "txHash": "0x" + chance.randbytes(32).hex()}
        else:
            payload["method"] = chance.choice(("card", "card", "bank_transfer"))
        yield self._happening("deposit", at_us, payload, key=f"dep_{chance.randbytes(8).hex()}")

    def _trade(self, at_us: int) -> Iterator[DemoEvent]:
        habit, chance = self._person.habit, self._chance
        mood = self._market.mood[min((at_us - self._market.first_us) // DAY, DAYS)]
        for _ in range(_count(habit.trades * mood, chance) if self._balance > 5 else 0):
            at_us += chance.randrange(2, 90) * 1_000_000
            yield self._one_trade(at_us, min(float(_amount(habit.trade, 0.9, chance)), self._balance))
        tier = next((name for name, volume in _TIERS if self._volume >= volume), "bronze")
        if tier != self._tier:
            yield self._happening("tier_changed", at_us + 1_000_000, {"from": self._tier, "to": tier}, {"tier": tier})
            self._tier = tier

    def _one_trade(self, at_us: int, size: float) -> DemoEvent:
        chance = self._chance
        amount = _cents(size)
        fee = _cents(size * (0.001 if self._plan[0] == "pro" else 0.0025))
        asset = chance.choices(tuple(ASSETS), (38, 30, 18, 8, 6))[0]
        price = self._market.price(asset, at_us) * chance.gauss(1, 0.004)
        self._volume += float(amount)
        self._balance = max(0.0, self._balance - float(fee) + float(amount) * chance.gauss(-0.004, 0.05))
        payload: dict[str, Json] = {
            "pair": f"{asset}-USD",
            "side": "buy" if chance.random() < 0.56 else "sell",
            "amountUsd": amount,
            "feeUsd": fee,
            "order": {"type": "limit" if chance.random() < 0.35 else "market", "price": Decimal(f"{price:.4f}")},
        }
        return self._happening("trade", at_us, payload, key=f"trd_{chance.randbytes(8).hex()}")

    def _withdraw(self, at_us: int) -> Iterator[DemoEvent]:
        chance = self._chance
        if self._balance < 40 or chance.random() > 0.035:
            return
        amount = _cents(self._balance * chance.uniform(0.2, 0.95))
        self._balance -= float(amount)
        payload: dict[str, Json] = {
            "amountUsd": amount,
            "asset": chance.choice(("USDC", "USD")),
            "feeUsd": Decimal("1.50"),
        }
        yield self._happening("withdrawal", at_us, payload, key=f"wdr_{chance.randbytes(8).hex()}")

    def _subscribe(self, at_us: int) -> Iterator[DemoEvent]:
        if self._renews_us is not None or not self._deposits or self._chance.random() > 0.02:
            return
        name, price = pick(_PLANS, self._chance)
        self._plan, self._renews_us = (name, price), at_us + 30 * DAY
        yield self._happening("subscription_started", at_us, {"plan": name, "amountUsd": price}, {"plan": name})

    def _renewal(self, at_us: int) -> Iterator[DemoEvent]:
        """Yield the renewal, or now and then the cancellation, that fell due before this session."""
        if self._renews_us is None or self._renews_us > at_us:
            return
        due_us, (name, price) = self._renews_us, self._plan
        if self._chance.random() < 0.2:
            self._plan, self._renews_us = ("free", Decimal(0)), None
            reason = self._chance.choice(("too_expensive", "not_used", "other"))
            yield self._happening("subscription_cancelled", due_us, {"plan": name, "reason": reason}, {"plan": "free"})
            return
        self._renews_us = due_us + 30 * DAY
        period: dict[str, Json] = {"days": 30, "until": _text(self._renews_us)}
        yield self._happening("subscription_renewed", due_us, {"plan": name, "amountUsd": price, "period": period})

    def _talk(self, at_us: int) -> Iterator[DemoEvent]:
        chance = self._chance
        if chance.random() < 0.05:
            asset = chance.choice(tuple(ASSETS))
            target = Decimal(f"{self._market.price(asset, at_us) * chance.uniform(0.8, 1.3):.4f}")
            yield self._happening("price_alert_created", at_us, {"pair": f"{asset}-USD", "targetUsd": target})
        if chance.random() < 0.008:
            topic = chance.choice(("deposit", "verification", "fees", "wallet", "other"))
            yield self._happening("support_ticket_opened", at_us, {"topic": topic, "channel": "chat"})
        if chance.random() < 0.012:
            yield self._happening("referral_sent", at_us, {"channel": chance.choice(("link", "email", "chat"))})

    def _happening(
        self,
        event: str,
        at_us: int,
        payload: dict[str, Json],
        attributes: dict[str, Json] | None = None,
        *,
        contact: dict[str, Json] | None = None,
        key: str | None = None,
    ) -> DemoEvent:
        return DemoEvent(event, contact or self._contact, _text(at_us), payload, attributes or {}, key)


def _referrals(people: list[DemoContact], chance: Random) -> Iterator[DemoEvent]:
    """Yield, for each person who came by referral, the invitation and the reward of an earlier one."""
    friends = sorted(people, key=lambda person: person.signed_up_us)
    for index, person in enumerate(friends):
        if person.source != "referral" or index == 0:
            continue
        friend = friends[min(int(chance.betavariate(1, 2.5) * index), index - 1)]
        sent_us = max(friend.signed_up_us, person.signed_up_us - chance.randrange(HOUR, 3 * DAY)) + MINUTE
        joined_us = max(person.signed_up_us, sent_us) + MINUTE
        code = f"REF-{chance.randbytes(4).hex().upper()}"
        sent: dict[str, Json] = {"channel": "link", "code": code}
        yield DemoEvent("referral_sent", friend.knows, _text(sent_us), sent, idempotency_key=f"sent-{code}")
        reward: dict[str, Json] = {"code": code, "reward": {"amountUsd": Decimal("10.00"), "kind": "fee_credit"}}
        yield DemoEvent("referral_joined", friend.knows, _text(joined_us), reward, idempotency_key=f"joined-{code}")


def _second_accounts(
    people: list[DemoContact], happenings: Iterable[DemoEvent], newest: str, chance: Random
) -> Iterator[DemoEvent]:
    """Yield a dozen wallets that turn out to belong to somebody with an account: identity conflicts to look at."""
    last: dict[Json, str] = {}
    for happening in happenings:
        for value in happening.contact.values():
            last[str(value)] = max(last.get(str(value), ""), happening.occurred_at)
    here = [person for person in people if _text(person.signed_up_us) < newest]
    wallets = [person for person in here if "email" not in person.knows]
    accounts = [person for person in here if person.wallet is None and person.habit.leaves > 0.1]
    for person, account in zip(chance.sample(wallets, 12), chance.sample(accounts, 12), strict=True):
        latest = max(last[person.wallet], last[account.knows["email"]])
        contact: dict[str, Json] = {"walletAddress": person.wallet, "email": account.knows["email"]}
        yield DemoEvent("email_added", contact, min(_later(latest, minutes=5), newest), {"screen": "settings"})


def _apart(moments: Iterable[int]) -> Iterator[int]:
    """Leave out what begins before the session before it can have ended."""
    ended_us = 0
    for at_us in moments:
        if at_us >= ended_us:
            yield at_us
            ended_us = at_us + 45 * MINUTE


def _count(mean: float, chance: Random) -> int:
    """Return a Poisson number (Knuth's method; means here are small)."""
    limit, product, count = math.exp(-mean), chance.random(), 0
    while product > limit:
        product *= chance.random()
        count += 1
    return count


def _amount(median: float, spread: float, chance: Random) -> Decimal:
    return _cents(max(1.0, chance.lognormvariate(math.log(median), spread)))


def _cents(amount: float) -> Decimal:
    return Decimal(f"{amount:.2f}")


def _text(at_us: int) -> str:
    return from_us(at_us).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _later(moment: str, *, minutes: int) -> str:
    return _text(to_us(datetime.fromisoformat(moment) + timedelta(minutes=minutes)))


NAME = "demo"


class DemoKeys(msgspec.Struct, frozen=True):
    """One key of each kind."""

    live: str
    test: str
    publishable: str
    workbench: str


def prepare(dsn: str, keyring: Keyring, settings: Settings, report: Callable[[str], None]) -> DemoKeys:
    """Make sure that the demo organization, its keys and its history are there; return the keys."""
    return asyncio.run(_prepare(dsn, keyring, settings.data_dir, report))


async def _prepare(dsn: str, keyring: Keyring, data_dir: Path, report: Callable[[str], None]) -> DemoKeys:
    org_id = await keys.find_org(dsn, NAME)
    if org_id is None:
        org_id = await keys.create_org(dsn, NAME)
    known = _read(data_dir / "demo-keys.json")
    made = DemoKeys(**{kind: await _usable(dsn, keyring, kind, known.get(kind)) for kind in KINDS})
    database.write(data_dir / "demo-keys.json", msgspec.json.encode(made).decode())
    await _import_history(dsn, keyring, org_id, data_dir, report)
    return made


def _read(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(database.read(path) or "{}", type=dict[str, str])
    except msgspec.DecodeError:
        return {}


async def _usable(dsn: str, keyring: Keyring, kind: Kind, key: str | None) -> str:
    row = await keys.find(dsn, keyring, key) if key is not None else None
    if key is not None and row is not None and row.revoked_at is None and row.expires_at is None and row.kind == kind:
        return key
    return await keys.create(dsn, keyring, NAME, kind, None, "workbench up")


async def _import_history(
    dsn: str, keyring: Keyring, org_id: int, data_dir: Path, report: Callable[[str], None]
) -> None:
    """Import the demo history into an organization without events; one that was broken off is begun again."""
    unfinished = data_dir / "demo-history.ndjson"
    async with session(dsn) as (tx, now):
        empty = not await has_events(tx, org_id)
    if not empty and not unfinished.exists():
        return
    report("importing 60 days of demo history …")
    write_history(unfinished, now)
    sources, _ = find_sources([unfinished], ReadOptions())
    with Rejects(default_rejects_path(unfinished)) as rejects:
        await import_history(dsn, keyring, NAME, sources, rejects)
    unfinished.unlink()
