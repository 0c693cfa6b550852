"""Collect from a chain, while it is followed, what anchors and compactions say about it, and judge them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .anchors import Anchor
from .chain import HASH_BYTES, Header, split_line
from .control import Head
from .integrity import Status

_COMPACTED = b"|wal.compacted|"
_REPAIRED = b"|wal.repaired|"


class Claims:
    """Watch good lines go by."""

    def __init__(self, anchors: Sequence[Anchor]) -> None:
        self._anchors = sorted(anchors, key=lambda anchor: anchor.seq)
        self._wanted = sorted({anchor.seq for anchor in anchors}, reverse=True)
        self._hashes: dict[int, str] = {}
        self._compacted: list[Mapping[str, Any]] = []
        self.repaired: set[bytes] = set()
        """The hashes of the events that tell of repairs, among them notes of accepted breaks."""

    @property
    def highest_anchor(self) -> int:
        """Return the highest seq that an anchor knows; 0 without one."""
        return self._anchors[-1].seq if self._anchors else 0

    def see_start(self, head: Head) -> None:
        """Hear where reading begins; anchors before that cannot be compared."""
        while self._wanted and self._wanted[-1] < head.seq:
            self._wanted.pop()
        if self._wanted and self._wanted[-1] == head.seq:
            self._hashes[self._wanted.pop()] = head.hash.decode("ascii")

    def see(self, head: Head, block: bytes) -> None:
        """Look at good lines; `head` is what they follow."""
        if self._wanted and self._wanted[-1] <= head.seq + block.count(b"\n"):
            lines = block.split(b"\n")
            while self._wanted and self._wanted[-1] < head.seq + len(lines):
                seq = self._wanted.pop()
                self._hashes[seq] = lines[seq - head.seq - 1][:HASH_BYTES].decode("ascii")
        if _COMPACTED in block:
            self._compacted.extend(_compactions(block))
        if _REPAIRED in block:
            self.repaired.update(
                line[:HASH_BYTES]
                for line in block.split(b"\n")
                if line.startswith(_REPAIRED, HASH_BYTES)
            )

    def judge_anchors(self, last: int) -> tuple[Status, str, str | None] | None:
        """Compare the anchors with a chain that is good up to `last`; None when none could be compared."""
        matching = None
        for anchor in self._anchors:
            found = self._hashes.get(anchor.seq)
            if found is None:
                continue
            if found != anchor.hash:
                reason = f"the chain holds, but it is not the one that is anchored: {anchor}; found {found}"
                return Status.FORKED, reason, None
            matching = anchor
        if self.highest_anchor > last:
            reason = f"an anchor knows {self._anchors[-1]}; the log ends at event {last}"
            return Status.TRUNCATED, reason, None
        if matching is None:
            return None
        reason = f"the chain is good, and it is the one that was anchored: {matching}"
        return Status.OK_ANCHORED, reason, str(matching)

    def judge_beginning(self, first: int, header: Header) -> tuple[Status, str] | None:
        """Ask whether a compaction that the chain tells of has removed what came before `first`."""
        claims = [each for each in self._compacted if _through(each) >= first - 1]
        if not claims:
            reason = f"the log begins at event {first}; what came before is missing"
            return Status.GAP, reason
        if any(_removes(each, first - 1, header.previous_sha256) for each in claims):
            return None
        reason = (
            f"the log begins at event {first}; a compaction through event {first - 1} is told of, but it "
            "did not remove the file that the header names"
        )
        return Status.UNAUTHORISED_COMPACTION, reason


def _compactions(block: bytes) -> Iterator[Mapping[str, Any]]:
    for line in block.split(b"\n"):
        if not line.startswith(_COMPACTED, HASH_BYTES):
            continue
        parts = split_line(line)
        assert parts is not None  # only good lines come by
        try:
            data = json.loads(parts.payload)["data"]
        except (ValueError, KeyError, RecursionError):
            continue
        if isinstance(data, dict):
            yield data


def _through(claim: Mapping[str, Any]) -> int:
    through = claim.get("through")
    return through if type(through) is int else 0


def _removes(claim: Mapping[str, Any], last: int, sha256: str) -> bool:
    """Tell whether a compaction names a removed file with this end, and these bytes; or those that it had once."""
    removed = claim.get("removed")
    return isinstance(removed, list) and any(
        isinstance(each, dict)
        and each.get("last_seq") == last
        and sha256 in (each.get("sha256"), each.get("named"))
        for each in removed
    )
