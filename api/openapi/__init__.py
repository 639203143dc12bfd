"""The description of the API (OpenAPI 3.1), made of what runs: the routes, their docstrings and the types of their answers.

`operations` says for each route what cannot be read off it: whose key may call it, and what goes in and comes out.
"""
