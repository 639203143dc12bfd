"""Automations as texts: sentences and Python, written and read without loss."""
