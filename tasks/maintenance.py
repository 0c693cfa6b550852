"""Keep a store in order by tasks that somebody sends now and then: beat, cron, or a person.

Each runs under a lease of its own, so that however many beats and workers there are, one worker does a round and the
others end as skipped. A task that comes when the round that it asked for was already done is skipped as well: two beats
that fire at one instant get one round, even when the first is over before the second begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery import Celery, Task

from celery_commander.engine import (
    AnchorContradicted,
    AnchorDirectory,
    AnchorError,
    EventSourcingEngine,
    Status,
    Verified,
    durable_anchor,
)

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

CHECK_HEALTH = "celery_commander.check_health"
TAKE_SNAPSHOT = "celery_commander.take_snapshot"
COMPACT_LOG = "celery_commander.compact_log"
VERIFY_LOG = "celery_commander.verify_log"
SWEEP = "celery_commander.sweep"
WRITE_ANCHOR = "celery_commander.write_anchor"

SNAPSHOT_NAME = "scheduled"

BOOKKEEPING_EVENTS = 3
"""What a snapshot leaves behind itself in the log; a log that has no more than that has nothing new."""

LATE_ANCHORS = 3
"""After how many intervals without an anchor health says so, if the log has grown meanwhile."""

DEFAULT_ANCHOR_SECONDS = 300.0
"""The interval that is assumed where the beat writes no anchors and somebody else must."""

LEASE_PREFIX = "maintenance/"
"""What the leases of maintenance are called in the table of leases, before the round's name."""

ASKED_AT = "commander_asked_at"
"""The message header that says when a round was asked for."""

SOUND = frozenset(
    (
        Status.OK_ANCHORED,
        Status.OK_UNANCHORED,
        Status.BREAK_ACCEPTED,
        Status.TORN_TAIL,
        Status.STALE_ANCHOR,
    )
)

Answer = dict[str, Any]
Work = Callable[["Commander"], Answer]


class MaintenanceTask(Task):
    """Send to the commander's own queue, with the moment at which the round was asked for."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send the task as Celery does."""
        commander: Commander = self.app.commander
        asked_at = self.app.now().isoformat()
        options["headers"] = {ASKED_AT: asked_at, **(options.get("headers") or {})}
        if commander.settings.queue and not options.get("queue"):
            options["queue"] = commander.settings.queue
        return super().apply_async(args, kwargs, **options)


def register_maintenance(app: Celery) -> None:
    """Register the maintenance tasks on an app."""
    options: dict[str, Any] = {"base": MaintenanceTask, "bind": True, "shared": False}

    @app.task(name=CHECK_HEALTH, **options)
    def check_health(self: Task) -> Answer:
        """Look how the store and its workers are; tell the log and the bus when that is news."""
        return in_turn(self, _own(self, "check_health"), _check_health)

    @app.task(name=TAKE_SNAPSHOT, **options)
    def take_snapshot(self: Task) -> Answer:
        """Write the log's whole state down, so that what came before may be archived."""
        return in_turn(self, "take_snapshot", _take_snapshot)

    @app.task(name=COMPACT_LOG, **options)
    def compact_log(self: Task) -> Answer:
        """Archive what the newest snapshot covers, if the log has grown enough; forget old archives."""
        return in_turn(self, "compact_log", _compact_log)

    @app.task(name=VERIFY_LOG, **options)
    def verify_log(self: Task) -> Answer:
        """Verify what the log has gained since the last time; now and then all of it."""
        return in_turn(self, "verify_log", _verify_log)

    @app.task(name=SWEEP, **options)
    def sweep(self: Task) -> Answer:
        """Recover what nobody owns, and forget dead letters that have lapsed."""
        return in_turn(self, _own(self, "sweep"), _sweep)

    @app.task(name=WRITE_ANCHOR, **options)
    def write_anchor(self: Task) -> Answer:
        """Note outside the state directory what the log is now."""
        return in_turn(self, "write_anchor", _write_anchor)


def _own(task: Task, name: str) -> str:
    """Return the name of a round that each namespace of a store needs for itself."""
    return f"{name}/{task.app.commander.namespace}"


def in_turn(task: Task, name: str, work: Work) -> Answer:
    """Do one round under its lease, unless somebody else does it or did it since it was asked for."""
    commander: Commander = task.app.commander
    lease = commander.holder.acquire(LEASE_PREFIX + name, floor=0)
    if lease is None:
        return {"skipped": "held"}
    try:
        rounds = commander.store.rounds
        asked_at = _asked_at(task)
        if asked_at is not None and rounds.covers(name, asked_at):
            return {"skipped": "held"}
        began_at = rounds.now()
        answer = work(commander)
        rounds.note(name, began_at)
        return answer
    finally:
        commander.holder.release(lease)


