"""Find the events of one run without reading the log whole.

Every byte of the log is looked at once per process. What was found stays in memory, and a part of
it moves to a database beside the log, so that the next process begins where an earlier one ended.
The database is disposable: it says where events are, never what they are, and each hit is hashed
again.

The run id is cut out of the raw line; no JSON is read. That is sound because a quote inside a
JSON text is always escaped, so the last ``,"run":`` of a payload is the envelope's.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from ..chain import HASH_BYTES
from ..control import Head
from ..errors import LogCorrupt, LogUnavailable
from ..events import Event, run_key
from .claim import Claim
from .index_store import IndexLost, IndexStore, Mark
from .layout import Layout
from .lines import Line
from .locks import Patience
from .reader import Reader, View
from .repair import FENCE
from .shield import shielded

T = TypeVar("T")

CHUNK_BYTES = 1024 * 1024
TAIL_EVENTS_MAX = 16384
"""How many events one process keeps in memory before it hands them to the database."""

_RUN = b',"run":'
_TOKEN = b',"token":'
_FIELDS = 4  # seq, offset of the line before, offset, offset behind


class Index:
    """Know where the events of each run are, and each run's highest fence."""

    def __init__(self, layout: Layout, reader: Reader, *, lock_seconds: float) -> None:
        self._reader = reader
        self._lock_seconds = lock_seconds
        self._store = IndexStore(layout.index, reader.header.log_id)
        self._begin = Mark(reader.header.first_seq - 1, len(reader.header.format()), -1, "", 0)
        self._mark: Mark | None = None
        self._tail: dict[bytes, array[int]] = {}
        self._tail_events = 0
        self._fences: dict[bytes, int] = {}
        self.forget()

    @property
    def fence_count(self) -> int:
        """Return how many fences have been looked at; -1 before the first look."""
        return self._mark.fences if self._mark is not None else -1

    def forget(self) -> None:
        """Drop what a child of a fork must not share; what is known about the log stays true."""
        self._claim = Claim()
        self._store.forget()

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def fence(self, run_id: str) -> int:
        """Return the highest fencing token of a run among the fences looked at; 0 without one."""
        return self._fences.get(run_key(run_id), 0) if self._fences else 0

    def catch_up(self, head: Head | None = None) -> None:
        """Look at everything up to `head`, by default up to what is published now."""
        self._alone(partial(self._look, head))

    def history(self, run_id: str) -> list[Event]:
        """Return the events of a run in order, each checked against the hash before it.

        Raises:
            LockTimeout: another thread is looking at a long log.
            LogCorrupt: a line of the run does not verify.
        """
        return self._alone(partial(self._history, run_key(run_id)))

    def _alone(self, work: Callable[[], T]) -> T:
        """Run `work` in one thread at a time; see append.py on why giving back is done twice."""
        if self._claim.is_mine():
            raise LogUnavailable(self._reader.path, "a handler interrupted a look at the log")
        patience = Patience(self._reader.files, self._lock_seconds)
        while True:
            try:
                try:
                    if self._claim.take():
                        return work()
                finally:
                    self._claim.give_back()
            finally:
                self._claim.give_back()
            patience.nap(self._reader.view().log, lambda _: "another thread of this process")

    def _look(self, head: Head | None) -> None:
        view = self._reader.view()
        self._catch_up(view, self._end(view, head))

    def _history(self, key: bytes) -> list[Event]:
        view = self._reader.view()
        self._catch_up(view, self._end(view, None))
        try:
            return [self._load(view, key, hit) for hit in self._hits(key)]
        except (LogCorrupt, IndexLost):
            if not self._store.holds_anything():
                raise
        self._discard()  # an index that is wrong must not make a good log look bad
        self._catch_up(view, self._end(view, None))
        return [self._load(view, key, hit) for hit in self._hits(key)]

    def _end(self, view: View, head: Head | None) -> int:
        if head is None and view.control is not None:
            head = view.control.read_settled()[0]
        return head.size if head is not None else self._reader.files.size(view.log.fd)

    def _catch_up(self, view: View, end: int) -> None:
        mark = self._mark
        if mark is None or end - mark.offset > CHUNK_BYTES:
            mark = self._resume(view, end)
        while mark.offset < end:
            size = min(CHUNK_BYTES, end - mark.offset)
            data = self._reader.files.read(view.log.fd, size, mark.offset)
            if b"\n" not in data:
                size = min(2 * CHUNK_BYTES, end - mark.offset)  # a line may be longer than a chunk
                data = self._reader.files.read(view.log.fd, size, mark.offset)
            stop = data.rfind(b"\n") + 1
            if not stop:
                return
            mark = shielded(partial(self._take, mark, data[:stop]))
            if self._tail_events >= TAIL_EVENTS_MAX:
                shielded(self._hand_over)

    def _resume(self, view: View, end: int) -> Mark:
        """Begin where the database ends, if it ends in this log and further than this process is."""
        relied_on_it = self._store.holds_anything()
        try:
            stored = self._store.load(lambda stored: self._is_of(view, stored, end))
            fences = self._store.fences() if stored is not None else {}
        except IndexLost:
            self._store.discard()
            stored, fences = None, {}
        if relied_on_it and stored is None:
            self._discard()  # what was handed over is lost with it
        known = self._mark or self._begin
        if stored is not None and stored.seq > known.seq:
            self._fences.update(fences)
            self._tail, self._tail_events = {}, 0
            known = stored
        self._mark = known
        return known

    def _is_of(self, view: View, stored: Mark, end: int) -> bool:
        if not 0 <= stored.last < stored.offset <= end:
            return False
        found = self._reader.files.read(view.log.fd, HASH_BYTES, stored.last)
        return found == stored.hash.encode("ascii")

    def _take(self, mark: Mark, data: bytes) -> Mark:
        """Enter whole lines; only the last assignment counts them as looked at."""
        seq, offset, last, fences = mark.seq, mark.offset, mark.last, mark.fences
        hash_ = b""
        for line in data.split(b"\n")[:-1]:
            seq += 1
            stop = offset + len(line) + 1
            at = line.rfind(_RUN) + len(_RUN)
            key = line[at : line.rfind(_TOKEN)]
            if at >= len(_RUN) and key != b"null":
                self._enter(key, (seq, last, offset, stop))
                if line.startswith(FENCE, HASH_BYTES):
                    token = _token_of(line)
                    self._fences[key] = max(self._fences.get(key, 0), token)
            fences += line.startswith(FENCE, HASH_BYTES)
            hash_ = line[:HASH_BYTES]
            last, offset = offset, stop
        self._mark = Mark(seq, offset, last, hash_.decode("ascii", "replace"), fences)
        return self._mark

    def _enter(self, key: bytes, hit: tuple[int, int, int, int]) -> None:
        hits = self._tail.get(key)
        if hits is None:
            self._tail[key] = array("q", hit)
        elif hits[-_FIELDS] < hit[0]:  # an interrupted look may come by a second time
            hits.extend(hit)
        self._tail_events += 1

    def _hand_over(self) -> None:
        if self._mark is not None and self._store.save(self._mark, self._tail, self._fences):
            self._tail, self._tail_events = {}, 0

    def _discard(self) -> None:
        self._store.discard()
        self._mark, self._tail, self._tail_events, self._fences = None, {}, 0, {}

    def _hits(self, key: bytes) -> list[tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {hit[0]: hit for hit in self._store.hits(key)}
        found.update((hit[0], hit) for hit in _tuples(self._tail.get(key)))
        return [found[seq] for seq in sorted(found)]

    def _load(self, view: View, key: bytes, hit: tuple[int, ...]) -> Event:
        seq, last, offset, stop = hit
        header = self._reader.header
        files, fd = self._reader.files, view.log.fd
        previous = files.read(fd, HASH_BYTES, last) if last >= 0 else header.base_hash.encode()
        data = files.read(fd, stop - offset, offset)
        line = Line(offset, data[:-1], stop, data[-1:] == b"\n")
        event = self._reader.check(line, seq, previous)
        if event.run_id is None or run_key(event.run_id) != key:
            raise LogCorrupt(seq, self._reader.path, offset, "the index names another run's event")
        return event


def _token_of(line: bytes) -> int:
    text = line[line.rfind(_TOKEN) + len(_TOKEN) : line.rfind(b",")]
    return int(text) if text.isdigit() else 0


def _tuples(hits: array[int] | None) -> Iterator[tuple[int, ...]]:
    numbers = iter(hits or ())
    return zip(numbers, numbers, numbers, numbers, strict=True)
