"""Keep the secret of one log, under which digests of arguments are made.

A bare hash of a card number can be guessed by trying all of them; an HMAC under a secret that is not in the log cannot.
The secret is made once, by whoever is first, and never changed: a replay compares digests.
"""

from __future__ import annotations

import os
from pathlib import Path

from .errors import LogUnavailable
from .files import sync_directory

SECRET_BYTES = 32

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def keep_secret(path: Path) -> bytes:
    """Return the secret in `path`, making it when it is missing; of several makers at once one wins.

    Raises:
        LogUnavailable: it cannot be read or made, or is not a secret of ours.
    """
    try:
        found = _read(path)
        if found is None:
            _make(path)
            found = _read(path)
    except OSError as error:
        raise LogUnavailable(path, f"its secret cannot be kept ({error.strerror})") from error
    if found is None or len(found) != SECRET_BYTES:
        raise LogUnavailable(
            path, f"it is not a secret of {SECRET_BYTES} bytes; put the right file back"
        )
    return found


def _read(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, _READ)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, SECRET_BYTES + 1)
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    """Write a whole file aside and link it into place, so that nobody ever reads half a secret."""
    aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(aside, _MAKE, 0o600)
    try:
        os.write(descriptor, os.urandom(SECRET_BYTES))
        os.fsync(descriptor)
        os.link(aside, path)
    except FileExistsError:
        pass  # somebody else was first; theirs is the secret
    finally:
        os.close(descriptor)
        os.unlink(aside)
    sync_directory(path.parent)
