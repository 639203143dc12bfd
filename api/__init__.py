"""The server of Event Workbench: ingest API, automation engine, SQL for analysts, and the command line.

Imports point one way, from the command line to the store. The layers are in pyproject.toml; import-linter checks them.
"""
