"""Plain tasks to be observed, beside the durable ones of durable_app."""

from __future__ import annotations

import functools
import os
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, signals

from tests.celery import durable_app
from tests.celery.durable_app import Witness

SECRET = "4111-1111-1111-1111"


def define_observed(app: Celery, witness: Witness) -> None:
    task = functools.partial(app.task, shared=False)

    @task(name="fails")
    def fails(card: str) -> None:
        raise ValueError(f"the card {card} was declined")

    @task(name="says")
    def says(card: str) -> str:
        witness.mark("said", card)
        return card

    @task(name="again", bind=True, max_retries=3)
    def again(self: Task, card: str) -> str:
        if self.request.retries < 3:
            raise self.retry(exc=ValueError(card), countdown=0)
        return card

    @task(name="lingers")
    def lingers(card: str) -> None:
        witness.mark("lingers", card, os.getpid())
        witness.pass_gate("lingers")

    @task(name="limited", time_limit=1)
    def limited(card: str) -> None:
        time.sleep(60)


def hammer(app: Celery) -> None:
    """Take every lock of ours in a thread of the main process, all the time, from when the worker is ready."""
    subscriber = app.commander.subscriber

    def strike() -> None:
        while True:
            subscriber.facts()
            subscriber.sent("hammered", {"id": "hammer"}, {})
            subscriber._parts[""][0].drops.total()
            app.commander.engine.append("hammer.struck", {}, wait=False)
            with signals.task_failure.lock, signals.task_prerun.lock:
                time.sleep(0.002)
            time.sleep(0.002)

    @signals.worker_ready.connect(weak=False)
    def ready(**_: Any) -> None:
        threading.Thread(target=strike, daemon=True).start()


def _of_the_worker() -> Celery | None:
    if durable_app.app is None:
        return None
    define_observed(durable_app.app, Witness(Path(os.environ["TEST_DIRECTORY"])))
    if limit := os.environ.get("TEST_TASKS_PER_CHILD"):
        durable_app.app.conf.worker_max_tasks_per_child = int(limit)
    if "TEST_HAMMER" in os.environ:
        hammer(durable_app.app)
    return durable_app.app


app = _of_the_worker()
