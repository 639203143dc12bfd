"""Provides a service and an organization for the tests of the routes."""

from tests.routes.conftest import acme, service

__all__ = ["acme", "service"]
