"""The write-ahead log in a file: creating, appending, syncing, repairing, reading, indexing."""

from .kept import StoredLine
from .log import FileLog
from .reader import Reader

__all__ = ["FileLog", "Reader", "StoredLine"]
