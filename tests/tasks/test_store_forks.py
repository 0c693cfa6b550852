"""A store opened before a fork is used by everybody after it.

See sqlalchemy/sqlalchemy issue 7815: a child closed the pool that it inherited, and with it its parent's connections.
"""

from __future__ import annotations

from pathlib import Path

from celery_commander.engine import Settings, State
from celery_commander.tasks.store import Store, open_store
from tests.engine.forked import Forked, together

CHILDREN, RUNS = 4, 25


def create(store: Store, run_id: str) -> None:
    message = {"queue": "q"}
    created = {"task": "t", "namespace": "n", "message": message, "due": None, "key": None}
    store.engine.append("run.created", created, run_id=run_id)


def work(store: Store, name: str) -> None:
    for number in range(RUNS):
        run_id = f"{name}-{number}"
        create(store, run_id)
        lease = store.leases.acquire(run_id, name)
        assert lease is not None
        store.ledger.catch_up()
        found = store.ledger.get(run_id)
        assert found is not None
        assert found.run_id == run_id  # and nobody else's answer
        assert store.leases.release(lease)


def test_a_store_opened_before_a_fork_serves_the_parent_and_every_child(tmp_path: Path) -> None:
    store = open_store(Settings(state_directory=tmp_path / "state"))
    work(store, "before")

    def child(number: int) -> None:
        work(store, f"child{number}")
        store.close()  # what it inherited is not its own to close

    together(CHILDREN, child)
    work(store, "after")

    states = store.engine.replay()
    assert len(states) == (CHILDREN + 2) * RUNS
    store.ledger.catch_up()
    assert store.ledger.counts()[State.PENDING] == len(states)
    assert {run.run_id: run for run in store.ledger.runs(limit=1000)} == states
    store.close()


def test_a_child_that_ends_at_once_leaves_its_parents_store_usable(tmp_path: Path) -> None:
    store = open_store(Settings(state_directory=tmp_path / "state"))
    work(store, "before")

    assert Forked(lambda _: store.close()).result() is None
    work(store, "after")

    assert len(store.engine.replay()) == 2 * RUNS
    store.close()
