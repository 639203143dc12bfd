"""The description of the API (OpenAPI 3.1), built at run time from the routes, their docstrings and their types.

`operations` adds for each route what cannot be read off it: which keys may call it, and the types of its input and
output.
"""
