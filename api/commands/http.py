"""One question to a process of ours on this machine, past any proxy."""

import http.client


def status(port: int, path: str) -> int | None:
    """Return the HTTP status of a GET, or None when nobody answers within two seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
