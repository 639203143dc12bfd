"""Fixtures of the routes' tests: a service and an organization."""

from tests.routes.conftest import acme, service

__all__ = ["acme", "service"]
