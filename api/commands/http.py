"""One question to a process of ours, past any proxy."""

import http.client
from urllib.parse import urlsplit

from api.commands import CommandError


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


def text(url: str) -> str:
    """Return the text at an address `http://HOST:PORT/PATH`; raise CommandError when there is none."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise CommandError(f"{url} is not an address like http://127.0.0.1:9464/metrics")
    connection = http.client.HTTPConnection(parts.netloc, timeout=5.0)
    try:
        connection.request("GET", parts.path or "/metrics")
        answer = connection.getresponse()
        if answer.status != 200:
            raise CommandError(f"{url} answers {answer.status}")
        return answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise CommandError(f"{url} cannot be read: {error}") from error
    finally:
        connection.close()
