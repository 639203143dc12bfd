"""Limits on analysts' queries: how many run at a time, and which functions they may call.

Slots are limited per organization and in total, so that one organization's heavy queries starve neither another's nor
ingest. A query waits briefly for a slot and then fails with TooManyQueriesError.

The list of functions replaces `sql/hardening.sql` on servers that do not allow it (managed Postgres). Where the script
ran, the server enforces its own rules and the list is not used. Otherwise every name before a parenthesis must be on
the list (or be a word of SQL), and the system catalogs must not be named. A name counts as Postgres resolves it:
quoted or not, with or without a schema.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from api.store.analyst import TooManyQueriesError
from workbench.language.problem import Problem
from workbench.language.sql import tokenize


class ConcurrencyLimits(msgspec.Struct, frozen=True):
    """Queries of this process that run at the same time, and how long another one waits for a slot."""

    per_organization: int = 3
    total: int = 24  # eight organizations at their limit
    wait_seconds: float = 5.0


class QuerySlots:
    """Slots for queries, per organization and in total, for one process."""

    def __init__(self, limits: ConcurrencyLimits | None = None) -> None:
        self._limits = limits or ConcurrencyLimits()
        self._total = asyncio.Semaphore(self._limits.total)
        self._per_organization = defaultdict[int, asyncio.Semaphore](
            lambda: asyncio.Semaphore(self._limits.per_organization)
        )

    @asynccontextmanager
    async def acquire(self, org_id: int) -> AsyncIterator[None]:
        """Hold a slot of an organization until the block ends; raise TooManyQueriesError if none comes free in time."""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._limits.wait_seconds):
                    # Take the organization's slot first: waiting for it must not occupy a slot that all share.
                    await stack.enter_async_context(self._per_organization[org_id])
                    await stack.enter_async_context(self._total)
            except TimeoutError:
                raise TooManyQueriesError("other queries are still running; try again") from None
            yield


def check_functions(statement: str) -> Problem | None:
    """Return why a statement may not run on a server without the hardening script, or None."""
    previous = before_previous = ""
    for token in tokenize(statement):
        text = token.text.lower() if token.kind == "word" else token.text
        is_name = token.kind in ("word", "quoted")
        if is_name and text not in _HARMLESS_NAMES and (text.startswith("pg_") or text == "information_schema"):
            return Problem("sql", f"{text} is not available on this server")
        if text == "(" and previous and previous not in _ALLOWED and before_previous not in _BEFORE_ALIAS:
            return Problem("sql", f"the function {previous} is not available on this server")
        previous, before_previous = (text if is_name else ""), previous
    return None


_WORDS = """
    all and any array as between by case cast coalesce cross cube current_date current_timestamp distinct else
    except exists extract filter from full grouping group having ilike in inner intersect is join lateral left like
    limit not nullif offset on or order ordinality outer over overlay partition position recursive right rollup row
    select sets similar some substring table tablesample then trim union using values when where window with within
    bit char character dec decimal float interval national nchar numeric time timestamp timestamptz varbit varchar
    varying bernoulli system materialized
"""
_FUNCTIONS = """
    abs acos asin atan atan2 avg bit_and bit_or bool_and bool_or cbrt ceil ceiling corr cos count covar_pop
    covar_samp cume_dist degrees dense_rank div erf every exp first_value floor greatest lag last_value lead least
    ln log log10 max min mod mode nth_value ntile percent_rank percentile_cont percentile_disc pi power radians
    random rank regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy round
    row_number scale sign sin sqrt stddev stddev_pop stddev_samp sum tan trunc var_pop var_samp variance
    width_bucket age clock_timestamp date date_add date_bin date_part date_subtract date_trunc isfinite justify_days
    justify_hours justify_interval make_date make_interval make_time make_timestamp make_timestamptz now to_char
    to_date to_number to_timestamp timezone generate_series generate_subscripts
    array_agg array_append array_cat array_dims array_length array_ndims array_position array_positions
    array_prepend array_remove array_replace array_reverse array_sort array_to_json array_to_string array_upper
    array_lower cardinality string_to_array string_to_table unnest trim_array
    ascii bit_length btrim char_length character_length chr concat concat_ws decode encode format initcap length
    lower lpad ltrim md5 normalize octet_length quote_ident quote_literal quote_nullable regexp_count regexp_instr
    regexp_like regexp_match regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table regexp_substr
    repeat replace reverse rpad rtrim sha224 sha256 sha384 sha512 split_part starts_with string_agg strpos substr
    to_hex translate upper json json_agg json_array json_array_elements json_array_elements_text json_array_length
    json_build_array json_build_object json_each json_each_text json_extract_path json_extract_path_text json_object
    json_object_agg json_object_keys json_scalar json_serialize json_table json_to_record json_to_recordset
    json_typeof json_value json_query json_exists json_arrayagg json_objectagg jsonb_agg jsonb_array_elements
    jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text
    jsonb_extract_path jsonb_extract_path_text jsonb_insert
    jsonb_object jsonb_object_agg jsonb_object_keys jsonb_path_exists jsonb_path_match jsonb_path_query
    jsonb_path_query_array jsonb_path_query_first jsonb_pretty jsonb_set jsonb_strip_nulls jsonb_to_record
    jsonb_to_recordset jsonb_typeof row_to_json to_json to_jsonb json_strip_nulls columns nested
    num_nonnulls num_nulls gen_random_uuid uuid_extract_timestamp pg_typeof pg_column_size pg_size_pretty
"""
_ALLOWED = frozenset((_WORDS + _FUNCTIONS).split())
_BEFORE_ALIAS = frozenset({"as", "with", "recursive"})  # no function call follows: `as t(x)`, `with t(x) as`
_HARMLESS_NAMES = frozenset({"pg_typeof", "pg_column_size", "pg_size_pretty", "pg_catalog"})
