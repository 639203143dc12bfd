"""An installation without processes yet."""

from tests.acceptance.conftest import house

__all__ = ["house"]
