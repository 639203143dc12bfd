-- The events, logs and starts, unordered: the client sorts millions of rows by contact faster.
{% import "backtest_parts.sql" as parts %}
{{ parts.rows(selection, sample) }}
