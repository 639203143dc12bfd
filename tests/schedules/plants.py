"""Defects that the tests plant, to see that schedules find them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from api.ingest import identity
from api.store import entries, events, locks
from api.store.query import Call, Statement


def _replace(patch: pytest.MonkeyPatch, module: Any, name: str, old: str, new: str) -> None:
    """Let a statement of the store run with another text."""
    build: Callable[..., Call[Any]] = getattr(module, name)

    def planted(*args: Any, **values: Any) -> Call[Any]:
        call = build(*args, **values)
        text = call.statement.text.decode()
        assert old in text, f"{name} has no {old!r} any more"
        statement = Statement(f"planted.{name}".encode(), text.replace(old, new).encode(), call.statement.order)
        return Call(statement, call.read, call.values, call.formats, call._encoders)

    patch.setattr(module, name, planted)


@contextmanager
def lost_lease(control: psycopg.Connection[Any]) -> Iterator[None]:
    """An engine writes although another one has claimed the entry meanwhile: the lease token is not compared."""
    with pytest.MonkeyPatch.context() as patch:
        _replace(patch, entries, "record_entries", "AND e.lease_token = r.token", "")
        yield


@contextmanager
def double_entry(control: psycopg.Connection[Any]) -> Iterator[None]:
    """Ingest looks whether a key is new and then stores it, and no constraint refuses the second one."""
    control.execute("ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_pkey")
    with pytest.MonkeyPatch.context() as patch:
        _replace(
            patch,
            events,
            "claim_keys",
            "ON CONFLICT (org_id, key_digest) DO NOTHING",
            "WHERE NOT EXISTS (SELECT FROM idempotency_keys i"
            " WHERE i.org_id = k.org_id AND i.key_digest = k.key_digest)",
        )
        yield
    control.execute("DELETE FROM idempotency_keys")
    control.execute(
        "ALTER TABLE idempotency_keys ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (org_id, key_digest)"
    )


@contextmanager
def lost_wake_up(control: psycopg.Connection[Any]) -> Iterator[None]:
    """Ingest stores an awaited event without the lock of its contact, and the entry about to wait does not see it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "hold_contacts", lambda contact_ids: locks.hold_contacts(()))
        yield
