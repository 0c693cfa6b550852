"""A plugin for Celery's own tests: each app that they make gets a Commander, and each task of theirs is durable."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from typing import Any

from celery import Task
from celery.contrib import pytest as celery_fixtures
from celery.contrib.testing import app as testing

from celery_commander.tasks import Commander, durable

STATE = tempfile.mkdtemp(prefix="celery-suite-state-")
OURS = "t.integration."

atexit.register(shutil.rmtree, STATE, ignore_errors=True)


def _install() -> None:
    made_durable, test_app = durable.made_durable, testing.TestApp

    def every_task_durable(task: Task) -> Task:
        if task.name.startswith(OURS):
            type(task).durable = True
        return made_durable(task)

    def with_commander(*args: Any, **options: Any) -> Any:
        app = test_app(*args, **options)
        settings = {"namespace": "suite", "schedule": False, "pending_after_seconds": 5}
        Commander(app, state_directory=STATE, sweep_seconds=2, **settings)
        return app

    durable.made_durable = every_task_durable
    testing.TestApp = with_commander
    if hasattr(celery_fixtures, "TestApp"):
        celery_fixtures.TestApp = with_commander


_install()
