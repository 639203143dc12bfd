"""The root secret: `WORKBENCH_SECRET`, or one made once and kept in the data folder (0600).

Everything sealed or hashed depends on it: whoever loses it loses the emails and all keys.
"""

from api.clock import token
from api.commands import CommandError, private
from api.settings import Settings

_SHORTEST = 16


def root_secret(settings: Settings) -> str:
    """Return the secret of this installation; raise CommandError for one too short to be one."""
    if settings.secret is None:
        return private.kept(settings.data_dir / "secret", token(32).hex())
    if len(settings.secret) < _SHORTEST:
        raise CommandError(
            f"WORKBENCH_SECRET is shorter than {_SHORTEST} characters; make one with: openssl rand -hex 32"
        )
    return settings.secret
