"""Ingest of live events: `pipeline` takes requests and gathers them into batches, `store` writes the batches."""
