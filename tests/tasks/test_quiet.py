"""What a body logs while it is replayed can be kept out of the log files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, signals
from celery.utils.log import get_task_logger

from celery_commander.tasks import Commander, QuietReplay, current_run, step

from .bench import Bench

logger = get_task_logger("shop.orders")


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())


@pytest.fixture
def heard() -> Any:
    handler = Heard()
    for name in ("shop.orders", "celery_commander.test"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).setLevel(logging.INFO)
    yield handler
    for name in ("shop.orders", "celery_commander.test"):
        logging.getLogger(name).removeHandler(handler)


def body_of(calls: list[str]) -> Any:
    @step
    def act(name: str) -> None:
        logger.info("in %s", name)

    def body(self: Any) -> None:
        logger.info("first")
        act("a")
        logging.getLogger("celery_commander.test").info("ours")
        current_run.now()
        logger.info("second")
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        act("b")
        logger.info("third")

    return body


ALL = ["first", "in a", "ours", "second"]


def test_only_new_lines_are_heard_of_an_attempt_that_is_replayed(
    bench: Bench, heard: Heard
) -> None:
    heard.addFilter(QuietReplay())
    bench.run(body_of([]), bind=True)
    assert heard.words == ALL
    bench.deliver(bench.run_id, retries=1)
    assert heard.words[4:] == ["ours", "second", "in b", "third"]


@pytest.mark.parametrize("silent", [False, True])  # what one app has set up stays
def test_celerys_handlers_are_quiet_where_that_is_set(
    tmp_path: Path, heard: Heard, silent: bool
) -> None:
    app = Celery("quiet", broker="memory://")
    commander = Commander(app, state_directory=tmp_path, silence_replay=silent)
    target = logging.getLogger(f"of celery, {silent}")
    target.addHandler(heard)
    signals.after_setup_logger.send(sender=None, logger=target)
    signals.after_setup_task_logger.send(sender=None, logger=target)
    assert len([each for each in heard.filters if isinstance(each, QuietReplay)]) == silent
    assert commander.settings.silence_replay is silent
