-- The events, logs and starts, unordered: the client sorts millions of rows by contact faster.
{% import "backtest_macros.sql" as macros %}
{{ macros.rows(selection, sample, live=live) }}
