"""The description of the API (OpenAPI 3.1), built at run time from the routes, their docstrings and their types."""
