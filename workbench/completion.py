"""What may follow in a statement that is being written: tables, their columns, and event names inside quotes."""

import re
from collections.abc import Callable, Iterable

import msgspec

from api.language.sql import tokens

TABLES = {
    "app_events": "id contact_id event occurred_at created_at payload idempotency_key sent_wallet_address sent_email sent_external_id",
    "contacts": "id email wallet_address external_id metadata tags created_at updated_at email_domain opted_out erased_at",
    "messages": "id contact_id automation_id entry_id node_id channel status subject body created_at sent_at delivered_at",
    "message_outcomes": "message_id channel outcome reason at",
    "automations": "id name active published_version created_at updated_at archived_at",
    "automation_entries": "id automation_id automation_version contact_id event_id state outcome node_id attempts last_error "
    "created_at updated_at",
    "dead_letters": "entry_id automation_id automation automation_version contact_id event_id node_id cause last_error attempts died_at",
    "onchain_events": "id contact_id chain_id contract event tx_hash log_index block_number block_time args removed signature block_hash created_at",
    "segment_members": "segment contact_id entered_at",
    "segments": "name kind size refreshed_at last_error failing_since created_at updated_at",
    "segment_sizes": "segment at size entered departed",
    "rejected_events": "id event field reason body idempotency_key received_at",
}

_WORD = re.compile(r"(?:(\w+)\.)?(\w*)$")
_PLACE_OF_A_TABLE = re.compile(r"\b(?:from|join)\s+\w*$", re.IGNORECASE)


class Choice(msgspec.Struct, frozen=True):
    """What could stand in place of `fragment`, the end of what was written."""

    fragment: str
    kind: str
    words: tuple[str, ...]


def choices(before: str, after: str, event_names: Callable[[str], Iterable[str]]) -> list[Choice]:
    """Return what may stand at the cursor between two parts of a statement. `event_names` gives those that begin with a text."""
    if before.count("'") % 2:
        fragment = before.rpartition("'")[2]
        return [_choice(fragment, "event", event_names(fragment))]
    found = _WORD.search(before)
    qualifier, fragment = found.groups() if found is not None else (None, "")
    named = _named(before + after)
    if qualifier is not None:
        return [_choice(fragment, "column", _columns(named.get(qualifier.lower(), "")))]
    tables = _choice(fragment, "table", TABLES)
    if _PLACE_OF_A_TABLE.search(before):
        return [tables]
    seen = dict.fromkeys(column for table in (named.values() or TABLES) for column in _columns(table))
    return [_choice(fragment, "column", seen), tables]


def _choice(fragment: str, kind: str, words: Iterable[str]) -> Choice:
    begun = fragment.lower()
    return Choice(fragment, kind, tuple(word for word in words if word.startswith(begun)))


def _columns(table: str) -> list[str]:
    return TABLES.get(table, "").split()


def _named(text: str) -> dict[str, str]:
    """Return the tables of a statement by their names and aliases; what follows a table counts as one."""
    words = [token.text.lower() for token in tokens(text)]
    named = {}
    for table, *following in zip(words, [*words[1:], ""], [*words[2:], "", ""], strict=True):
        if table in TABLES:
            named[table] = table
            named[following[1] if following[0] == "as" else following[0]] = table
    return named
