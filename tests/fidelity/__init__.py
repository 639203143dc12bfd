"""The fidelity machine: the engine plays random worlds, and every other interpreter must tell what it did.

`worlds` draws a world: automations, contacts with pasts, and what happens to them. `stage` plays it with real engines
on a real Postgres. `compare` lets the other interpreters tell what happened, and returns the differences; what an
interpreter cannot know is listed in `limits`. `python -m tests.fidelity` runs as many cases as wanted.
"""
