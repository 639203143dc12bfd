"""Every value that the language accepts is stored and returned by Postgres to the last digit and character."""

from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from api.ingest.parse import AcceptedEvent, Rejected
from tests.ingest.conftest import Org, event
from workbench.language.codec import decode, encode, json_equal

ODD = [*"aé\"\\'{},\t\n\r\x01\x7f\x85\u200b\u2028\ufeff\ufffe\uffff", "🎉", "\U0010ffff", "e\u0301", "NULL"]
NUMBERS = (0, -1, 2**64, 10**308, *map(Decimal, ("-0", "0E-300", "1e308", "5e-307", "1.0", "100.00", "-1E+10")))


def text(chance: Random) -> str:
    return "".join(chance.choices(ODD, k=chance.randrange(12)))


def number(chance: Random) -> int | Decimal:
    digits = "".join(chance.choices("123456789", k=chance.randrange(1, 300)))
    exact = Decimal(f"{digits[:9]}.{digits}e{chance.randint(-200, 200)}")
    return chance.choice((int(digits), exact, chance.choice(NUMBERS)))


def value(chance: Random, depth: int) -> Any:
    kinds: list[Callable[[], Any]] = [lambda: None, lambda: True, lambda: text(chance), lambda: number(chance)]
    if depth:
        kinds += [lambda: [value(chance, depth - 1) for _ in range(3)]] * 2
        kinds += [lambda: {text(chance): value(chance, depth - 1) for _ in range(3)}] * 2
    return chance.choice(kinds)()


@pytest.mark.parametrize("seed", range(3))
async def test_accepted_values_are_stored_unchanged(acme: Org, seed: int) -> None:
    chance = Random(seed)
    await acme.automate(
        "", {"path": "a", "operator": "contains", "value": "é"}, {"path": "b", "operator": "neq", "value": 1}
    )
    sent = [
        event(
            str(n),
            payload={name: value(chance, 5) for name in ("a", "b", text(chance))},
            attributes={f"{n}{text(chance)}": chance.choice((text(chance), number(chance)))},
            external_id=text(chance) or "x",
        )
        for n in range(100)
    ]
    outcomes = await acme.send(*sent)
    assert {type(outcome) for outcome in outcomes} <= {AcceptedEvent, Rejected}
    assert "cannot be stored" not in str(outcomes)
    stored = dict(await acme.rows("idempotency_key, payload", "events"))
    attributes = {name: value for (row,) in await acme.rows("attributes", "contacts") for name, value in row.items()}
    assert len(stored) == sum(isinstance(outcome, AcceptedEvent) for outcome in outcomes) > 60
    for sent_event in sent:
        if sent_event["idempotencyKey"] in stored:
            assert json_equal(stored[sent_event["idempotencyKey"]], decode(encode(sent_event["payload"])))
            ((name, brought),) = sent_event["attributes"].items()
            assert json_equal(attributes[name], decode(encode(brought)))
