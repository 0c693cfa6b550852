"""Kill a process exactly before or after the n-th append of an event type.

The test makes a :class:`CrashPoint` and passes its ``environment()`` to a subprocess; the subprocess
calls :func:`arm` once, before anything is appended. Appends are counted over all processes that share
the point, by a file, so that "the third step.completed of this worker" means one thing in a prefork
pool; and a point fires once, so the worker that comes next lives.

    point = CrashPoint("step.completed", nth=2, directory=tmp_path)
    with celery_worker("examples.shop", env=point.environment()) as worker: ...
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

VARIABLE = "COMMANDER_TEST_CRASH_AT"


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Say where a process dies.

    *when* is relative to the append: "before" leaves no trace of the event, "after" leaves it in the
    log (durable, if the caller asked to wait). *victim* is the appending process, its parent (a prefork
    child's worker), or its whole process group. *run_id*, if given, counts that run's events only.
    """

    event_type: str
    directory: str | Path
    nth: int = 1
    when: Literal["before", "after"] = "after"
    victim: Literal["process", "parent", "group"] = "process"
    run_id: str | None = None

    def environment(self, *others: CrashPoint) -> dict[str, str]:
        """Return the variable that carries this point, and *others*, into a subprocess."""
        points = [asdict(point) | {"directory": str(point.directory)} for point in (self, *others)]
        return {VARIABLE: json.dumps(points)}

    @property
    def fired(self) -> bool:
        """Tell whether the process was killed here."""
        return self._file("fired").exists()

    @property
    def seen(self) -> int:
        """Return how many matching appends were counted so far."""
        try:
            return len(self._file("count").read_bytes())
        except FileNotFoundError:
            return 0

    def passed(self, event_type: str, run_id: str | None) -> bool:
        """Count an append if it matches, and tell whether it is the n-th."""
        if event_type != self.event_type or self.run_id not in (None, run_id):
            return False
        with self._file("count").open("ab") as counter:
            fcntl.flock(counter, fcntl.LOCK_EX)
            counter.write(b".")
            counter.flush()
            return counter.tell() == self.nth

    def fire(self) -> None:
        """Kill the victim; when it is not this process, wait for the end all the same."""
        self._file("fired").touch()
        if self.victim == "group":
            os.killpg(os.getpgid(0), signal.SIGKILL)
        if self.victim == "parent":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def _file(self, kind: str) -> Path:
        run = "" if self.run_id is None else f"-{self.run_id}"
        return Path(self.directory) / f"crash-{self.event_type}{run}-{self.nth}-{self.when}.{kind}"


def armed_points(environ: Mapping[str, str] = os.environ) -> list[CrashPoint]:
    """Return the points that this process was started with."""
    return [CrashPoint(**point) for point in json.loads(environ.get(VARIABLE, "[]"))]


def arm(engine_class: type[Any] | None = None) -> None:
    """Install this process's crash points around the engine's two append methods.

    Without a point in the environment nothing is touched. Forked children inherit the wrapper.
    """
    points = armed_points()
    if not points:
        return
    if engine_class is None:
        from celery_commander.engine import EventSourcingEngine

        engine_class = EventSourcingEngine
    for method, types_of in (("append", _of_one), ("append_many", _of_many)):
        setattr(engine_class, method, _wrapped(getattr(engine_class, method), types_of, points))


_Appended = Iterable[tuple[str, str | None]]


def _of_one(event_type: str, *_: object, run_id: str | None = None, **__: object) -> _Appended:
    return [(event_type, run_id)]


def _of_many(events: Iterable[Any], **_: object) -> _Appended:
    return [(event.type, event.run_id) for event in events]


def _wrapped(
    append: Callable[..., Any], types_of: Callable[..., _Appended], points: list[CrashPoint]
) -> Callable[..., Any]:
    @functools.wraps(append)
    def crashing(self: object, *args: Any, **kwargs: Any) -> Any:
        due = [
            point
            for event_type, run_id in types_of(*args, **kwargs)
            for point in points
            if point.passed(event_type, run_id)
        ]
        for point in due:
            if point.when == "before":
                point.fire()
        result = append(self, *args, **kwargs)
        for point in due:
            point.fire()
        return result

    return crashing
