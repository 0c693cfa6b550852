"""The door is a contents page: what it lists is there, once."""

from __future__ import annotations

import subprocess
import sys

from celery_commander import engine


def test_everything_that_the_door_lists_is_there_once() -> None:
    assert len(set(engine.__all__)) == len(engine.__all__)
    assert [name for name in engine.__all__ if not hasattr(engine, name)] == []


def test_every_error_is_at_the_door() -> None:
    known = {
        name
        for name, thing in vars(engine.errors).items()
        if isinstance(thing, type) and issubclass(thing, engine.CommanderError)
    }

    assert known <= set(engine.__all__)


def test_the_engine_knows_nothing_of_celery() -> None:
    program = (
        "import sys; sys.path[:] = %r; import celery_commander.engine;"
        "print([m for m in sys.modules if m.split('.')[0] in ('celery', 'kombu', 'billiard', 'flower')])"
    )

    told = subprocess.check_output([sys.executable, "-c", program % sys.path], text=True)

    assert told.strip() == "[]"
