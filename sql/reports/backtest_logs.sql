-- The logs, in no order, as events are read: by the name of the contract's event where they may start an entry, else as waits call them.
{% import "backtest_parts.sql" as parts %}
{{ parts.logs(selection, whom) }}
