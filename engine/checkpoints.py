"""Keep what running bodies want to go on from: their own state, checked against the log before it is believed.

The log says which checkpoints there are, this store only holds their contents. A content is made durable first, then
`checkpoint.saved` names it with the SHA-256 of its bytes. So a content that no event names is nobody's, and one that
is missing, or has other bytes than the log says, is never handed out: whoever goes on takes an older one, or none.

Contents are bounded in size and in number a run, and are dropped when their run is over. They stand here in clear, in a
file that only its owner may read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select

from .database import Database
from .errors import CommanderError
from .states import Checkpoint
from .tables import CHECKPOINTS, checkpoints
from .values import decode, encode

logger = logging.getLogger(__name__)

_IDS_A_QUERY = 500  # an SQLite of long ago binds 999 values at most


class CheckpointInvalid(CommanderError):
    """Checkpoint {checkpoint} of run {run_id} is not believed: {reason}.
    The run goes on from an older one, or waits for a person.
    """

    def __init__(self, run_id: str, checkpoint: str, reason: str) -> None:
        super().__init__(run_id, checkpoint, reason)
        self.run_id = run_id
        self.checkpoint = checkpoint
        self.reason = reason


class CheckpointTooLarge(CommanderError):
    """Run {run_id} cannot save a checkpoint of {size_bytes} bytes; {limit_bytes} are allowed.
    Save less, a reference for example, or raise checkpoint_bytes.
    """

    def __init__(self, run_id: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(run_id, size_bytes, limit_bytes)
        self.run_id = run_id
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


@dataclass(frozen=True, slots=True)
class SavedContent:
    """What `checkpoint.saved` says of a content: its name here, the SHA-256 of its bytes in hex, how many there are."""

    id: str
    sha256: str
    bytes: int


class CheckpointStore:
    """Hold the contents of checkpoints: the newest and `kept` others of a run, each of at most `max_bytes`.

    The database must be opened `durable`: an event must not name what a power cut can lose.
    """

    def __init__(self, database: Database, *, max_bytes: int, kept: int) -> None:
        database.use(CHECKPOINTS)
        self._database = database
        self._max_bytes = max_bytes
        self._kept = kept

    def save(
        self, run_id: str, state: Any, *, token: int, named: Sequence[str] = ()
    ) -> SavedContent:
        """Make a state durable and return how the log is to name it.

        `named` are the run's checkpoints in the log, the most wanted first. So many as are kept stay beside the new
        one; whatever else this owner or an older one left is dropped, what a newer owner saved is not touched.

        Raises:
            UnrecordableValue: the state would not come back as it is; the part is named.
            CheckpointTooLarge: nothing was stored.
            StoreUnavailable: nothing was stored.
        """
        content = _packed(encode(state, path="checkpoint"))
        if len(content) > self._max_bytes:
            raise CheckpointTooLarge(run_id, len(content), self._max_bytes)
        saved = SavedContent(uuid.uuid4().hex, hashlib.sha256(content).hexdigest(), len(content))
        dropped = delete(checkpoints).where(
            checkpoints.c.run_id == run_id,
            checkpoints.c.token <= token,
            checkpoints.c.id.not_in(list(named[: self._kept])),
        )
        row = {"id": saved.id, "run_id": run_id, "token": token, "content": content}
        with self._database.begin() as connection:
            connection.execute(dropped)
            connection.execute(insert(checkpoints), row)
        return saved

    def load(self, run_id: str, checkpoint: Checkpoint) -> Any:
        """Return the state that the log names.

        Raises:
            CheckpointInvalid: it is not there, or is not what was saved.
            UnreadableValue: it is, and this process lacks a type to rebuild it.
            StoreUnavailable: nobody can say now.
        """
        contents = self._contents(run_id, [checkpoint.id])
        reason = _fault(contents.get(checkpoint.id), checkpoint)
        if reason is not None:
            raise CheckpointInvalid(run_id, checkpoint.id, reason)
        return decode(json.loads(contents[checkpoint.id]))

    def faults(self, run_id: str, named: Collection[Checkpoint]) -> dict[str, str]:
        """Return why each of the checkpoints that cannot be believed cannot, by id; the others are there, unchanged.

        Raises:
            StoreUnavailable: nobody can say now.
        """
        contents = self._contents(run_id, [checkpoint.id for checkpoint in named])
        found = {one.id: _fault(contents.get(one.id), one) for one in named}
        for id, reason in found.items():
            if reason is not None and id in contents:  # one that was dropped for newer is no news
                logger.error("%s", CheckpointInvalid(run_id, id, reason))
        return {id: reason for id, reason in found.items() if reason is not None}

    def forget(self, run_ids: Collection[str]) -> None:
        """Drop the contents of runs that are over."""
        ids = list(run_ids)
        with self._database.begin() as connection:
            for first in range(0, len(ids), _IDS_A_QUERY):
                some = ids[first : first + _IDS_A_QUERY]
                connection.execute(delete(checkpoints).where(checkpoints.c.run_id.in_(some)))

    def run_ids(self, *, after: str = "", limit: int = 200) -> list[str]:
        """Return the runs that have contents here, by id, to page through; asking makes no database."""
        if not self._database.path.exists():
            return []
        runs = select(checkpoints.c.run_id).distinct().where(checkpoints.c.run_id > after)
        with self._database.read() as connection:
            found = connection.execute(runs.order_by(checkpoints.c.run_id).limit(limit))
            return list(found.scalars())

    def _contents(self, run_id: str, ids: Sequence[str]) -> dict[str, Any]:
        """Return what is stored under these ids, whatever it is."""
        # All of the run: it has but a few, while the ids of all that its log names may be many.
        mine = select(checkpoints.c.id, checkpoints.c.content).where(checkpoints.c.run_id == run_id)
        with self._database.read() as connection:
            found = {row.id: row.content for row in connection.execute(mine)}
        return {id: found[id] for id in ids if id in found}


def _fault(content: object, checkpoint: Checkpoint) -> str | None:
    """Return why a content is not the one that the log names."""
    if content is None:
        return "its content is not in the store"
    if not isinstance(content, bytes) or len(content) != checkpoint.bytes:
        return "its content is not the one that was saved: its length differs"
    if hashlib.sha256(content).hexdigest() != checkpoint.sha256:
        return "its content is not the one that was saved: its checksum differs"
    return None


def _packed(encoded: Any) -> bytes:
    text = json.dumps(encoded, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode()
