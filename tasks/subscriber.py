"""Record what happens to plain tasks, beside them: EventSourcingSubscriber.

A task's thread makes a tuple and puts it into a queue; a thread of its process writes batches to the log. A full queue
drops, and says so in the log once it can: `subscriber.gap {count, since, until, reason}`.

What it cannot see: the observations that a process still holds when it is killed (up to `observe_flush_seconds`), or
when it ends while the log is away; a child that is killed is reported by the worker's main process, or, when its
message is to be delivered again, by nobody. Eager tasks are function calls and are not observed.
"""

from __future__ import annotations

import atexit
import logging
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery_commander.engine import CommanderError, LogUnavailable

from .backlog import Backlog
from .backlog_writer import BacklogWriter
from .interest import Interest, Observe
from .observations import Observation

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

NAMES_MAX = 10_000
"""For how many names of tasks the interest is remembered; names of messages come from outside."""

_subscribers: weakref.WeakSet[EventSourcingSubscriber] = weakref.WeakSet()


class EventSourcingSubscriber:
    """Queue observations of one app's plain tasks for the log; one for each process, remade in the child of a fork.

    Nothing here raises into a task or waits for anything.
    """

    def __init__(self, commander: Commander) -> None:
        self._commander = commander
        self._may_start = True
        self._observe: Observe | None = None
        self._interests: dict[str, Interest] = {}
        self._parts: dict[str, tuple[Backlog, BacklogWriter]] = {}
        _subscribers.add(self)

    def observes(self, name: str, *, failure: bool = False) -> bool:
        """Tell whether something that happened to a plain task of this name is wanted."""
        interest = self._interests.get(name)
        if interest is None:
            interest = self._look(name)
        return interest is Interest.EVERYTHING or (failure and interest is Interest.FAILURES)

    def put(self, seen: Observation) -> None:
        """Queue one observation, or drop and count it."""
        backlog, writer = self._parts.get("") or self._make()
        backlog.put(seen)
        if self._may_start and not writer.is_running:
            writer.ensure_running()

    def sent(self, name: str, headers: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Note that a plain task's message left; called by the sender itself, as no signal says of which app it is."""
        try:
            if self.observes(name):
                queue = options.get("queue") or options.get("routing_key")
                root, run_id = headers.get("root_id"), headers.get("id")
                more = {
                    "queue": getattr(queue, "name", queue),
                    "parent": headers.get("parent_id"),
                    "root": root if root != run_id else None,
                    "eta": headers.get("eta"),
                }
                attempt = (headers.get("retries") or 0) + 1
                self.put(Observation("task.sent", run_id, name, attempt, time.time(), more))
        except Exception:
            logger.exception("A sent message was not observed.")

    def facts(self) -> dict[str, int | float | str | None]:
        """Return how this process's subscriber is, in constant time: counts, seconds, the last error's type."""
        parts = self._parts.get("")
        if parts is None:
            return {"dropped": 0, "queued": 0, "oldest_age_seconds": 0.0, "last_error": None}
        backlog, writer = parts
        oldest_at = backlog.oldest_at
        return {
            "dropped": backlog.drops.total(),
            "queued": len(backlog),
            "oldest_age_seconds": max(0.0, time.time() - oldest_at) if oldest_at else 0.0,
            "last_error": writer.last_error,
        }

    def health_facts(self) -> dict[str, int | float | str | None]:
        """Return the same with a word on what is wrong, while something is."""
        facts = self.facts()
        error = facts.pop("last_error")
        if error:
            facts["degraded"] = f"observations are not written ({error}); they are kept or counted"
        return facts

    def flush(self, seconds: float | None = None) -> bool:
        """Write what is queued and end the thread; tell whether all of it is in the log. Bounded in time."""
        parts = self._parts.get("")
        if parts is None:
            return True
        if seconds is None:
            seconds = self._commander.settings.observe_exit_seconds
        return parts[1].flush(seconds) == 0

    def leave(self) -> None:
        """Flush at the end of a process; what could not be written is said in its log file, there is no other place."""
        if not self.flush():
            backlog, writer = self._parts.get("") or self._make()
            logger.warning(
                "This process ends with %s observations unwritten and %s dropped: %s.",
                len(backlog),
                backlog.drops.total(),
                writer.last_error or "there was no time",
            )

    def hold(self) -> None:
        """Have no thread while the worker makes its pool: a fork must not find one."""
        self.flush()
        self._may_start = False

    def release(self) -> None:
        """Let the thread start with the next observation."""
        self._may_start = True

    def after_fork(self) -> None:
        """Begin afresh in the child: what the parent queued is the parent's to write."""
        self._parts = {}
        self._may_start = True

    @property
    def observe(self) -> Observe:
        """Return what the setting says; read at the first use."""
        if self._observe is None:
            self._observe = Observe.of(self._commander.settings.observe)
        return self._observe

    def _look(self, name: str) -> Interest:
        interest = self.observe.interest(name)
        if len(self._interests) >= NAMES_MAX:
            self._interests.clear()
        self._interests[name] = interest
        return interest

    def _make(self) -> tuple[Backlog, BacklogWriter]:
        settings = self._commander.settings
        backlog = Backlog(settings.observe_queue_events)
        writer = BacklogWriter(
            backlog,
            self._append,
            batch_events=settings.observe_batch_events,
            flush_seconds=settings.observe_flush_seconds,
        )
        return self._parts.setdefault("", (backlog, writer))  # of two threads the first one's

    def _append(self, news: Any, *, wait: bool) -> None:
        """Append; an observation never makes a store: a script that only sends leaves nothing where it stands."""
        commander = self._commander
        path = commander.engine_settings.event_sourcing_wal
        if not commander.is_open and not path.exists():
            raise LogUnavailable(path, "it does not exist yet, and an observation does not make it")
        commander.engine.append_many(news, wait=wait)


def _leave_all() -> None:
    for subscriber in list(_subscribers):
        try:
            subscriber.leave()
        except CommanderError as error:
            logger.warning("Observations were not written: %s", error)


atexit.register(_leave_all)
