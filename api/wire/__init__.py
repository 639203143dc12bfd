"""Strict parsing of HTTP/1 requests (`http1`), and the connections and WebSockets they arrive on (`connection`)."""
