"""The only package that speaks to Postgres: one typed function per named statement of `sql/queries/`.

Functions take their caller's transaction and never commit, so one unit of work is one transaction with one commit at
the edge.
"""
