"""The organization `demo` of `workbench up`: its keys, and 60 days of history of a made-up trading product.

About 2,000 people sign up. Most only look around, some deposit and trade, and a few do most of the trading. People,
prices and amounts come from one seeded random generator, so the history is the same for the same `now`, and the
notebooks can refer to it. All names are made up, and all addresses are under example.com, example.net or example.org.
The history is written by an ordinary import.

The keys are stored in a private file. A key in it counts only if the database has it, so a new database gets new keys.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TypeVarTuple

import msgspec

from api import private_files
from api.auth import keys
from api.auth.key_format import KINDS
from api.auth.keys import operator_transaction
from api.clock import from_us, to_us
from api.crypto import Keyring
from api.imports.errors import Rejects, default_rejects_path
from api.imports.formats import ReadOptions, find_sources
from api.imports.importer import import_history
from api.store.migrate import has_events
from workbench.language.codec import Json, encode

NAME = "demo"
SEED = 20_260
DAYS, PEOPLE = 60, 2_000
MINUTE_US, HOUR_US, DAY_US = 60_000_000, 3_600_000_000, 86_400_000_000
ASSETS = {"BTC": 96_400.0, "ETH": 3_620.0, "SOL": 214.0, "LINK": 17.8, "DOGE": 0.21}  # first price in USD
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
_ADJECTIVES = ("amber", "brave", "calm", "dusty", "eager", "gentle", "icy", "jolly", "keen", "lunar", "mellow", "quiet")
_ANIMALS = ("otter", "heron", "lynx", "badger", "finch", "gecko", "ibis", "koala", "marmot", "newt", "raven", "wombat")
_DOMAINS = (("example.com", 62), ("example.org", 22), ("mail.example.net", 16))
_QUIET_US = 3 * MINUTE_US  # the newest event is a little older than `now`
_TIERS = (("platinum", 400_000.0), ("gold", 40_000.0), ("silver", 4_000.0))  # by volume traded, USD
_PLANS = (("plus", Decimal("9.99"), 70), ("pro", Decimal("29.99"), 30))

_Columns = TypeVarTuple("_Columns")


class DemoKeys(msgspec.Struct, frozen=True):
    """One key of each kind."""

    live: str
    test: str
    publishable: str
    workbench: str


async def prepare(dsn: str, keyring: Keyring, data_dir: Path, report: Callable[[str], None]) -> DemoKeys:
    """Create the demo organization, its keys and its history where they are missing; return the keys."""
    org_id = await keys.find_org(dsn, NAME)
    if org_id is None:
        org_id = await keys.create_org(dsn, NAME)

    key_file = data_dir / "demo-keys.json"
    try:
        stored_keys = msgspec.json.decode(private_files.read(key_file) or "{}", type=dict[str, str])
    except msgspec.DecodeError:  # a damaged file is replaced
        stored_keys = {}
    usable_keys: dict[str, str] = {}
    for kind in KINDS:
        key = stored_keys.get(kind)
        row = None if key is None else await keys.find(dsn, keyring, key)
        if key is None or row is None or row.revoked_at is not None or row.expires_at is not None or row.kind != kind:
            key = await keys.create(dsn, keyring, NAME, kind, None, "workbench up")
        usable_keys[kind] = key
    demo_keys = DemoKeys(**usable_keys)
    private_files.write(key_file, msgspec.json.encode(demo_keys).decode())

    # The file is deleted after the import: if it exists, an import was interrupted, and continues with the same events.
    # A new file would have other times, and an event without an idempotency key is identified by its time.
    history_file = data_dir / "demo-history.ndjson"
    async with operator_transaction(dsn) as (tx, now):
        is_empty = not await has_events(tx, org_id)
    if is_empty:
        unfinished_file = history_file.with_suffix(".unfinished")
        write_history(unfinished_file, now)
        unfinished_file.replace(history_file)
    if history_file.exists():
        report("importing 60 days of demo history …")
        sources, _ = find_sources([history_file], ReadOptions())
        with Rejects(default_rejects_path(history_file)) as rejects:
            await import_history(dsn, keyring, NAME, sources, rejects)
        history_file.unlink()
    return demo_keys


class Habit(msgspec.Struct, frozen=True):
    """The behaviour of one kind of person. Amounts are medians in USD."""

    share: int  # percent of all people
    sessions: float  # per day
    trades: float  # per session, with a balance
    leaves: float  # probability of leaving for good, per day
    deposits: float  # probability of making the first deposit, per session
    deposit: float
    trade: float


_HABITS = (
    Habit(share=54, sessions=0.9, trades=0.3, leaves=0.30, deposits=0.10, deposit=45, trade=18),  # looks around
    Habit(share=32, sessions=0.85, trades=0.8, leaves=0.022, deposits=0.34, deposit=160, trade=55),  # regular
    Habit(share=11, sessions=2.3, trades=1.9, leaves=0.007, deposits=0.6, deposit=620, trade=140),  # trader
    Habit(share=3, sessions=1.3, trades=1.7, leaves=0.005, deposits=0.65, deposit=14_000, trade=3_200),  # whale
)


class DemoContact(msgspec.Struct, frozen=True):
    """A person. `identifiers` are sent at sign-up; `wallet` may be connected later."""

    habit: Habit
    signed_up_us: int
    country: tuple[str, str, int]  # code, language, hours ahead of UTC
    device: tuple[str, str, str]
    source: str
    identifiers: dict[str, Json]
    wallet: str | None

    @property
    def contact(self) -> dict[str, Json]:
        """The identifiers in events after the wallet was connected: some systems know the wallet only."""
        return self.identifiers if self.wallet is None else {"walletAddress": self.wallet}


class Market(msgspec.Struct, frozen=True):
    """The market that all simulated people share: its activity, and the price of each asset, on each day."""

    first_us: int
    activity: list[float]  # 1.0 is an ordinary Monday
    prices: dict[str, list[float]]

    def price(self, asset: str, at_us: int) -> float:
        """Return the asset's price in USD on the day of a moment."""
        return self.prices[asset][min(max((at_us - self.first_us) // DAY_US, 0), DAYS)]


def open_market(first_us: int, chance: Random) -> Market:
    """Return the market from a moment on. Prices are random walks."""
    weekday = from_us(first_us).weekday()
    activity = [_WEEK[(weekday + day) % 7] * chance.lognormvariate(0, 0.09) for day in range(DAYS + 1)]
    for day in (19, 20, 44):  # days with news, so that charts show peaks
        activity[day] *= 1.7
    prices: dict[str, list[float]] = {}
    for asset, first_price in ASSETS.items():
        price, prices[asset] = first_price, []
        for _ in range(DAYS + 1):
            prices[asset].append(price)
            price *= math.exp(chance.gauss(0.001, 0.028))
    return Market(first_us, activity, prices)


def make_person(number: int, market: Market, chance: Random) -> DemoContact:
    """Return a person; the number makes email and external id unique."""
    code, language, ahead = pick(_COUNTRIES, chance)
    platform, version, model = pick(_DEVICES, chance)
    growth = [(2.2 if day == 0 else 1.0) * math.exp(0.018 * day) for day in range(DAYS + 1)]
    weights = [rate * activity for rate, activity in zip(growth, market.activity, strict=True)]
    day = chance.choices(range(DAYS + 1), weights)[0]
    signed_up_us = max(moment_of_day(market, day, ahead, chance), market.first_us + chance.randrange(HOUR_US))
    email = f"{chance.choice(_ADJECTIVES)}.{chance.choice(_ANIMALS)}{number}@{pick(_DOMAINS, chance)[0]}"
    if chance.random() < 0.12:  # Solana; the others are EVM
        wallet = "".join(chance.choices("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", k=44))
    else:
        wallet = "0x" + "".join(chance.choice((c, c.upper())) for c in chance.randbytes(20).hex())
    external_id = f"user_{100_000 + number * 7}"
    # The identifiers at sign-up, and the person's wallet, if any, which is known at once or connected later.
    identities: dict[str, tuple[dict[str, Json], str | None]] = {
        "wallet only": ({"walletAddress": wallet}, wallet),
        "email only": ({"email": email}, None),
        "account": ({"email": email, "externalId": external_id}, None),
        "account and wallet": ({"email": email, "externalId": external_id}, wallet),
        "all at once": ({"email": email, "walletAddress": wallet, "externalId": external_id}, wallet),
    }
    identifiers, own_wallet = identities[chance.choices(tuple(identities), (21, 6, 27, 36, 10))[0]]
    return DemoContact(
        habit=chance.choices(_HABITS, [habit.share for habit in _HABITS])[0],
        signed_up_us=signed_up_us,
        country=(code, language, ahead),
        device=(platform, version, model),
        source=pick(_SOURCES, chance)[0],
        identifiers=identifiers,
        wallet=own_wallet,
    )


def moment_of_day(market: Market, day: int, ahead: int, chance: Random) -> int:
    """Return a likely moment of a day, in microseconds, for a person `ahead` hours ahead of UTC."""
    hour = chance.choices(range(24), _HOURS)[0] - ahead
    midnight_us = market.first_us // DAY_US * DAY_US + day * DAY_US
    return midnight_us + hour * HOUR_US + chance.randrange(HOUR_US)


def pick(rows: Sequence[tuple[*_Columns, int]], chance: Random) -> tuple[*_Columns]:
    """Return a random row without its last column, which is the row's weight."""
    return chance.choices(rows, [row[-1] for row in rows])[0][:-1]


class DemoEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One line of the history: the body of an event in the ingest API."""

    event: str
    contact: dict[str, Json]
    occurred_at: str
    payload: dict[str, Json] = {}
    attributes: dict[str, Json] = {}
    idempotency_key: str | None = None


def write_history(path: Path, now: datetime) -> int:
    """Write the history that ends at `now`, one event per line in order of time; return the number of events."""
    chance = Random(SEED)
    now_us = to_us(now)
    market = open_market(now_us - DAYS * DAY_US, chance)
    people = [make_person(number, market, chance) for number in range(PEOPLE)]
    newest = _text(now_us - _QUIET_US)
    events = [event for person in people for event in _PersonHistory(person, market, chance).events()]
    events += _referrals(people, chance)
    events = [event for event in events if event.occurred_at <= newest]
    events += _second_accounts(people, events, newest, chance)
    events.sort(key=lambda event: event.occurred_at)
    with path.open("wb") as file:
        file.writelines(encode(event) + b"\n" for event in events)
    return len(events)


class _PersonHistory:
    """The events of one person from sign-up to the end of the history."""

    def __init__(self, person: DemoContact, market: Market, chance: Random) -> None:
        self._person, self._market, self._chance = person, market, chance
        self._contact = person.identifiers
        self._verified = False
        self._deposits = 0
        self._balance = 0.0
        self._volume = 0.0
        self._tier = "bronze"
        self._renews_us: int | None = None
        self._plan: tuple[str, Decimal] = ("free", Decimal(0))

    def events(self) -> Iterator[DemoEvent]:
        """Yield the sign-up and the events of each session, in order of time."""
        person, chance = self._person, self._chance
        country, language, _ = person.country
        utm: dict[str, Json] = {"medium": person.source}
        if person.source in ("ads", "social"):
            utm["campaign"] = chance.choice(("autumn-launch", "zero-fees", "learn-and-earn"))
        attributes: dict[str, Json] = {"plan": "free", "tier": "bronze", "country": country, "language": language}
        if chance.random() < 0.7:
            attributes["marketingOptIn"] = chance.random() < 0.55
        payload: dict[str, Json] = {"source": person.source, "utm": utm, "platform": person.device[0]}
        yield self._event("signup", person.signed_up_us, payload, attributes)
        for session_us in self._session_starts():
            yield from self._renewal(session_us)
            platform, version, model = person.device
            app = f"3.{(session_us - self._market.first_us) // (14 * DAY_US)}.{chance.randrange(3)}"
            payload = {
                "platform": platform,
                "appVersion": app,
                "screen": chance.choice(("home", "home", "markets", "portfolio", "rewards")),
                "device": {"os": version, "model": model},
            }
            yield self._event("app_open", session_us, payload, {"appVersion": app} if chance.random() < 0.1 else {})
            at_us = session_us
            for step in (
                self._connect,
                self._verify,
                self._deposit,
                self._trade,
                self._withdraw,
                self._subscribe,
                self._other_events,
            ):
                at_us += chance.randrange(15, 150) * 1_000_000
                yield from step(at_us)

    def _session_starts(self) -> list[int]:
        person, market, chance = self._person, self._market, self._chance
        habit = person.habit
        first_day = (person.signed_up_us - market.first_us) // DAY_US
        activity = chance.lognormvariate(0, 0.35)
        moments = [person.signed_up_us + chance.randrange(2, 40) * MINUTE_US]
        for day in range(first_day, DAYS + 1):
            if day > first_day and chance.random() < habit.leaves:
                break
            count = _count(habit.sessions * activity * market.activity[day], chance)
            moments += [moment_of_day(market, day, person.country[2], chance) for _ in range(count)]
        starts: list[int] = []
        for at_us in sorted(moments):  # sessions do not overlap
            if at_us > person.signed_up_us and (not starts or at_us >= starts[-1] + 45 * MINUTE_US):
                starts.append(at_us)
        return starts

    def _connect(self, at_us: int) -> Iterator[DemoEvent]:
        wallet = self._person.wallet
        if wallet is None or self._contact is not self._person.identifiers or self._chance.random() < 0.3:
            return
        details: dict[str, Json] = {"kind": "phantom", "chainId": None}
        if wallet.startswith("0x"):
            details = {"kind": "metamask", "chainId": self._chance.choice((1, 1, 8453))}
        # The one event with both identifiers: from here on ingest knows that the wallet belongs to the account.
        contact: dict[str, Json] = {"walletAddress": wallet}
        if "externalId" in self._person.identifiers:
            contact = {"externalId": self._person.identifiers["externalId"]} | contact
        yield self._event("wallet_connected", at_us, {"wallet": details}, contact=contact)
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
        yield self._event("kyc_completed", at_us, payload, {"kycLevel": level})

    def _deposit(self, at_us: int) -> Iterator[DemoEvent]:
        habit, chance = self._person.habit, self._chance
        repeats = 0.3 if self._balance < habit.trade else 0.03
        if not self._verified or chance.random() > (repeats if self._deposits else habit.deposits):
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
        yield self._event("deposit", at_us, payload, key=f"dep_{chance.randbytes(8).hex()}")

    def _trade(self, at_us: int) -> Iterator[DemoEvent]:
        habit, chance = self._person.habit, self._chance
        activity = self._market.activity[min((at_us - self._market.first_us) // DAY_US, DAYS)]
        for _ in range(_count(habit.trades * activity, chance) if self._balance > 5 else 0):
            at_us += chance.randrange(2, 90) * 1_000_000
            size = min(float(_amount(habit.trade, 0.9, chance)), self._balance)
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
            yield self._event("trade", at_us, payload, key=f"trd_{chance.randbytes(8).hex()}")
        tier = next((name for name, volume in _TIERS if self._volume >= volume), "bronze")
        if tier != self._tier:
            yield self._event("tier_changed", at_us + 1_000_000, {"from": self._tier, "to": tier}, {"tier": tier})
            self._tier = tier

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
        yield self._event("withdrawal", at_us, payload, key=f"wdr_{chance.randbytes(8).hex()}")

    def _subscribe(self, at_us: int) -> Iterator[DemoEvent]:
        if self._renews_us is not None or not self._deposits or self._chance.random() > 0.02:
            return
        name, price = pick(_PLANS, self._chance)
        self._plan, self._renews_us = (name, price), at_us + 30 * DAY_US
        yield self._event("subscription_started", at_us, {"plan": name, "amountUsd": price}, {"plan": name})

    def _renewal(self, at_us: int) -> Iterator[DemoEvent]:
        """Yield the renewal (of 20 %, the cancellation) of a subscription that fell due before this session."""
        if self._renews_us is None or self._renews_us > at_us:
            return
        due_us, (name, price) = self._renews_us, self._plan
        if self._chance.random() < 0.2:
            self._plan, self._renews_us = ("free", Decimal(0)), None
            reason = self._chance.choice(("too_expensive", "not_used", "other"))
            yield self._event("subscription_cancelled", due_us, {"plan": name, "reason": reason}, {"plan": "free"})
            return
        self._renews_us = due_us + 30 * DAY_US
        period: dict[str, Json] = {"days": 30, "until": _text(self._renews_us)}
        yield self._event("subscription_renewed", due_us, {"plan": name, "amountUsd": price, "period": period})

    def _other_events(self, at_us: int) -> Iterator[DemoEvent]:
        chance = self._chance
        if chance.random() < 0.05:
            asset = chance.choice(tuple(ASSETS))
            target = Decimal(f"{self._market.price(asset, at_us) * chance.uniform(0.8, 1.3):.4f}")
            yield self._event("price_alert_created", at_us, {"pair": f"{asset}-USD", "targetUsd": target})
        if chance.random() < 0.008:
            topic = chance.choice(("deposit", "verification", "fees", "wallet", "other"))
            yield self._event("support_ticket_opened", at_us, {"topic": topic, "channel": "chat"})
        if chance.random() < 0.012:
            yield self._event("referral_sent", at_us, {"channel": chance.choice(("link", "email", "chat"))})

    def _event(
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
    """Yield, for each person with the source "referral", the invitation by an earlier person and the reward for it."""
    by_sign_up = sorted(people, key=lambda person: person.signed_up_us)
    for index, person in enumerate(by_sign_up):
        if person.source != "referral" or index == 0:
            continue
        friend = by_sign_up[min(int(chance.betavariate(1, 2.5) * index), index - 1)]
        sent_us = max(friend.signed_up_us, person.signed_up_us - chance.randrange(HOUR_US, 3 * DAY_US)) + MINUTE_US
        joined_us = max(person.signed_up_us, sent_us) + MINUTE_US
        code = f"REF-{chance.randbytes(4).hex().upper()}"
        sent: dict[str, Json] = {"channel": "link", "code": code}
        yield DemoEvent("referral_sent", friend.identifiers, _text(sent_us), sent, idempotency_key=f"sent-{code}")
        reward: dict[str, Json] = {"code": code, "reward": {"amountUsd": Decimal("10.00"), "kind": "fee_credit"}}
        yield DemoEvent(
            "referral_joined", friend.identifiers, _text(joined_us), reward, idempotency_key=f"joined-{code}"
        )


def _second_accounts(
    people: list[DemoContact], events: Iterable[DemoEvent], newest: str, chance: Random
) -> Iterator[DemoEvent]:
    """Yield a dozen events that name the identifiers of two contacts, so that the demo has identity conflicts."""
    newest_by_identifier: dict[Json, str] = {}
    for event in events:
        for value in event.contact.values():
            newest_by_identifier[str(value)] = max(newest_by_identifier.get(str(value), ""), event.occurred_at)
    signed_up = [person for person in people if _text(person.signed_up_us) < newest]
    wallets = [person for person in signed_up if "email" not in person.identifiers]
    accounts = [person for person in signed_up if person.wallet is None and person.habit.leaves > 0.1]
    for person, account in zip(chance.sample(wallets, 12), chance.sample(accounts, 12), strict=True):
        # After the last event of both: an identity conflict arises between contacts that exist.
        latest = max(newest_by_identifier[person.wallet], newest_by_identifier[account.identifiers["email"]])
        joined_us = to_us(datetime.fromisoformat(latest) + timedelta(minutes=5))
        contact: dict[str, Json] = {"walletAddress": person.wallet, "email": account.identifiers["email"]}
        yield DemoEvent("email_added", contact, min(_text(joined_us), newest), {"screen": "settings"})


def _count(mean: float, chance: Random) -> int:
    """Return a Poisson-distributed number by Knuth's method, which is slow only for large means."""
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
