"""A clock that nobody can set, and names that nobody makes twice."""

from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime, timedelta
from uuid import UUID

from celery_commander.engine import BootClock, holder_name, new_event_id

from .forked import together

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def test_the_clock_counts_forward_from_this_boot() -> None:
    clock = BootClock()
    first, second = clock.now(), clock.now()

    assert 0 < first <= second
    assert abs(second - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5


def test_all_processes_of_a_boot_agree_on_boot_and_time() -> None:
    def look(_: int) -> tuple[str, float]:
        clock = BootClock()
        return clock.boot_id, clock.now()

    answers = together(3, look)

    assert {boot for boot, _ in answers} == {BootClock().boot_id}
    assert UUID(BootClock().boot_id).int
    assert max(now for _, now in answers) - min(now for _, now in answers) < 5


def test_a_clock_can_be_given() -> None:
    clock = BootClock(boot_id="b", seconds=lambda: 5.0)

    assert (clock.boot_id, clock.now()) == ("b", 5.0)


def test_an_event_id_tells_when_it_was_made_and_is_of_version_seven() -> None:
    made = UUID(new_event_id(NOW))

    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert made.int >> 80 == int(NOW.timestamp() * 1000)
    assert re.fullmatch(r"[0-9A-Za-z_-]{1,64}", new_event_id(NOW))


def test_later_event_ids_sort_later() -> None:
    ids = [new_event_id(NOW + timedelta(milliseconds=n)) for n in range(50)]

    assert ids == sorted(ids)


def test_no_id_is_made_twice_in_threads_and_forked_children() -> None:
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.extend(new_event_id(NOW) for _ in range(500)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in together(4, lambda _: [new_event_id(NOW) for _ in range(500)]):
        made.extend(answer)

    assert len(set(made)) == len(made) == 4000


def test_a_holder_name_tells_who_it_is_and_is_nobody_elses() -> None:
    clock = BootClock(boot_id="3f2a9c1e-aaaa", seconds=lambda: 1.0)
    names = [holder_name("worker", clock) for _ in range(100)]

    assert all(
        re.fullmatch(r"worker-\d+@[A-Za-z0-9.-]+/3f2a9c1e/[0-9a-f]{12}", name) for name in names
    )
    assert len(set(names)) == 100
