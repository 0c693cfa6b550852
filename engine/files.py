"""Make every system call of the log, in one place.

Whatever the log does to a file goes through one :class:`Files`, so that a test can stand a faulty
disk in its place, and so that the calls which make the log durable can be counted on one page.

Descriptors are numbers that others may close and reuse (a daemonising process closes all of
them), so a file is opened together with its identity, and the identity is compared again before
anything is written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import LogUnavailable, LogUnreadable
from .greenlets import hub_threadpool
from .refused import path_of, refused, told

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

SECOND_NAME = "has a second name (hard link); give the log a file of its own"

_ALWAYS = (
    os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
)  # NONBLOCK: a pipe in a file's place must not hang the open


_NO_LOCKS = frozenset((errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL))
_NO_LOCKS_REASON = "its file system cannot lock files; put the state on a local disk"


@dataclass(frozen=True, slots=True)
class Opened:
    """Hold a descriptor and the file that it meant when it was opened."""

    fd: int
    path: str
    device: int
    inode: int

    def is_intact(self) -> bool:
        """Tell whether the number still means that file, and the file still has a name."""
        return all_intact((self,))

    def close(self) -> None:
        """Close the descriptor, unless the number means something else by now."""
        try:
            found = os.fstat(self.fd)
            if found.st_ino == self.inode and found.st_dev == self.device:
                os.close(self.fd)
        except OSError:
            pass  # closed already by somebody else: nothing of ours is left


def all_intact(all_opened: Iterable[Opened]) -> bool:
    """Tell whether each number still means its file, and each file still has a name."""
    fstat = os.fstat
    try:
        for opened in all_opened:
            found = fstat(opened.fd)
            if found.st_ino != opened.inode or found.st_dev != opened.device or not found.st_nlink:
                return False
    except OSError:
        return False
    return True


def all_writable(all_opened: Iterable[Opened]) -> bool:
    """Tell whether each number may be written through; closed and reused, it may mean the same file, to be read."""
    try:
        return all(
            fcntl.fcntl(opened.fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
            for opened in all_opened
        )
    except OSError:
        return False


class Files:
    """Open, read, write, lock and sync files; the only part of the log that knows the operating system."""

    def open(self, path: Path, flags: int, *, names_max: int = 1) -> Opened:
        """Open a regular file that is ours, never through a symbolic link; it has at most `names_max` names.

        Raises:
            FileNotFoundError: it is missing and O_CREAT was not asked for.
            LogUnavailable: it cannot be opened, is no regular file, or others could write it.
        """
        try:
            fd = os.open(path, flags | _ALWAYS, FILE_MODE)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LogUnavailable(path, f"{path.name} cannot be opened: {error.strerror}") from error
        found = _looked_at(fd, path)
        reason = _refusal(found, stat.S_ISREG, "regular file")
        if reason is None and found.st_nlink > names_max:
            reason = SECOND_NAME
        if reason is not None:
            os.close(fd)
            raise LogUnavailable(path, f"{path.name} {reason}")
        return Opened(fd, os.fspath(path), found.st_dev, found.st_ino)

    def open_to_read(self, path: Path) -> Opened:
        """Open a regular file that is only looked at: whoever may read it may, whatever name it goes by.

        Raises:
            FileNotFoundError: it is missing.
            LogUnreadable: it cannot be opened, or is no regular file.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise LogUnreadable(path, error.strerror or str(error)) from error
        found = _looked_at(fd, path)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise LogUnreadable(path, "it is not a regular file")
        return Opened(fd, os.fspath(path), found.st_dev, found.st_ino)

    def make_directory(self, path: Path) -> None:
        """Make a directory for us alone, with its parents, or check the one that is there.

        Raises:
            LogUnavailable: it cannot be made, is a symbolic link, or others could write into it.
        """
        try:
            self._make_missing(path)
            found = os.lstat(path)
        except OSError as error:
            raise LogUnavailable(path, f"its directory cannot be made: {error.strerror}") from error
        reason = _refusal(found, stat.S_ISDIR, "directory")
        if reason is not None:
            raise LogUnavailable(path, f"{path.name} {reason}")

    def _make_missing(self, path: Path) -> None:
        """Make a directory and what is missing above it, each on disk before anything is made inside it.

        One that is there is synced too: whoever made it may have been killed before that.
        """
        try:
            self._mkdir(path)
        except FileNotFoundError:
            self._make_missing(path.parent)
            self._mkdir(path)
        self.sync_directory(path.parent)

    def _mkdir(self, path: Path) -> None:
        with suppress(FileExistsError):  # whoever made it; who asked looks at what it is
            os.mkdir(path, DIRECTORY_MODE)

    def mounts(self) -> list[str]:
        """Return the lines of this process's mount table; none where the system has no such table."""
        try:
            return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
        except OSError:
            return []

    # Those that every append calls do for themselves what `told` does for the others: a wrapper costs a tenth of it.

    def stat(self, path: str) -> os.stat_result:
        """Return what the path means now, not following a symbolic link."""
        try:
            return os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise refused(path, error) from error

    def exists(self, path: Path) -> bool:
        """Tell whether the path is there, even as a dangling link."""
        try:
            self.stat(os.fspath(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @told
    def names(self, fd: int) -> int:
        """Return how many names the file has."""
        return os.fstat(fd).st_nlink

    def size(self, fd: int) -> int:
        """Return the file's size in bytes."""
        try:
            return os.fstat(fd).st_size
        except OSError as error:
            raise refused(fd, error) from error

    def read(self, fd: int, size: int, offset: int) -> bytes:
        """Read up to `size` bytes at `offset`; fewer only at the end of the file."""
        try:
            data = os.pread(fd, size, offset)
            while 0 < len(data) < size:
                more = os.pread(fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise refused(fd, error) from error
        return data

    def append(self, fd: int, data: bytes) -> int:
        """Write at the end of a file opened with O_APPEND; return how many bytes were taken."""
        try:
            return os.write(fd, data)
        except OSError as error:
            raise refused(fd, error) from error

    def write_at(self, fd: int, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`."""
        try:
            while data:
                written = os.pwrite(fd, data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise refused(fd, error) from error

    @told
    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(fd, size)

    @told
    def sync(self, fd: int) -> None:
        """Wait until the file's bytes, and its size, are on disk."""
        if sys.platform == "darwin":
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync there only reaches the drive's cache
        else:
            os.fdatasync(fd)

    def sync_meanwhile(self, fd: int) -> None:
        """Do the same; where greenlets share this thread, the others run on until the disk is done.

        Only for what one of them does at a time: a greenlet must not find the signal mask as another left it.
        """
        pool = hub_threadpool()
        if pool is None:
            self.sync(fd)
        else:
            pool.apply(self.sync, (fd,))

    @told
    def sync_directory(self, path: Path) -> None:
        """Wait until the names in a directory are on disk."""
        sync_directory(path)

    def sync_way(self, path: Path) -> None:
        """Wait until every name that leads to a path is on disk, as far up as its file system goes.

        What this user may not open for reading is passed over.
        """
        device = os.lstat(path.parent).st_dev
        for directory in path.parents:
            if os.lstat(directory).st_dev != device:
                break
            try:
                self.sync_directory(directory)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM):
                    raise

    @told
    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, over whatever had it, and wait until that is on disk."""
        self._rename(source, target)
        self.sync_directory(target.parent)
        if source.parent != target.parent:
            self.sync_directory(source.parent)

    def _rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    @told
    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which nothing must have yet, and wait until that is on disk."""
        self._link(source, target)
        self.sync_directory(target.parent)

    def _link(self, source: Path, target: Path) -> None:
        os.link(source, target, follow_symlinks=False)

    def is_same(self, path: Path, opened: Opened) -> bool:
        """Tell whether the path means this file now."""
        try:
            found = os.lstat(path)
        except OSError:
            return False
        return found.st_ino == opened.inode and found.st_dev == opened.device

    @told
    def remove(self, path: Path) -> None:
        """Remove a name, if it is there."""
        path.unlink(missing_ok=True)

    def try_lock(self, fd: int) -> bool:
        """Take the lock on a whole file if nobody else has it.

        Raises:
            LogUnavailable: files cannot be locked there; nothing is ever written without the lock.
        """
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _NO_LOCKS:
                raise LogUnavailable(
                    path_of(fd), f"{_NO_LOCKS_REASON} ({error.strerror})"
                ) from error
            raise refused(fd, error) from error
        return True

    def unlock(self, fd: int) -> None:
        """Give the lock on a file back."""
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            pass  # the descriptor was closed by somebody else, and the lock went with it

    def lock_holder(self, opened: Opened) -> str:
        """Name the process that holds the lock on a file, as far as this host tells."""
        where = f"{os.major(opened.device):02x}:{os.minor(opened.device):02x}:{opened.inode}"
        try:
            rows = [row.split() for row in Path("/proc/locks").read_text("ascii").splitlines()]
            pid = next(int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == where)
            name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
        except (OSError, ValueError, LookupError, StopIteration):
            return "a process that this host does not show (another container?)"
        return f"process {pid} ({name})"

    def seconds(self) -> float:
        """Return seconds of a clock that only goes forward."""
        return time.monotonic()

    def nap(self, seconds: float) -> None:
        """Give way to others for a moment."""
        time.sleep(seconds)

    def give_way(self) -> None:
        """Let whoever is ready to run go first, without sleeping."""
        os.sched_yield()


def _looked_at(fd: int, path: Path) -> os.stat_result:
    """Return what was opened; a descriptor that cannot even be asked is closed again."""
    try:
        return os.fstat(fd)
    except OSError as error:
        os.close(fd)
        raise refused(path, error) from error


def _refusal(found: os.stat_result, is_type: object, kind: str) -> str | None:
    """Return why a file or directory is not safe to use, or None."""
    if not callable(is_type) or not is_type(found.st_mode):
        return f"is not a {kind}"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to {os.geteuid()}; run as its owner, or change the owner"
    if found.st_mode & 0o022:
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):o}); remove that right with chmod go-w"
    return None


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
