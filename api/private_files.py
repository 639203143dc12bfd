"""Small private files such as secrets, tokens and passwords: files have mode 0600, folders that we create 0700."""

import os
from pathlib import Path

from api.clock import token


class PrivateFileError(Exception):
    """A private file or its folder cannot be read or written; the message names the path and the reason."""


def make_folder(folder: Path) -> Path:
    """Create a folder and its missing parents for this user alone. An existing folder keeps its mode."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        for path in reversed(missing):  # mkdir(parents=True) would create the parents with the default mode
            path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise PrivateFileError(f"the folder {folder} cannot be created: {error.strerror}") from error
    return folder


def read(path: Path) -> str | None:
    """Return the text of a file, or None if the file does not exist."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PrivateFileError(f"{path} cannot be read: it is not UTF-8 text") from error


def write(path: Path, text: str) -> None:
    """Create or replace a file. Readers see the old text or the new text, never a partial one."""
    part = path.with_name(f"{path.name}.{token(4).hex()}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # a lost secret is lost data: it must survive a power failure
        part.replace(path)
    except OSError as error:
        raise PrivateFileError(f"{path} cannot be written: {error.strerror}") from error


def read_or_create(path: Path, text: str) -> str:
    """Return the stripped text of a file; if it does not exist or is empty, create it with `text` and return that.

    Concurrent callers get the same text.
    """
    stored = read(path)
    if stored is not None and stored.strip():
        return stored.strip()
    make_folder(path.parent)
    part = path.with_name(f"{path.name}.{token(4).hex()}")
    write(part, text + "\n")
    try:
        os.link(part, path)  # unlike a rename it fails if another process was faster
    except FileExistsError:
        return (read(path) or text).strip()
    finally:
        part.unlink()
    return text
