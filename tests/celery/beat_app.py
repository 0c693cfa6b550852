"""The app of durable_app with a schedule of its own, for a beat to send."""

from __future__ import annotations

from typing import Any

from tests.celery import durable_app

app: Any = durable_app.app
if app is not None:
    mine = {"task": "plain", "schedule": 1.0, "options": {"ignore_result": True}}
    app.conf.beat_schedule = {
        "mine": {**mine, "args": ("mine",)},
        "celery_commander.sweep": {**mine, "args": ("instead",)},
    }
