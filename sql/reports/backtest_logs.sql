-- The logs, unordered like the events: named by the contract's event if they may start an entry, otherwise as waits name them.
{% import "backtest_parts.sql" as parts %}
{{ parts.logs(selection, sample) }}
