"""Find the events of one run without reading the log whole.

Every byte of the log is looked at once per process. What was found stays in memory, and a part of
it moves to a database beside the log, so that the next process begins where an earlier one ended.
The database is disposable: it says where events are, never what they are, and each hit is hashed
again.

The run id is cut out of the raw line; no JSON is read. That is sound because a quote inside a
JSON text is always escaped, so the last ``,"run":`` of a payload is the envelope's.

A hit names the file that it lies in. When that one is gone, compacted away, whoever keeps the lines of
unfinished runs instead is asked for them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from ..chain import HASH_BYTES, follows, split_line
from ..control import Head
from ..errors import LogCorrupt, LogUnavailable
from ..events import Event, Position, decode_line, run_key
from ..files import Opened
from .claim import Claim
from .damage import Accepted, is_lost, right_header
from .fences import Fences
from .index_store import IndexLost, IndexStore, Mark
from .kept import Retained, StoredLine
from .layout import Layout
from .lines import Line
from .locks import Patience
from .reader import Reader
from .repair import FENCE
from .segments import LogFile
from .shield import shielded

T = TypeVar("T")

CHUNK_BYTES = 1024 * 1024
TAIL_EVENTS_MAX = 16384
"""How many events one process keeps in memory before it hands them to the database."""

_RUN = b',"run":'
_TOKEN = b',"token":'
_LOOKS = 50
_FIELDS = 5  # seq, file, offset of the line before (-1: the header), offset, offset behind


class _Goal(NamedTuple):
    """Say how far to look: a file, and the offset in it."""

    file: int
    offset: int


class Index:
    """Know where the events of each run are, and each run's highest fence."""

    def __init__(self, layout: Layout, reader: Reader, *, lock_seconds: float) -> None:
        self._reader = reader
        self._lock_seconds = lock_seconds
        self._store = IndexStore(layout.index, reader.log_id)
        self._retained: Retained | None = None
        self._begins_at = 1
        self._mark: Mark | None = None
        self._tail: dict[bytes, array[int]] = {}
        self._tail_events = 0
        self._fences = Fences()
        self.forget()

    @property
    def seen_seq(self) -> int:
        """Return up to which seq every fence is known; 0 before the first look."""
        return self._mark.seq if self._mark is not None else 0

    @property
    def begins_at(self) -> int:
        """Return where the log begins, as far as this process has had to know."""
        return self._begins_at

    def retain(self, source: Retained) -> None:
        """Ask `source` for the lines whose files are gone."""
        self._retained = source

    def forget(self) -> None:
        """Drop what a child of a fork must not share; what is known about the log stays true."""
        self._claim = Claim()
        self._store.forget()

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def fence(self, run_id: str) -> int:
        """Return the highest fencing token of a run among the fences looked at; 0 without one."""
        kept = self._retained
        ask = partial(kept.fence, run_id) if kept is not None and self._begins_at > 1 else None
        return self._fences.highest(run_key(run_id), ask)

    def catch_up(self, head: Head | None = None) -> None:
        """Look at everything up to `head`, by default up to what is published now."""
        self._alone(partial(self._look, head))

    def history(self, run_id: str) -> list[Event]:
        """Return the events of a run in order, each checked against the hash before it.

        Raises:
            LockTimeout: another thread is looking at a long log.
            LogCorrupt: a line of the run does not verify.
        """
        return [event for _, event in self.entries(run_id)]

    def entries(self, run_id: str) -> list[tuple[StoredLine, Event]]:
        """Return the same, each with the line that it stands on.

        Raises:
            LockTimeout, LogCorrupt: as for history.
        """
        return self._alone(partial(self._read, run_id))

    def start_over(self) -> None:
        """Throw away what is known; whoever asks next has the whole log looked through."""
        self._alone(self._discard)

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
            patience.nap(
                Opened(-1, self._reader.path, 0, 0), lambda _: "another thread of this process"
            )

    def _look(self, head: Head | None) -> None:
        self._catch_up(self._goal(head))

    def _read(self, run_id: str) -> list[tuple[StoredLine, Event]]:
        key = run_key(run_id)
        self._catch_up(self._goal(None))
        try:
            found = self._load_all(key)
        except (LogCorrupt, IndexLost):
            if not self._store.holds_anything():
                raise
            self._discard()  # an index that is wrong must not make a good log look bad
            self._catch_up(self._goal(None))
            found = self._load_all(key)
        if self._begins_at == 1:
            return found
        seen = {line.seq for line, _ in found}
        kept = [self._checked(key, line) for line in self._kept(run_id) if line.seq not in seen]
        return sorted([*kept, *found], key=lambda each: each[0].seq)

    def _goal(self, head: Head | None) -> _Goal:
        head = head or self._reader.published()[0]
        if head is not None:
            return _Goal(head.file, head.size)
        number = self._reader.numbers()[-1]
        log = self._reader.file(number)
        return _Goal(number, self._reader.files.size(log.opened.fd) if log is not None else 0)

    def _catch_up(self, goal: _Goal) -> None:
        mark = self._mark
        if mark is None or mark.file != goal.file or goal.offset - mark.offset > CHUNK_BYTES:
            mark = self._resume(goal)
        while True:
            log = self._reader.file(mark.file)
            if log is not None:
                if mark.file < goal.file:  # the active file has no accepted damage
                    mark = self._look_past_lost(log, mark)
                mark = self._look_through(log, mark, self._end(log, goal))
            if mark.file >= goal.file:
                return
            mark = self._next_file(mark)

    def _look_through(self, log: LogFile, mark: Mark, end: int) -> Mark:
        """Look at what comes after `mark` in its file."""
        files, fd = self._reader.files, log.opened.fd
        while mark.offset < end:
            size = min(CHUNK_BYTES, end - mark.offset)
            data = files.read(fd, size, mark.offset)
            if b"\n" not in data:
                size = min(2 * CHUNK_BYTES, end - mark.offset)  # a line may be longer than a chunk
                data = files.read(fd, size, mark.offset)
            stop = data.rfind(b"\n") + 1
            if not stop:
                break
            mark = shielded(partial(self._take, mark, data[:stop]))
            if self._tail_events >= TAIL_EVENTS_MAX:
                shielded(self._hand_over)
        return mark

    def _look_past_lost(self, log: LogFile, mark: Mark) -> Mark:
        """Look at what comes before the lost part of a file, if it has one, and go on behind that."""
        lost = self._reader.lost_in(mark.file)
        if lost is None or mark.offset >= lost.stop:
            return mark
        self._look_through(log, mark, lost.offset)
        self._mark = Mark(lost.last_seq, lost.stop, lost.hash_at, lost.hash, mark.file)
        return self._mark

    def _end(self, log: LogFile, goal: _Goal) -> int:
        if log.header.first_seq == goal.file:
            return goal.offset
        return self._reader.files.size(log.opened.fd)

    def _next_file(self, mark: Mark) -> Mark:
        """Begin the file after the one of `mark`; what should stand between them is not the index's to say."""

        def number() -> int:
            found = next(each for each in self._reader.numbers() if each > mark.file)
            if found != mark.seq + 1:
                self._notice_compaction()
            return found

        self._mark = self._first_mark_of(number)
        return self._mark

    def _first_mark_of(self, number: Callable[[], int]) -> Mark:
        """Begin a file that may be compacted away between asking for its number and opening it."""
        for _ in range(_LOOKS):
            if (log := self._reader.file(number())) is not None:
                return _first_mark(log)
        raise LogUnavailable(self._reader.path, "its files change all the time")

    def _resume(self, goal: _Goal) -> Mark:
        """Begin where the database ends, if it ends in this log and further than this process is."""
        relied_on_it = self._store.holds_anything()
        self._notice_compaction()
        try:
            stored = self._store.load(lambda stored: self._is_of(stored, goal))
            fences = self._store.fences() if stored is not None else {}
        except IndexLost:
            self._store.discard()
            stored, fences = None, {}
        if relied_on_it and stored is None:
            self._discard()  # what was handed over is lost with it
        known = self._mark or self._first_mark_of(self._where_it_begins)
        if stored is not None and stored.seq > known.seq:
            self._add_fences(fences)
            self._tail, self._tail_events = {}, 0
            known = stored
        elif self._mark is None:
            self._add_fences(fences)
        self._mark = known
        return known

    def _add_fences(self, fences: Mapping[bytes, int]) -> None:
        for key, token in fences.items():
            self._fences.see(key, token)

    def _where_it_begins(self) -> int:
        self._notice_compaction()
        return self._begins_at

    def _notice_compaction(self) -> None:
        """Ask again where the log begins; then also the fences that are kept must be asked for again."""
        begins_at = self._reader.numbers()[0]
        if begins_at != self._begins_at:
            self._begins_at = begins_at
            self._fences.ask_again()

    def _is_of(self, stored: Mark, goal: _Goal) -> bool:
        if stored.file < self._begins_at:
            return stored.file > 0  # compacted since; what it says of later files is looked at anew
        log = self._reader.file(stored.file) if stored.file <= goal.file else None
        if log is None or not stored.last < stored.offset <= self._end(log, goal):
            return False
        if stored.last < 0:
            return stored == _first_mark(log)
        found = self._reader.files.read(log.opened.fd, HASH_BYTES, stored.last)
        return found == stored.hash.encode("ascii")

    def _take(self, mark: Mark, data: bytes) -> Mark:
        """Enter whole lines; only the last assignment counts them as looked at."""
        seq, offset, last, file = mark.seq, mark.offset, mark.last, mark.file
        hash_ = b""
        for line in data.split(b"\n")[:-1]:
            seq += 1
            stop = offset + len(line) + 1
            at = line.rfind(_RUN) + len(_RUN)
            key = line[at : line.rfind(_TOKEN)]
            if at >= len(_RUN) and key != b"null":
                self._enter(key, (seq, file, last, offset, stop))
                if _is_fence(line):
                    self._fences.see(key, _token_of(line))
            hash_ = line[:HASH_BYTES]
            last, offset = offset, stop
        self._mark = Mark(seq, offset, last, hash_.decode("ascii", "replace"), file)
        return self._mark

    def _enter(self, key: bytes, hit: tuple[int, int, int, int, int]) -> None:
        hits = self._tail.get(key)
        if hits is None:
            self._tail[key] = array("q", hit)
        elif hits[-_FIELDS] < hit[0]:  # an interrupted look may come by a second time
            hits.extend(hit)
        self._tail_events += 1

    def _hand_over(self) -> None:
        if self._mark is not None and self._store.save(
            self._mark, self._tail, self._fences.seen, begins_at=self._begins_at
        ):
            self._tail, self._tail_events = {}, 0

    def _discard(self) -> None:
        self._store.discard()
        self._mark, self._tail, self._tail_events, self._fences = None, {}, 0, Fences()

    def _hits(self, key: bytes) -> list[tuple[int, ...]]:
        stored = self._store.hits(key)
        if stored.begins_at > self._begins_at:
            self._notice_compaction()  # another process did, and let go of what came before
        found: dict[int, tuple[int, ...]] = {hit[0]: hit for hit in stored.found}
        found.update((hit[0], hit) for hit in _tuples(self._tail.get(key)))
        return [found[seq] for seq in sorted(found)]

    def _load_all(self, key: bytes) -> list[tuple[StoredLine, Event]]:
        """Return what the hits in the log's files name.

        Files that were compacted away may still be open here, but not every one of them was looked at before it
        went. So none of them counts, and what is kept of the run is asked for instead.
        """
        accepted = self._reader.accepted()
        found = [self._load(key, hit, accepted) for hit in self._hits(key)]
        begins_at = self._begins_at
        return [each for each in found if each is not None and each[0].file >= begins_at]

    def _load(
        self, key: bytes, hit: tuple[int, ...], accepted: Mapping[int, Accepted]
    ) -> tuple[StoredLine, Event] | None:
        """Return what a hit names, checked; None when its file was compacted away, or it is accepted as lost."""
        seq, file, last, offset, stop = hit
        if accepted and is_lost(accepted, file, offset):
            return None
        log = self._reader.file(file)
        if log is None:
            self._notice_compaction()
            if file < self._begins_at:
                return None
            raise LogCorrupt(seq, self._reader.path, offset, f"its file {file} is missing")
        files, fd = self._reader.files, log.opened.fd
        header = right_header(accepted, file) or log.header
        previous = files.read(fd, HASH_BYTES, last) if last >= 0 else header.base_hash.encode()
        data = files.read(fd, stop - offset, offset)
        line = Line(offset, data[:-1], stop, data[-1:] == b"\n")
        event = self._reader.check(line, seq, previous, log)
        if event.run_id is None or run_key(event.run_id) != key:
            reason = "the index names another run's event"
            raise LogCorrupt(seq, log.opened.path, offset, reason)
        return StoredLine(seq, previous, line.data, file, offset), event

    def _kept(self, run_id: str) -> list[StoredLine]:
        """Return the lines that are kept of what was compacted away."""
        if self._retained is None:
            return []
        return [each for each in self._retained.lines(run_id) if each.seq < self._begins_at]

    def _checked(self, key: bytes, kept: StoredLine) -> tuple[StoredLine, Event]:
        """Return a kept line and its event; the hash before it is the keeper's word."""
        parts = split_line(kept.line)
        if parts is None or not follows(kept.previous, kept.line):
            reason = "what was kept of it when its file was compacted does not verify"
            raise LogCorrupt(kept.seq, self._reader.path, kept.offset, reason)
        event = decode_line(parts, Position(kept.seq, kept.file, kept.offset))
        if event.run_id is None or run_key(event.run_id) != key:
            raise LogCorrupt(kept.seq, self._reader.path, kept.offset, "it is another run's event")
        return kept, event


def _first_mark(log: LogFile) -> Mark:
    header = log.header
    return Mark(header.first_seq - 1, len(header.format()), -1, header.base_hash, header.first_seq)


def _is_fence(line: bytes) -> bool:
    return line.startswith(FENCE, HASH_BYTES)


def _token_of(line: bytes) -> int:
    text = line[line.rfind(_TOKEN) + len(_TOKEN) : line.rfind(b",")]
    return int(text) if text.isdigit() else 0


def _tuples(hits: array[int] | None) -> Iterator[tuple[int, ...]]:
    numbers = iter(hits or ())
    return zip(*[numbers] * _FIELDS, strict=True)
