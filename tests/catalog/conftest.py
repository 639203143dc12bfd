"""Live ingest without HTTP, with the fixtures of `tests/ingest`."""

from tests.ingest.conftest import acme, globex, intake

__all__ = ["acme", "globex", "intake"]
