"""Event Workbench's server: ingest API, automation engine and everything they share.

Imports point one way: `__main__ > commands > app | worker > routes > ingest | engine | authoring | query | access
> store | delivery | embedded > clock | keyring | settings | language`; import-linter proves it.
"""
