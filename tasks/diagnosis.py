"""Examine a deployment from the outside: what is set, where it lies, who works, and whether anything is missing.

Health says how a running deployment is, in constant time. This asks more, waits for answers, and is for a person who
has just installed the thing, or wonders why nothing happens.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery.backends.base import DisabledBackend

from celery_commander.engine import CommanderError, Health, State

from .broker import BrokerSilent, ask_workers, messages_in
from .maintenance import CHECK_HEALTH
from .neighbours import ASK
from .schedule import entries_of
from .worker_facts import REMEDY

if TYPE_CHECKING:
    from .install import Commander

UNFINISHED = (State.PENDING, State.EXECUTING, State.VERIFYING, State.PAUSED, State.ABORTED)
LATE_ROUNDS = 10
"""After how many intervals without a round beat counts as not running."""

LOOKED_AT_MOST = 1_000
ANSWER_SECONDS = 1.0
"""How long workers are given to say which log they work with."""


class Verdict(StrEnum):
    """How one thing was found."""

    GOOD = "good"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at, and what was found."""

    subject: str
    verdict: Verdict
    text: str


def examine(commander: Commander) -> list[Finding]:
    """Look at everything once; what cannot be looked at is a finding of its own. Nothing is created or changed.

    Takes as long as the broker takes to answer, at most a few seconds.
    """
    looks: list[tuple[str, Callable[[Commander], Iterator[Finding]]]] = [
        ("settings", _settings),
        ("state directory", _directory),
        ("health", _health),
        ("result backend", _backend),
        ("beat", _beat),
        ("queues", _queues),
        ("stores", _stores),
        ("tasks", _tasks),
    ]
    findings: list[Finding] = []
    for subject, look in looks:
        try:
            findings += look(commander)
        except (CommanderError, OSError) as error:
            findings.append(Finding(subject, Verdict.WRONG, str(error)))
            if subject == "settings":
                break  # nothing else can be found without them
    return findings


def _settings(commander: Commander) -> Iterator[Finding]:
    engine, tasks = commander.engine_settings, commander.settings
    yield Finding("settings", Verdict.GOOD, f"namespace {commander.namespace}")
    if commander.app.conf.task_always_eager:
        text = "task_always_eager is on: tasks run in their caller, and durable ones unrecorded"
        yield _warn("settings", text)
    if engine.durability != "fsync":
        yield _warn("settings", f"durability is {engine.durability}: a power cut loses events")
    if tasks.force_abort:
        yield _warn("settings", "force_abort is on: recovery undoes every run and replays none")
    if tasks.on_log_unavailable == "degrade":
        yield _warn("settings", "on_log_unavailable is degrade: an outage runs tasks unrecorded")


def _directory(commander: Commander) -> Iterator[Finding]:
    directory = Path(commander.engine_settings.state_directory)
    if not directory.exists():
        text = f"{directory} does not exist; the first worker or publisher makes it"
        yield _warn("state directory", text)
        return
    found = directory.stat()
    if found.st_uid != os.geteuid():
        text = (
            f"{directory} belongs to user {found.st_uid}, you are {os.geteuid()}: work as its owner"
        )
        yield Finding("state directory", Verdict.WRONG, text)
    elif stat.S_IMODE(found.st_mode) & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        yield _warn("state directory", f"{directory} is open to others (mode {mode:o}); chmod 0700")
    else:
        yield Finding("state directory", Verdict.GOOD, str(directory))


def _health(commander: Commander) -> Iterator[Finding]:
    """Give the reasons of the health report; a store that is not there yet is not made for it."""
    if not commander.engine_settings.event_sourcing_wal.exists():
        yield _warn("log", "there is no log yet")
        return
    report = commander.health.report()
    verdict = {Health.HEALTHY: Verdict.GOOD, Health.DEGRADED: Verdict.WARNING}
    yield Finding("health", verdict.get(report.status, Verdict.WRONG), report.status.value)
    for reason in report.reasons:
        yield Finding("health", verdict.get(report.status, Verdict.WRONG), reason)


def _backend(commander: Commander) -> Iterator[Finding]:
    backend = commander.app.backend
    if isinstance(backend, DisabledBackend):
        yield _warn(
            "result backend", "there is none: outcomes stand in the log, and .get() cannot wait"
        )
    else:
        yield Finding("result backend", Verdict.GOOD, type(backend).__name__)


