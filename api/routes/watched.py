"""What takes long ends when the key that asked for it does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sanic import Request

from api.routes.answers import RefusedError
from api.routes.entrance import require
from api.store.database import UnavailableError

LOOK_SECONDS = 2.0


async def still_allowed(request: Request, *scopes: str) -> bool:
    """Tell whether the key is still good. Nobody can say while the database is away; then there is nothing to see either."""
    try:
        await require(request, *scopes)
    except RefusedError:
        return False
    except UnavailableError:
        return True
    return True


@asynccontextmanager
async def while_allowed(request: Request, *scopes: str) -> AsyncIterator[None]:
    """Break the block off when its key has ended: with 401, or, where the answer has begun, with the connection."""
    asking, ended = asyncio.current_task(), asyncio.Event()
    assert asking is not None

    async def watch() -> None:
        allowed = True
        while allowed:
            await asyncio.sleep(LOOK_SECONDS)
            allowed = await still_allowed(request, *scopes)
        ended.set()
        asking.cancel()

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not ended.is_set():
            raise
        asking.uncancel()
        if request.responded:
            request.transport.abort()  # type: ignore[attr-defined]
        raise RefusedError(401, "the key has ended") from None
    finally:
        watching.cancel()
