"""One server with its document, for the tests of a file."""

from tests.routes.conftest import acme, service

__all__ = ["acme", "service"]
