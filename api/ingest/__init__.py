"""Ingest of live events: `pipeline` takes requests, `batch_writer` gathers them, `store` writes batches."""
