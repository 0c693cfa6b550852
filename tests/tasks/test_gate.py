"""A fork never falls into a broker call of recovery: it would copy somebody's lock in its locked state."""

from __future__ import annotations

import os
import threading

from celery_commander.tasks.gate import fork_gate


def pass_the_gate() -> None:
    with fork_gate.passed():
        pass


def test_a_fork_waits_for_the_call_that_is_under_way() -> None:
    entered, release = threading.Event(), threading.Event()
    under_way, seen = [False], []

    def call_the_broker() -> None:
        with fork_gate.passed():
            under_way[0] = True
            entered.set()
            release.wait(30)
            under_way[0] = False

    def fork() -> None:
        pid = os.fork()
        if pid == 0:  # the gate of the child is open, for all its threads
            passing = threading.Thread(target=pass_the_gate, daemon=True)
            passing.start()
            passing.join(10)
            os._exit(int(passing.is_alive()))
        seen.append((under_way[0], os.waitpid(pid, 0)[1]))

    calling, forking = threading.Thread(target=call_the_broker), threading.Thread(target=fork)
    calling.start()
    assert entered.wait(30)
    forking.start()
    forking.join(0.5)  # without the gate it is through long before this
    release.set()
    for thread in (calling, forking):
        thread.join(30)

    assert seen == [(False, 0)]


def test_calls_of_two_threads_do_not_wait_for_each_other() -> None:
    both = threading.Barrier(2)

    def call_the_broker() -> None:
        with fork_gate.passed(), fork_gate.passed():
            both.wait(30)  # broken unless both are inside

    calling = [threading.Thread(target=call_the_broker) for _ in range(2)]
    for thread in calling:
        thread.start()
    for thread in calling:
        thread.join(40)

    assert not both.broken


def test_a_thread_may_fork_inside_its_own_call() -> None:
    with fork_gate.passed():
        pid = os.fork()
        if pid == 0:
            os._exit(0)

    assert os.waitpid(pid, 0)[1] == 0
    pass_the_gate()
