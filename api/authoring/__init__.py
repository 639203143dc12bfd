"""Automations and entries as an API: values in, values out, refusals as values.

`draft` and `trial` read what callers send; `automations`, `trial` and `entries` are the use cases, each one transaction;
`views` is what callers see. Whatever compiles templates runs in a thread beside the event loop: 64 KB of expressions
take 1.7 s.
"""
