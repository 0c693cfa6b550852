"""The app that the workers of these tests run, and that a test publishes with.

What a step does to the world is one line in a file beside the log: the witness. A step waits while a file
named after it (`hold.<step>`) exists, so that a test can kill a worker exactly there.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from celery import Celery, Task, signals

from celery_commander.engine import NewEvent
from celery_commander.tasks import (
    BusMessage,
    Commander,
    NotDone,
    StepTimeout,
    Undo,
    Unknown,
    current_run,
    step,
)
from tests.kit import arm


class Refused(Exception):
    """The outside system said no: nothing happened."""


def make_app(directory: Path, broker: str | None = None, **settings: Any) -> Celery:
    """Return an app whose store, broker and witness lie in `directory`."""
    app = Celery("tests", broker=broker or "filesystem://", backend=f"file://{directory}/results")
    for folder in ("messages", "control", "results"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    app.conf.task_default_queue = directory.parent.name  # of this test alone
    if broker is None:
        # Kombu's own hands out messages that are half written, and a worker that reads one stops.
        app.conf.broker_transport = "examples.broker:Transport"
        folders = {
            "data_folder_in": "messages",
            "data_folder_out": "messages",
            "control_folder": "control",
        }
        app.conf.broker_transport_options = {
            key: str(directory / folder) for key, folder in folders.items()
        }
    app.conf.worker_prefetch_multiplier = int(os.environ.get("TEST_PREFETCH", "1"))
    app.conf.broker_connection_retry_on_startup = True
    quick = {"state_directory": directory / "state", "pending_after_seconds": 2, "sweep_seconds": 1}
    Commander(app, **{**quick, "undo_backoff_seconds": 0.1, **settings})
    define_tasks(app, Witness(directory))
    _hear_the_bus(app, Witness(directory))
    return app


def _hear_the_bus(app: Celery, witness: Witness) -> None:
    """Have the worker that is told so write down what the bus brings; the callback fails after that."""

    def hear(message: BusMessage) -> None:
        witness.mark("bus", message.type, message.run_id, sorted(message.data))
        raise RuntimeError("a callback that fails")

    if os.environ.get("TEST_BUS"):
        app.commander.bus.subscribe("run.#", hear)


class Witness:
    """Write down from outside what happened, and hold steps where a test wants them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def mark(self, *words: object) -> None:
        line = " ".join(str(word) for word in words) + "\n"
        descriptor = os.open(
            self._directory / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def lines(self) -> list[str]:
        try:
            return (self._directory / "witness").read_text().splitlines()
        except FileNotFoundError:
            return []

    def count(self, *words: object) -> int:
        """Return how many lines begin with these words."""
        wanted = " ".join(str(word) for word in words)
        return sum(line == wanted or line.startswith(f"{wanted} ") for line in self.lines())

    def pass_gate(self, name: str) -> None:
        while (self._directory / f"hold.{name}").exists():
            time.sleep(0.01)

    def hold(self, name: str) -> Path:
        gate = self._directory / f"hold.{name}"
        gate.touch()
        return gate

    def act(self, name: str, who: str) -> str:
        self.mark("begin", name, who)
        self.pass_gate(name)
        self.mark("did", name, who)
        return f"{name} of {who}"


def define_tasks(app: Celery, witness: Witness) -> None:
    """Register this app's tasks; each is a small workflow that one kind of test needs."""
    task = functools.partial(app.task, shared=False)  # a test process makes many apps

    @task(name="undo")
    def undo(told: Undo) -> None:
        witness.mark("undoing", told["args"][0], told["args"][1], told["key"])
        witness.pass_gate(f"undo.{told['args'][0]}")
        if os.environ.get("TEST_UNDO_DIES"):
            os.kill(os.getpid(), signal.SIGKILL)
        if _fails(witness, told):
            raise RuntimeError("the undo failed")
        witness.mark("undid", told["args"][0], told["args"][1], f"in_doubt={told['in_doubt']}")

    @step(compensate=undo, not_done=(Refused,))
    def act(name: str, who: str) -> str:
        return witness.act(name, who)

    @step(compensate="undo", not_done=(Refused,))
    def refuse(name: str, who: str) -> str:
        witness.mark("begin", name, who)
        raise Refused(name)

    @step(retry_in_doubt=True)
    def act_again(name: str, who: str) -> str:
        return witness.act(name, who)

    @step(compensate=undo, in_doubt="park")
    def act_parked(name: str, who: str) -> str:
        return witness.act(name, who)

    def asked(key: str) -> Any:
        answer = (witness._directory / "answer").read_text()
        witness.mark("asked", key, answer)
        return {"not done": NotDone, "unknown": Unknown}.get(answer, answer)

    @step(compensate=undo, resolve=asked)
    def act_asked(name: str, who: str) -> str:
        return witness.act(name, who)

    @step(retries=3, retry_on=(StepTimeout, Refused), backoff=0.2, timeout=0.5)
    def act_in_time(name: str, who: str) -> str:
        if witness.count("begin", name, who) == 1:
            witness.mark("begin", name, who)
            raise Refused(name)
        return witness.act(name, who)

    @task(name="flow_in_time", durable=True)
    def flow_in_time(who: str) -> str:
        return act_in_time("one", who)

    @task(name="flow", durable=True)
    def flow(who: str) -> list[str]:
        witness.mark("body", who)
        return [act(name, who) for name in ("one", "two", "three")]

    @task(name="flow_late", durable=True, acks_late=True)
    def flow_late(who: str) -> list[str]:
        witness.mark("body", who)
        return [act(name, who) for name in ("one", "two", "three")]

    @task(name="flow_safe", durable=True)
    def flow_safe(who: str) -> list[str]:
        return [act_again(name, who) for name in ("one", "two", "three")]

    @task(name="flow_changed", durable=True)
    def flow_changed(who: str) -> list[str]:
        names = os.environ.get("TEST_STEPS", "one two three").split()
        return [act_again(name, who) for name in names]

    @task(name="flow_saved", durable=True)
    def flow_saved(who: str) -> list[str]:
        names = os.environ.get("TEST_STEPS", "one two three four").split()
        done: list[str] = [] if os.environ.get("TEST_NO_RESTORED") else current_run.restored([])
        witness.mark("from", who, len(done))
        for name in names[len(done) :]:
            done = [*done, act_again(name, who)]
            if len(done) == 2:
                current_run.checkpoint(done)
        return done

    @task(name="flow_parked", durable=True)
    def flow_parked(who: str) -> str:
        return act_parked("one", who)

    @task(name="flow_asked", durable=True)
    def flow_asked(who: str) -> list[str]:
        return [act("one", who), act_asked("two", who), act("three", who)]

    @task(name="flow_refused", durable=True)
    def flow_refused(who: str) -> list[str]:
        return [act("one", who), act("two", who), refuse("three", who)]

    @task(name="flow_inputs", durable=True)
    def flow_inputs(who: str) -> list[str]:
        seen = [str(current_run.now()), str(current_run.uuid4()), str(current_run.random())]
        seen.append(current_run.random_bytes(4).hex())
        seen.append(current_run.record(os.getpid.__class__.__name__.upper))
        witness.mark("saw", who, "/".join(seen).replace(" ", "T"))
        act_again("one", who)
        return seen

    @task(name="flow_retry", durable=True, bind=True, max_retries=3)
    def flow_retry(self: Task, who: str) -> list[str]:
        done = act("one", who)
        if self.request.retries < 2:
            raise self.retry(countdown=0.1)
        return [done, act("two", who)]

    @step(compensate=undo)
    def flaky(name: str, who: str) -> str:
        witness.mark("begin", name, who, current_run.idempotency_key)
        if witness.count("begin", name, who) < 3:
            raise Refused(name)
        return name

    @task(name="flow_flaky", durable=True, autoretry_for=(Refused,), retry_kwargs={"countdown": 0})
    def flow_flaky(who: str) -> list[str]:
        return [act("one", who), flaky("two", who), act("three", who)]

    @step(retries=5, retry_on=Refused, backoff=600, backoff_max=600, jitter=False)
    def refused_for_long(who: str) -> None:
        witness.mark("begin", "one", who)
        raise Refused(who)

    @task(name="flow_patient", durable=True)
    def flow_patient(who: str) -> None:
        refused_for_long(who)

    @task(name="flow_goes_on", durable=True, bind=True, max_retries=3)
    def flow_goes_on(self: Task, who: str) -> list[str]:
        done = act("one", who)
        if self.request.retries == 0:
            self.retry(countdown=0.1, throw=False)
        return [done, act("two", who)]

    @task(name="flow_sends", durable=True)
    def flow_sends(who: str) -> None:
        app.tasks["plain"].delay(who)

    @task(name="flow_exit", durable=True)
    def flow_exit(who: str) -> None:
        act("one", who)
        sys.exit(3)

    @task(name="flow_poison", durable=True)
    def flow_poison(who: str) -> None:
        witness.mark("body", who)
        os.kill(os.getpid(), signal.SIGKILL)

    @task(name="flow_segfault", durable=True)
    def flow_segfault(who: str) -> None:
        witness.mark("body", who)
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)

    @task(name="flow_pause", durable=True)
    def flow_pause(who: str) -> str:
        witness.mark("body", who)
        witness.pass_gate("body")
        return act("one", who)

    @task(name="tiny", durable=True)
    def tiny(number: int) -> int:
        witness.mark("tiny", number)
        return number

    @task(name="plain")
    def plain(value: Any = None) -> Any:
        witness.mark("plain", value)
        return value

    @task(name="unrecordable", durable=True)
    def unrecordable(who: str) -> object:
        act("one", who)
        return object()


