-- The merges since the beginning of the period that were not undone: of which contact into which, when, and which contact both are today.
{% import "backtest_macros.sql" as macros %}
{{ macros.merges() }}
