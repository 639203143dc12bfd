"""Hypothesis for the language: no deadlines (machines are shared), no files left behind."""

from hypothesis import settings

settings.register_profile("language", deadline=None, database=None, print_blob=True)
settings.load_profile("language")