def _asked_at(task: Task) -> datetime | None:
    told = (task.request.headers or {}).get(ASKED_AT) or getattr(task.request, ASKED_AT, None)
    try:
        moment = datetime.fromisoformat(str(told))
    except ValueError:
        return None  # sent by name, from where no commander is
    return moment if moment.tzinfo is not None else None


def _check_health(commander: Commander) -> Answer:
    report = commander.health.check()
    return {"status": report.status.value, "reasons": len(report.reasons)}


def _take_snapshot(commander: Commander) -> Answer:
    snapshots, (head, _) = commander.engine.snapshots(), commander.engine.head()
    if snapshots and head - snapshots[-1].through <= BOOKKEEPING_EVENTS:
        return {"skipped": "nothing new", "through": snapshots[-1].through}
    snapshot = commander.engine.snapshot(SNAPSHOT_NAME)
    return {"id": snapshot.id, "through": snapshot.through}


def _compact_log(commander: Commander) -> Answer:
    engine, settings = commander.engine, commander.engine_settings
    live_bytes, act_at = engine.live_bytes(), settings.log_degraded_bytes // 2
    if live_bytes <= act_at:
        return {"skipped": "small", "live_bytes": live_bytes, "act_at_bytes": act_at}
    snapshots = engine.snapshots()
    if not snapshots:
        return {"skipped": "no snapshot", "live_bytes": live_bytes}
    report = engine.compact(snapshots[-1].id)
    return {
        "removed_events": report.removed_events,
        "reclaimed_bytes": report.reclaimed_bytes,
        "archives_removed": engine.archive_prune(),
    }


def _verify_log(commander: Commander) -> Answer:
    engine, store = commander.engine, commander.store
    full = store.rounds.is_due("verify_full", commander.settings.verify_full_seconds)
    after = None if full else _last_place(engine)
    anchors = _anchors(commander).read(engine.log_id) if _has_anchors(commander) else []
    began_at = store.rounds.now()
    report = engine.verify_integrity(
        after=after,
        anchors=[anchor for anchor in anchors if after is None or anchor.seq >= after.seq],
    )
    if report.status not in SOUND:
        logger.error("The log does not hold (%s): %s", report.status.name, report.reason)
    elif after is None:
        store.rounds.note("verify_full", began_at)
    return {
        "status": report.status.name,
        "from_seq": after.seq if after else 0,
        "events": report.events,
        "anchored_to": report.anchored_to,
    }


def _last_place(engine: EventSourcingEngine) -> Verified | None:
    """Return where verification may go on; what cannot be read begins anew."""
    try:
        last = engine.last_verification()
    except (OSError, ValueError):
        return None
    return last.verified if last is not None else None


def _sweep(commander: Commander) -> Answer:
    result = commander.bootstrapper.bootstrap()
    lapsed = commander.store.dead_letters.prune()
    return {
        "scanned": result.scanned,
        "recovered": result.recovered,
        "aborted": result.aborted,
        "skipped": result.skipped,
        "refused": result.refused,
        "letters_lapsed": lapsed,
    }


def _write_anchor(commander: Commander) -> Answer:
    if not _has_anchors(commander):
        return {"skipped": "no anchor_directory"}
    anchor = durable_anchor(commander.engine)
    if anchor is None:
        return {"skipped": "not durable"}
    try:
        is_new = _anchors(commander).write(anchor)
    except AnchorContradicted as error:
        logger.error("%s", error)
        return {"refused": "the anchors know another log", "seq": anchor.seq}
    return {"seq": anchor.seq} if is_new else {"skipped": "anchored already", "seq": anchor.seq}


def anchor_facts(commander: Commander) -> dict[str, str]:
    """Return what health is to say of the anchors: nothing while they keep up with the log."""
    if not _has_anchors(commander):
        return {}
    engine, settings = commander.engine, commander.settings
    try:
        last = _anchors(commander).last(engine.log_id)
    except (OSError, AnchorError) as error:
        return {"degraded": f"the anchors cannot be read: {error}"}
    if last is None:
        return {"degraded": "the log was never anchored"}
    age_seconds = (commander.store.rounds.now() - last.at).total_seconds()
    late_seconds = LATE_ANCHORS * (settings.anchor_seconds or DEFAULT_ANCHOR_SECONDS)
    if engine.head()[0] > last.seq and age_seconds > late_seconds:
        return {"degraded": f"the last anchor is {age_seconds:.0f} s old: event {last.seq}"}
    return {}


def _has_anchors(commander: Commander) -> bool:
    return commander.engine_settings.anchor_directory is not None


def _anchors(commander: Commander) -> AnchorDirectory:
    place = commander.engine_settings.anchor_directory
    assert place is not None
    return AnchorDirectory(place)
