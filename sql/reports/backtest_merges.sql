-- The merges since the beginning of the period: of which contact into which, when, which contact it is part of today, and when the merge
-- was undone.
{% import "backtest_macros.sql" as macros %}
{{ macros.merges() }}