def hammer(app: Celery, witness: Witness) -> None:
    """Hold the locks of the store half of the time in the worker's main process while it forks."""

    def beat(sender: Any = None, **_: Any) -> None:
        threading.Thread(target=strike, daemon=True).start()

    def strike() -> None:
        commander = app.commander
        while True:
            began = time.monotonic()
            commander.engine.append_many([NewEvent("noise.made", {})] * 20, wait=True)
            commander.ledger.catch_up()
            commander.leases.dead_holders()
            logging.getLogger("noise").warning("made")
            time.sleep(time.monotonic() - began)  # half of the time in a lock

    def look() -> None:
        names = [thread.name for thread in threading.enumerate() if "commander" in thread.name]
        if not witness.count("forked"):
            witness.mark("forked", *names)

    signals.worker_ready.connect(beat, weak=False)
    os.register_at_fork(before=look)


def _fails(witness: Witness, told: Undo) -> bool:
    """Tell whether an undo is to fail: as often as the number in `fail.<step>` says."""
    allowed = witness._directory / f"fail.{told['args'][0]}"
    return allowed.exists() and witness.count("undoing", told["args"][0]) <= int(
        allowed.read_text()
    )


def _from_environment() -> Iterator[Celery]:
    directory = os.environ.get("TEST_DIRECTORY")
    if directory is not None:
        arm()
        made = make_app(Path(directory), os.environ.get("TEST_BROKER") or None)
        if os.environ.get("TEST_HAMMER"):
            hammer(made, Witness(Path(directory)))
        yield made


app = next(_from_environment(), None)
