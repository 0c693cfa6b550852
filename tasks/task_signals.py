"""Listen to Celery's signals about plain tasks, in workers only, and tell the subscriber.

What a handler may rely on, by Celery's own sources (5.7):

- task_success carries no id; the request of its sender, the task, does. So do task_prerun, task_retry and a failure
  in a pool's child: their requests are on the task's stack.
- task_failure of a hard limit or of a lost child comes from the worker's main process; a hard limit may send two.
- A child that is killed while its message is to be delivered again (reject_on_worker_lost) is told by no signal.
- task_received, task_rejected, task_unknown and task_revoked come from the main process.
- after_task_publish does not say of which app it is; the sender of ours does instead (publishing.py).

A receiver that raises is logged by Celery and hurts nobody. One weakness is Celery's: a soft time limit that strikes
inside any receiver (here a few microseconds) is swallowed with it.
"""

from __future__ import annotations

import threading
from time import time
from typing import TYPE_CHECKING, Any

from billiard.exceptions import TimeLimitExceeded
from celery import Celery, signals
from celery.exceptions import Reject

from celery_commander.engine import CommanderError

from .interest import Interest
from .observations import Observation, about
from .publishing import is_durable

if TYPE_CHECKING:
    from .install import Commander

TASKS_MAX = 10_000

_LISTENED = (
    signals.task_prerun,
    signals.task_success,
    signals.task_retry,
    signals.task_failure,
    signals.task_revoked,
    signals.task_received,
    signals.task_rejected,
    signals.task_unknown,
)


class TaskSignals:
    """Turn signals of one app's plain tasks into observations."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._commander: Commander = app.commander
        self._put = self._commander.subscriber.put
        self._interests: dict[Any, Interest] = {}
        self._limited: Any = None

    def connect(self) -> None:
        """Listen to what the setting asks for; connecting twice is connecting once."""
        uid = f"celery_commander.{id(self._commander)}.observe"
        observe = self._commander.subscriber.observe
        if observe.is_nothing:
            return
        wanted = {
            signals.task_retry: self.on_retry,
            signals.task_failure: self.on_failure,
            signals.task_revoked: self.on_revoked,
            signals.task_rejected: self.on_rejected,
            signals.task_unknown: self.on_unknown,
        }
        if observe.patterns or observe.otherwise is Interest.EVERYTHING:
            wanted |= {
                signals.task_received: self.on_received,
                signals.task_prerun: self.on_prerun,
                signals.task_success: self.on_success,
            }
        for signal, receiver in wanted.items():
            signal.connect(receiver, weak=False, dispatch_uid=uid)

    def on_received(self, request: Any = None, **_: Any) -> None:
        """Note that a worker's main process has the message."""
        if self._interest(request.task) is Interest.EVERYTHING:
            told, delivery = request.request_dict, request.delivery_info or {}
            more = {
                "worker": request.hostname,
                "queue": delivery.get("routing_key"),
                "redelivered": True if delivery.get("redelivered") else None,
                "eta": told.get("eta"),
            }
            attempt = (told.get("retries") or 0) + 1
            self._put(Observation("task.received", request.id, request.name, attempt, time(), more))

    def on_prerun(self, sender: Any = None, task_id: Any = None, **_: Any) -> None:
        """Note that a body is about to be called."""
        if self._interest(sender) is Interest.EVERYTHING:
            request = sender.request
            if not request.is_eager:
                more = {"worker": request.hostname}
                attempt = (request.retries or 0) + 1
                self._put(Observation("task.started", task_id, sender.name, attempt, time(), more))

    def on_success(self, sender: Any = None, runtime: Any = None, **_: Any) -> None:
        """Note that a body returned and its result is stored."""
        if self._interest(sender) is Interest.EVERYTHING:
            request = sender.request
            if not request.is_eager:
                more = {"worker": request.hostname, "runtime_seconds": runtime}
                attempt = (request.retries or 0) + 1
                self._put(
                    Observation("task.succeeded", request.id, sender.name, attempt, time(), more)
                )

    def on_retry(
        self, sender: Any = None, request: Any = None, reason: Any = None, **_: Any
    ) -> None:
        """Note that an attempt ended with a wish for another one, whose message has left before this."""
        if self._interest(sender) is not Interest.NOTHING and not request.is_eager:
            more = about(getattr(reason, "exc", None)) | {"worker": request.hostname}
            when = getattr(reason, "when", None)
            more["countdown_seconds" if isinstance(when, int | float) else "due"] = when
            self._put_of("task.retried", sender, request, more)

    def on_failure(
        self, sender: Any = None, task_id: Any = None, exception: Any = None, **_: Any
    ) -> None:
        """Note a failure: in the child that ran the body, or in the main process when the child could not say it."""
        if self._interest(sender) is Interest.NOTHING:
            return
        request = sender.request
        if request.is_eager:
            return
        is_on_stack = request.id == task_id
        if isinstance(exception, TimeLimitExceeded) and self._is_second(task_id, is_on_stack):
            return
        kind = "task.rejected" if isinstance(exception, Reject) else "task.failed"
        attempt = (request.retries or 0) + 1 if is_on_stack else None
        more = about(exception) | {"worker": request.hostname if is_on_stack else None}
        self._put(Observation(kind, task_id, sender.name, attempt, time(), more))

    def on_revoked(
        self,
        sender: Any = None,
        *,
        request: Any = None,
        terminated: Any = None,
        signum: Any = None,
        expired: Any = None,
        **_: Any,
    ) -> None:
        """Note that a message, or the body it had started, was ended: somebody said so, or it was too old."""
        if self._interest(sender) is not Interest.NOTHING:
            more = {
                "worker": request.hostname,
                "terminated": bool(terminated),
                "expired": bool(expired),
                "signal": signum,
            }
            self._put_of("task.revoked", sender, request, more)

    def on_rejected(
        self, sender: Any = None, message: Any = None, exc: Any = None, **_: Any
    ) -> None:
        """Note a message that is no task's, or whose body makes no sense."""
        headers = getattr(message, "headers", None) or {}
        name = headers.get("task")
        if sender.app is self._app and self._commander.subscriber.observes(str(name), failure=True):
            more = about(exc) | {"worker": getattr(sender, "hostname", None)}
            self._put(Observation("task.rejected", headers.get("id"), name, None, time(), more))

    def on_unknown(self, sender: Any = None, *, name: Any = None, id: Any = None, **_: Any) -> None:
        """Note a message for a task that this worker does not have."""
        if sender.app is self._app and self._commander.subscriber.observes(str(name), failure=True):
            more = {"worker": getattr(sender, "hostname", None)}
            self._put(Observation("task.unknown", id, name, None, time(), more))

    def _put_of(self, kind: str, task: Any, request: Any, more: dict[str, Any]) -> None:
        attempt = (request.retries or 0) + 1
        self._put(Observation(kind, request.id, task.name, attempt, time(), more))

    def _interest(self, task: Any) -> Interest:
        """Return how much is wanted of a task: nothing of another app's and of a durable one, whose run tells all."""
        found = self._interests.get(task)
        if found is None:
            found = Interest.NOTHING
            if task.app is self._app and not is_durable(self._app, task.name):
                found = self._commander.subscriber.observe.interest(task.name)
            if len(self._interests) >= TASKS_MAX:
                self._interests.clear()
            self._interests[task] = found
        return found

    def _is_second(self, task_id: Any, is_on_stack: bool) -> bool:
        """Tell whether a hard limit was told already, a moment ago and in this thread.

        The pool calls on_failure (request on the stack), then on_timeout (not on it); either may be silent, by version
        and by acknowledgement.
        """
        if is_on_stack:
            self._limited = task_id
            return False
        told, self._limited = self._limited, None
        return bool(told == task_id)


