"""Tell of what the system refuses as an error of the log that names the file."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from .errors import LogUnavailable, StrPath

Arguments = ParamSpec("Arguments")
Self_ = TypeVar("Self_")
What = TypeVar("What", int, str, Path)
T = TypeVar("T")


class DiskRefused(LogUnavailable, OSError):
    """The system refused a call on {path}: {reason}.
    Look at the disk, its room, the limits and the rights; try again once the cause is gone.
    """

    def __init__(self, path: StrPath, reason: str, errno: int = 0) -> None:
        super().__init__(path, reason)
        self.args = (os.fspath(path), reason, errno)
        self.errno = errno
        self.strerror = reason


def told(
    call: Callable[Concatenate[Self_, What, Arguments], T],
) -> Callable[Concatenate[Self_, What, Arguments], T]:
    """Let a refusal of the system be an error of the log that names the file; what is asked about stays as it is."""

    @wraps(call)
    def tell(self: Self_, what: What, /, *args: Arguments.args, **options: Arguments.kwargs) -> T:
        try:
            return call(self, what, *args, **options)
        except (FileNotFoundError, FileExistsError, NotADirectoryError, LogUnavailable):
            raise
        except OSError as error:
            raise refused(what, error) from error

    return tell


def refused(what: int | StrPath, error: OSError) -> DiskRefused:
    """Return the error that tells of a refused call, for a path or a descriptor."""
    path = path_of(what) if isinstance(what, int) else what
    return DiskRefused(path, error.strerror or str(error), error.errno or 0)


def names_in(directory: Path) -> list[str]:
    """Return the names in a directory, sorted; none where it is missing."""
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refused(directory, error) from error


def path_of(fd: int) -> str:
    """Return the path that a descriptor was opened by, as far as the system tells."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return f"descriptor {fd}"
