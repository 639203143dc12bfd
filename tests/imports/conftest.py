"""Live ingest with and without HTTP, with the fixtures of `tests/ingest` and `tests/routes`."""

from tests.ingest.conftest import acme, intake
from tests.routes.conftest import service

__all__ = ["acme", "intake", "service"]