def install_observation(app: Celery) -> None:
    """Have an app's workers observe their plain tasks, and write what they saw before they leave."""
    commander: Commander = app.commander
    subscriber = commander.subscriber
    listener = TaskSignals(app)
    uid = f"celery_commander.{id(commander)}.subscriber"

    def begin(sender: Any = None, **_: Any) -> None:
        if getattr(sender, "app", None) is app:
            subscriber.hold()
            listen()

    def ready(sender: Any = None, **_: Any) -> None:
        if getattr(sender, "app", None) is app:
            subscriber.release()

    def join_pool(**_: Any) -> None:
        subscriber.release()
        listen()  # a child that was spawned, not forked, starts without receivers

    def listen() -> None:
        try:
            listener.connect()
        except CommanderError:
            pass  # a setting that cannot work: the worker refuses to start, and says why

    def leave(**_: Any) -> None:
        subscriber.release()
        subscriber.leave()

    signals.worker_init.connect(begin, weak=False, dispatch_uid=f"{uid}.init")
    signals.worker_ready.connect(ready, weak=False, dispatch_uid=f"{uid}.ready")
    signals.worker_process_init.connect(join_pool, weak=False, dispatch_uid=f"{uid}.child")
    signals.worker_process_shutdown.connect(leave, weak=False, dispatch_uid=f"{uid}.child_ends")
    signals.worker_shutdown.connect(leave, weak=False, dispatch_uid=f"{uid}.ends")


def remake_locks() -> None:
    """Give the child of a fork fresh locks of the signals that we listen to.

    A signal with receivers takes its lock at every send. The main process may fork in one thread while another one
    sends; the child would find that lock taken for ever (celery#9808).
    """
    for signal in _LISTENED:
        signal.lock = threading.Lock()
