"""The only code that speaks to Postgres: one typed function per named statement of `sql/queries/`.

Functions take the transaction of their caller and never commit: one unit of work, one transaction, one commit at the edge.
"""
