"""Provides a service and an organization for the tests of the routes, and the operations of all routes by name."""

from sanic import Sanic

from api.app import BLUEPRINTS
from api.openapi.document import documented_routes
from tests.routes.conftest import acme, service

_describing = Sanic("describing", configure_logging=False)
for blueprint in BLUEPRINTS:
    _describing.blueprint(blueprint)

OPERATIONS = {name: operation for name, (_, operation) in documented_routes(_describing.router.routes).items()}

__all__ = ["OPERATIONS", "acme", "service"]
