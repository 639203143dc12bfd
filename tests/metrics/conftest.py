"""Provides an installation; tests start its processes."""

from tests.acceptance.conftest import house

__all__ = ["house"]
