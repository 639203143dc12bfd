"""Small private files of the data folder: secrets, tokens, keys. Folder 0700 when we make it, files 0600 always."""

import os
from pathlib import Path

from api.clock import token
from api.commands import CommandError


def make_folder(folder: Path) -> Path:
    """Make a folder, and those above it that are missing, for us alone; one that exists keeps its mode."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CommandError(f"the folder {folder} cannot be made: {error.strerror}") from error
    return folder


def read(path: Path) -> str | None:
    """Return the text of a private file, or None when there is none; raise CommandError when it is not for us."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error


def write(path: Path, text: str) -> None:
    """Write a private file all at once, over what was there."""
    half = path.with_name(f"{path.name}.{token(4).hex()}")
    try:
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}") from error


def kept(path: Path, made: str) -> str:
    """Return the text kept in `path`; the first caller's `made` becomes that text, also when several come at once."""
    known = read(path)
    if known is not None and known.strip():
        return known.strip()
    make_folder(path.parent)
    half = path.with_name(f"{path.name}.{token(4).hex()}")
    write(half, made + "\n")
    try:
        os.link(half, path)
    except FileExistsError:
        return (read(path) or made).strip()
    finally:
        half.unlink()
    return made
