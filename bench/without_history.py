"""`python -m api`, with an ingest that merges attributes of contacts, but notes no change of them."""

import sys
from typing import Any

from api.__main__ import main
from api.ingest import identity, store

_merge_calls = identity._merge_calls


def _merge_without_note(*args: Any) -> list[Any]:
    _, merge = _merge_calls(*args)
    return [merge]


if __name__ == "__main__":
    vars(store)["sole_changes"] = lambda plan: {}
    vars(identity)["_merge_calls"] = _merge_without_note
    sys.exit(main())
