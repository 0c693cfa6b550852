"""The app that docker-compose.yml runs: one durable task, one plain one, everything else from the environment.

    celery --app examples.service worker

BROKER_URL and RESULT_BACKEND say where messages and results go, COMMANDER_* how runs are kept; what is
not said is Celery's and the commander's own default.
"""

from __future__ import annotations

import os

from celery import Celery

from celery_commander.tasks import Commander, Undo, current_run, step

app = Celery(
    "service",
    broker=os.environ.get("BROKER_URL", "redis://127.0.0.1:6379/0"),
    backend=os.environ.get("RESULT_BACKEND", "redis://127.0.0.1:6379/1"),
)
app.conf.broker_connection_retry_on_startup = True
Commander(app)


@app.task
def forget(undo: Undo) -> None:
    """Take a greeting back; here there is nothing to take."""


@step(compensate=forget, retry_in_doubt=True)
def greet(name: str) -> str:
    return f"Hello, {name}! ({current_run.idempotency_key})"


@app.task(durable=True)
def welcome(name: str) -> dict[str, str]:
    """Greet somebody once, whatever happens to the worker meanwhile."""
    return {"at": current_run.now().isoformat(), "said": greet(name)}


@app.task
def add(a: int, b: int) -> int:
    """Add two numbers: an ordinary task, observed and not recorded."""
    return a + b