def _beat(commander: Commander) -> Iterator[Finding]:
    entries = entries_of(commander)
    if not entries:
        yield _warn("beat", "schedule is off: nothing compacts or verifies the log by itself")
        return
    names = ", ".join(sorted(name.rpartition(".")[2] for name in entries))
    entry = entries.get(CHECK_HEALTH)
    if entry is None or not commander.engine_settings.event_sourcing_wal.exists():
        yield Finding("beat", Verdict.GOOD, f"celery beat would send {names}")
        return
    every = float(getattr(entry["schedule"], "total_seconds", lambda: entry["schedule"])())
    if commander.store.rounds.is_due(f"check_health/{commander.namespace}", LATE_ROUNDS * every):
        late_seconds = LATE_ROUNDS * every
        text = f"no health check was done in the last {late_seconds:g} s: is `celery beat` running?"
        yield _warn("beat", text)
    else:
        yield Finding("beat", Verdict.GOOD, f"it runs, and sends {names}")


def _queues(commander: Commander) -> Iterator[Finding]:
    """See that somebody consumes the queue of our own tasks, and those in which unfinished runs wait."""
    app = commander.app
    own = commander.settings.queue or app.conf.task_default_queue
    try:
        messages_in(app, [own])
    except BrokerSilent as error:
        yield Finding("queues", Verdict.WRONG, f"the broker cannot be asked: {error}")
    consumers = _consumers(commander)
    for queue in dict.fromkeys([own, *_waited_in(commander)]):
        workers = consumers.get(queue, [])
        if workers:
            yield Finding("queues", Verdict.GOOD, f"{queue} is consumed by {', '.join(workers)}")
        elif queue == own:
            text = f"{queue} is consumed by no worker that reports: rollbacks and maintenance wait there"
            yield Finding("queues", Verdict.WRONG, text)
        else:
            yield Finding(
                "queues", Verdict.WRONG, f"runs wait in {queue}, which no worker consumes"
            )


def _stores(commander: Commander) -> Iterator[Finding]:
    """Ask the workers of the broker which log they work with; this app's own is the one to have."""
    if commander.app.connection_for_read().transport.driver_type == "memory":
        return  # nobody else is there
    here = commander.engine_settings
    ours = commander.engine.log_id if here.event_sourcing_wal.exists() else None
    try:
        told = ask_workers(commander.app, ASK, ANSWER_SECONDS)
    except BrokerSilent as error:
        yield _warn("stores", f"the workers cannot be asked for their log: {error}")
        return
    for name, said in sorted(told.items()):
        if not isinstance(said, Mapping) or said.get("namespace") != commander.namespace:
            continue
        if said.get("log_id") == ours:
            yield Finding("stores", Verdict.GOOD, f"worker {name} works with this log, {ours}")
            continue
        mine = f"log {ours}" if ours else "no log yet"
        text = (
            f"worker {name} works with log {said.get('log_id')} in {said.get('where')}, but in"
            f" {here.state_directory} there is {mine}. {REMEDY}"
        )
        yield Finding("stores", Verdict.WRONG, text)


def _tasks(commander: Commander) -> Iterator[Finding]:
    app = commander.app
    durable = sorted(name for name, task in app.tasks.items() if getattr(task, "durable", False))
    if not durable:
        yield _warn("tasks", "no task of this app is durable")
    else:
        yield Finding("tasks", Verdict.GOOD, f"durable: {', '.join(durable)}")
    for name in sorted({run.task for run in _unfinished(commander)} - set(app.tasks)):
        text = f"unfinished runs of {name} wait for a worker that knows it; this app does not"
        yield Finding("tasks", Verdict.WRONG, text)


def _consumers(commander: Commander) -> dict[str, list[str]]:
    """Return who consumes what, by the workers' own reports to this store."""
    found: dict[str, list[str]] = {}
    if commander.engine_settings.event_sourcing_wal.exists():
        seconds = commander.settings.report_stale_seconds
        for report in commander.store.reports.reports(younger_than_seconds=seconds):
            for queue in report.facts.get("queues") or ():
                if queue.get("consuming"):
                    found.setdefault(queue["name"], []).append(report.source)
    return found


def _waited_in(commander: Commander) -> list[str]:
    queues = {run.queue for run in _unfinished(commander) if run.queue}
    return sorted(queues)


def _unfinished(commander: Commander) -> list[Any]:
    if not commander.engine_settings.event_sourcing_wal.exists():
        return []
    ledger = commander.ledger
    ledger.catch_up()
    found = [run for state in UNFINISHED for run in ledger.runs(state=state, limit=LOOKED_AT_MOST)]
    return [run for run in found if run.namespace == commander.namespace]


def _warn(subject: str, text: str) -> Finding:
    return Finding(subject, Verdict.WARNING, text)
