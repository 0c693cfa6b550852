"""The app of the workers that bench/observe.py measures: one no-op task, with or without a commander."""

from __future__ import annotations

import os

from celery import Celery

from celery_commander.tasks import Commander

BARE = "bare"


def make_app(variant: str, broker: str, directory: str) -> Celery:
    app = Celery("bench", broker=broker)
    app.conf.task_default_queue = f"bench-{variant}"
    app.conf.task_ignore_result = True
    app.conf.worker_enable_remote_control = False
    if variant != BARE:
        Commander(app, state_directory=os.path.join(directory, variant), observe=variant)

    app.task(nothing, name="bench.nothing", shared=False)
    return app


def nothing() -> None:
    pass


if "BENCH_VARIANT" in os.environ:
    app = make_app(
        os.environ["BENCH_VARIANT"], os.environ["BENCH_BROKER"], os.environ["BENCH_DIRECTORY"]
    )
