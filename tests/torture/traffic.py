"""The events of a run: returning people, conflicting identifiers, events without a key, dry runs, misspelt and invalid
events, repeated keys, hostile texts, bursts of one contact, and contacts with too many attributes.

A window over the people moves with the event numbers, so that new contacts, identity conflicts and attribute changes
occur until the end of the run.
"""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from tests.torture.leaks import HOSTILE, OBEYED, canary
from tests.torture.log import EventKind, SentEvent
from tests.torture.wallets import spellings

PEOPLE = 25
EVENTS_PER_PERSON = 40
NAMES = ("deposit", "Withdrawal", "signup", "page.view")
MISSPELT = {"properties": "payload", "idempotency_key": "idempotencyKey", "dry_run": "test"}
"""Fields of other vendors, which are dropped, and what is meant by them."""

TICK = "tick"
TICKS_PER_BURST = 3
_OVERFULL = (22, 50)  # events of a contact and attributes of each; a contact has at most a thousand
INVALID_FIELDS: tuple[dict[str, Any], ...] = (
    {"event": "no spaces please"},
    {"event": None},
    {"event": OBEYED[0]},
    {"attributes": {OBEYED[1]: []}},
    {"contact": {}},
    {"contact": {"email": "nobody", "externalId": "rejected"}},
    {"attributes": {"list": []}},
    {"payload": [1]},
    {"occurredAt": "2001-01-01T00:00:00Z"},
    {"test": "yes"},
    {"idempotencyKey": ""},
)


class Traffic:
    """Creates the events of one organization. Both organizations use the same keys and the same people."""

    def __init__(self, org: str, began: datetime) -> None:
        self.org = org
        self._began = began
        self._count = 0

    @property
    def people(self) -> range:
        """The people that events are about at this moment."""
        first = self._count // EVENTS_PER_PERSON
        return range(first, first + PEOPLE)

    def any(self, chance: Random) -> SentEvent:
        """Return a new event: mostly live, some dry runs, some invalid."""
        (kind,) = chance.choices((EventKind.LIVE, EventKind.DRY, EventKind.INVALID), (89, 6, 5))
        match kind:
            case EventKind.DRY:
                return self._sent(EventKind.DRY, self._body(chance) | {"test": True})
            case EventKind.INVALID:
                return self._sent(EventKind.INVALID, self._unknown_event() | chance.choice(INVALID_FIELDS))
            case _:
                return self.live(chance)

    def live(self, chance: Random) -> SentEvent:
        body = self._body(chance)
        if chance.random() < 0.06:
            del body["idempotencyKey"]
        return self._sent(EventKind.LIVE, body)

    def dry_run(self, chance: Random) -> SentEvent:
        """Return a dry run for a test key."""
        return self._sent(EventKind.DRY, self._body(chance))

    def misspelt(self, chance: Random) -> SentEvent:
        """Return an event that a strict key refuses."""
        return self._sent(EventKind.INVALID, self._body(chance) | {chance.choice(list(MISSPELT)): {}})

    def burst(self) -> list[SentEvent]:
        """Return events of a contact of their own, whose automations look at what they did before."""
        contact = {"walletAddress": f"0x{self._count:040x}"}
        return [self._sent(EventKind.LIVE, self._plain(TICK, contact)) for _ in range(TICKS_PER_BURST)]

    def overfull(self) -> list[SentEvent]:
        """Return events of a contact of their own, with more attributes than a contact may have."""
        contact, (events, attributes) = {"externalId": f"Respondent{self._count}"}, _OVERFULL
        return [
            self._sent(
                EventKind.LIVE,
                self._plain("form.sent", contact)
                | {"attributes": {f"a{event}_{number}": number for number in range(attributes)}},
            )
            for event in range(events)
        ]

    def hostile(self, chance: Random) -> SentEvent:
        """Return an event of a contact of its own, in whose texts are characters that terminals obey, or formulas."""
        text = chance.choice(HOSTILE)
        contact = {"externalId": f"{text}{self._count}", "walletAddress": f"0x{self._count:040x}"}
        body = self._plain("signup", contact)
        body["payload"] |= {"note": text, "remark": text, text: [text]}
        return self._sent(EventKind.LIVE, body | {"attributes": {"remark": text, text: text}})

    def repeat(self, chance: Random, of: SentEvent) -> SentEvent:
        """Return another event with the key of an answered one."""
        return self._sent(EventKind.REPEAT, self._body(chance) | {"idempotencyKey": of.key})

    def _sent(self, kind: EventKind, body: dict[str, Any]) -> SentEvent:
        sent = SentEvent(self.org, self._count, kind, body)
        self._count += 1
        return sent

    def _body(self, chance: Random) -> dict[str, Any]:
        number = self._count
        body: dict[str, Any] = {
            "event": chance.choice(NAMES),
            "contact": self._contact(chance),
            "payload": _payload(chance, number) | {"canary": canary(self.org)},
            "idempotencyKey": f"k{number}",
        }
        if chance.random() < 0.8:
            body["attributes"] = {"plan": chance.choice(("free", "pro")), "canary": canary(self.org)}
        if chance.random() < 0.5:
            body.setdefault("attributes", {}).update({"last": number, f"slot_{number % 5}": f"v{number}"})
        if chance.random() < 0.4:
            body.setdefault("attributes", {})[f"only_{number}"] = True
        if chance.random() < 0.2:
            body["occurredAt"] = self._moment(chance)
        if chance.random() < 0.05:
            body[chance.choice(list(MISSPELT))] = {"canary": canary(self.org)}
        return body

    def _plain(self, name: str, contact: dict[str, str]) -> dict[str, Any]:
        payload = {"n": self._count, "canary": canary(self.org)}
        return {"event": name, "contact": contact, "payload": payload, "idempotencyKey": f"k{self._count}"}

    def _contact(self, chance: Random) -> dict[str, str]:
        """Return one to three identifiers of one person, or (three in ten) of several people."""
        person, mixed = chance.choice(self.people), chance.random() < 0.3
        wallet, email, external = (
            chance.choice(self.people) if mixed else person for _ in ("wallet", "email", "external")
        )
        contact = {
            "walletAddress": chance.choice(spellings(wallet)),
            "email": chance.choice((f"Person{email}@Example.com", f"person{email}@example.com")),
            "externalId": f"User{external}",
        }
        return {name: contact[name] for name in chance.sample(sorted(contact), chance.choice((1, 2, 2, 3)))}

    def _unknown_event(self) -> dict[str, Any]:
        number = self._count
        contact = {"externalId": f"rejected{number}"}
        return {"event": "nonsense", "contact": contact, "payload": {"n": number}, "idempotencyKey": f"k{number}"}

    def _moment(self, chance: Random) -> str:
        moment = self._began - timedelta(microseconds=chance.randrange(5 * 86_400_000_000))
        return moment.astimezone(UTC).isoformat().replace("+00:00", chance.choice(("Z", "+00:00")))


def _payload(chance: Random, number: int) -> dict[str, Any]:
    payload: dict[str, Any] = {
        "n": number,
        "currency": chance.choice(("EUR", "USD")),
        "amount": chance.randrange(1, 100_000) / 100,
    }
    if chance.random() < 0.3:
        payload["note"] = 'grüße "quoted" \\ line\nbreak ' * chance.randrange(1, 20)
    if chance.random() < 0.2:
        payload["lines"] = [
            {"sku": f"s{number}", "size": number, "gift": None} for number in range(chance.randrange(4))
        ]
    return payload
