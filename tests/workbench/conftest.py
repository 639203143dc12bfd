"""The API of the tests of the routes, for tests that need an organization of their own."""

from tests.routes.conftest import service

__all__ = ["service"]
