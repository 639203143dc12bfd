"""Files of as many events as a measurement needs, in the format of the builder, and the same events in Postgres.

The events are those of a shop: ten names, of which a few are frequent, payloads of five keys, contacts of which some
are very active. Moments are independent of each other.
"""

import itertools
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from uuid import UUID

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from api.parts import files
from api.parts.build import buckets_for
from api.store.parts import PartFile

EVENTS = (
    "page.view", "add_to_cart", "checkout", "search", "login", "deposit", "signup", "share", "refund", "invite",
)  # fmt: skip
KEYS = ("amount", "country", "page", "plan", "device")
_SHARES = (0.30, 0.15, 0.12, 0.12, 0.10, 0.08, 0.05, 0.04, 0.02, 0.02)
_COUNTRIES, _PLANS, _DEVICES = ("CH", "DE", "FR", "US", "BR"), ("free", "pro", "team"), ("phone", "desktop")
_CHUNK_ROWS = 250_000
_STORED = ("contact", "event", "occurred_at", "created_at", "stored_in", "payload")
_DAY_US = 86_400_000_000


def synthesise(
    data_dir: Path, org_id: int, events: int, contacts: int, since_us: int, days: int = 84, seed: int = 1
) -> list[PartFile]:
    """Write parts of so many events, in runs of 28 days; return what the builder would list.

    Event number N is `EVENTS[N]`; contacts have the numbers from 0. All events are of transaction 1.
    """
    chance = np.random.default_rng(seed)
    buckets = buckets_for(events)
    files.folder(data_dir, org_id).mkdir(parents=True, exist_ok=True)
    parts: list[PartFile] = []
    runs = max(days // 28, 1)
    for bucket in range(buckets):
        numbers = np.arange(bucket, contacts, buckets)
        # A gamma distribution: a tenth of the contacts have a third of the events.
        weights = chance.gamma(1.0, size=len(numbers))
        for run in range(runs):
            counts = chance.poisson(weights / weights.sum() * (events / buckets / runs))
            file = UUID(bytes=chance.bytes(16)).hex
            writer = files.FileWriter(files.path(data_dir, org_id, file), KEYS, file, bucket, f"run_{run}")
            ends = np.cumsum(counts)
            start = 0
            while start < len(numbers):
                done = ends[start - 1] if start else 0
                end = max(int(np.searchsorted(ends, done + _CHUNK_ROWS)), start + 1)
                chosen = np.repeat(numbers[start:end], counts[start:end])
                span = since_us + run * days * _DAY_US // runs
                if len(chosen):
                    writer.write(_events(chance, chosen, span, days * _DAY_US // runs))
                start = end
            parts.append(writer.finish())
    return parts


def _events(chance: np.random.Generator, contact: np.ndarray, since_us: int, span_us: int) -> pa.Table:
    rows = len(contact)
    at = since_us + chance.integers(0, span_us, rows)
    order = np.lexsort((at, contact))
    at = at[order]
    event = chance.choice(len(EVENTS), rows, p=_SHARES).astype(np.int32)
    cents = chance.integers(100, 100_000, rows)
    page = pc.binary_join_element_wise("/p/", pa.array(chance.integers(0, 1_000, rows)).cast(pa.string()), "")
    country, plan, device = (_pick(chance, rows, values) for values in (_COUNTRIES, _PLANS, _DEVICES))
    amount = pa.array(cents * 10_000)
    text = pa.array(cents / 100).cast(pa.string())
    text = pc.replace_substring_regex(text, r"\.0$", "")
    pairs = zip(KEYS, (text, country, page, plan, device), strict=True)
    quoted = {key: value if key == "amount" else _quote(value) for key, value in pairs}
    by_length = sorted(quoted, key=lambda key: (len(key), key))  # as jsonb orders them
    members = [pc.binary_join_element_wise(f'"{key}": ', quoted[key], "") for key in by_length]
    payload = pc.binary_join_element_wise("{", pc.binary_join_element_wise(*members, ", "), "}", "")
    nothing = pa.nulls(rows, pa.int64())
    ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(chance.bytes(16 * rows))])
    typed: Sequence[pa.Array] = [amount, pa.nulls(rows, pa.string())]
    for key in KEYS[1:]:
        typed = [*typed, nothing, quoted[key]]
    columns = [contact, event, at, at + 40_000, np.ones(rows, np.int64)]
    return pa.table([*map(pa.array, columns), ids, payload, *typed], files.schema(KEYS))


def _pick(chance: np.random.Generator, rows: int, values: Sequence[str]) -> pa.Array:
    return pa.array(values).take(pa.array(chance.integers(0, len(values), rows)))


def _quote(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def store_contacts(connection: psycopg.Connection, numbers: Iterable[int], at: datetime) -> None:
    """Store contacts of organization 1 with these numbers."""
    connection.execute(
        "INSERT INTO workbench.contacts (org_id, id, number, attributes, created_at, updated_at)"
        " SELECT 1, lpad(n::text, 32, '0')::uuid, n, '{}', %s, %s FROM unnest(%s::bigint[]) n",
        (at, at, [*numbers]),
    )


def store_events(
    connection: psycopg.Connection, tables: Iterable[pa.Table | pa.RecordBatch], ids: Iterable[str]
) -> None:
    """Store events of organization 1, given in the columns of files, with these ids. Superusers only may COPY to it."""
    columns = "org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key, stored_in"
    names, ids = pa.array(EVENTS), iter(ids)
    with connection.cursor().copy(f"COPY workbench.events ({columns}) FROM STDIN") as copy:
        for table in tables:
            contact, event, at, created_at, stored_in, payload = (table.column(name) for name in _STORED)
            texts = pa.array(itertools.islice(ids, table.num_rows), pa.string())
            owner = pc.utf8_lpad(contact.cast(pa.string()), 32, "0")
            moments = (us.cast(pa.timestamp("us", "UTC")).cast(pa.string()) for us in (at, created_at))
            fields = ("1", texts, owner, names.take(event), *moments, payload, texts, stored_in.cast(pa.string()))
            lines = pc.binary_join_element_wise(*fields, "\t")
            copy.write("\n".join([*lines.to_pylist(), ""]))
