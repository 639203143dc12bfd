"""Use cases of automations and entries: values in, values out; a refusal is a value, too.

`body` and `trial` parse requests; `automations`, `entries`, `trial`, `test_send` and `goals` are the use cases, each
in one transaction where that is possible; `views` are the JSON shapes of the responses. Whatever compiles templates
runs in a thread: 64 KB of expressions take 1.7 s.
"""
