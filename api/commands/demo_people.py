"""Who the demo organization's people are, and the market they trade in: drawn from the source of chance they are given.

All names are made up, all addresses are under example.com, example.net or example.org.
"""

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import TypeVarTuple

import msgspec

from api.clock import from_us
from api.language.codec import Json

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
    """How a kind of person behaves. `leaves`: chance per day to leave for good; money in USD, medians."""

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


class Person(msgspec.Struct, frozen=True):
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


def make_person(number: int, market: Market, chance: Random) -> Person:
    """Return somebody who signs up on one of the days."""
    code, language, ahead = pick(_COUNTRIES, chance)
    platform, version, model = pick(_DEVICES, chance)
    launch = [(2.2 if day == 0 else 1.0) * math.exp(0.018 * day) for day in range(DAYS + 1)]
    day = chance.choices(range(DAYS + 1), [push * mood for push, mood in zip(launch, market.mood, strict=True)])[0]
    signed_up_us = max(moment_of_day(market, day, ahead, chance), market.first_us + chance.randrange(HOUR))
    knows, wallet = _identity(number, chance)
    return Person(
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
