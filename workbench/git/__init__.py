"""Automations as files: one each, in a folder that git keeps. `pull` writes them, `plan` compares, `apply` brings them to the server."""
