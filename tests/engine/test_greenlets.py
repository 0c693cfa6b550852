"""Where greenlets share a thread, one that waits for the disk keeps no other waiting."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from celery_commander.engine import EventSourcingEngine, Status
from celery_commander.engine.greenlets import hub_threadpool
from tests.source_tree import ROOT

PROGRAM = """
from gevent import monkey
monkey.patch_all()
import gevent, json, sys
from celery_commander.engine import EventSourcingEngine
from celery_commander.engine.files import Files

slow = monkey.get_original("time", "sleep")
ticks, during = [0], []

class Slow(Files):
    def sync(self, fd):
        began = ticks[0]
        slow(0.1)
        super().sync(fd)
        during.append(ticks[0] - began)

def tick():
    while True:
        gevent.sleep(0.002)
        ticks[0] += 1

with EventSourcingEngine.open(sys.argv[1]) as log:
    log.append("warm", {})
with EventSourcingEngine.open(sys.argv[1], files=Slow()) as log:
    during.clear()
    gevent.spawn(tick)
    def write(name):
        return [log.append("note", {"i": i}, run_id=name, wait=i % 2 == 0).seq for i in range(4)]
    writers = [gevent.spawn(write, f"r-{number}") for number in range(100)]
    gevent.joinall(writers, raise_error=True)
    waited = list(during)
    seqs = sorted(seq for each in writers for seq in each.value)
print(json.dumps({"during": waited, "seqs": seqs}))
"""


@pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed")
def test_a_hundred_greenlets_append_and_the_hub_runs_on_during_every_sync(tmp_path: Path) -> None:
    path = tmp_path / "state" / "events.wal"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["during"]
    assert all(count > 0 for count in told["during"]), told["during"]
    assert len(told["during"]) < 100  # they share syncs as threads do
    assert told["seqs"] == list(range(told["seqs"][0], told["seqs"][0] + 400))
    with EventSourcingEngine.open(path) as log:
        assert log.verify_integrity().status is Status.OK_UNANCHORED
        assert [event.payload["i"] for event in log.history("r-7")] == [0, 1, 2, 3]


def test_where_threads_are_threads_nothing_is_handed_over() -> None:
    assert hub_threadpool() is None
