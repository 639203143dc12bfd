"""The API over real HTTP, with the fixtures of `tests/routes`."""

from tests.routes.conftest import acme, globex, service

__all__ = ["acme", "globex", "service"]
