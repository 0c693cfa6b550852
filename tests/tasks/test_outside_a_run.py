"""Steps and current_run where no run goes on: plain functions, so that a task can be called and tested as one."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from celery import Celery, Task

from celery_commander.engine import CommanderError
from celery_commander.tasks import Commander, DurableTask, RunStopped, current_run, step
from celery_commander.tasks.lost import running_threads


@step
def echo(value: str) -> tuple[str, str]:
    return value, current_run.idempotency_key


@step(name="outer")
def outer(value: str) -> tuple[str, str, str]:
    return (*echo(value), current_run.idempotency_key)


def test_a_step_is_a_plain_call_with_a_key_of_its_own() -> None:
    (first, key), (second, other) = echo("a"), echo("a")

    assert (first, second) == ("a", "a")
    assert key != other


def test_a_step_inside_a_step_shares_its_key() -> None:
    _, inner, own = outer("a")

    assert inner == own


def test_what_differs_at_a_replay_is_real_outside_a_run() -> None:
    before = datetime.now(UTC)

    assert before <= current_run.now() <= datetime.now(UTC)
    assert current_run.uuid4() != current_run.uuid4()
    assert 0 <= current_run.random() < 1
    assert len(current_run.random_bytes(5)) == 5
    assert current_run.record(max, 1, 2) == 2
    assert current_run.llm(str.upper, "a") == "A"
    assert current_run.tool(str.lower, "A") == "a"
    assert not current_run.replaying


@pytest.mark.parametrize("count", [-1, True, 1.5])
def test_random_bytes_takes_a_count(count: int) -> None:
    with pytest.raises(ValueError, match="whole number"):
        current_run.random_bytes(count)


@pytest.mark.parametrize("name", ["id", "attempt", "token"])
def test_what_only_a_run_has_is_refused_outside_one(name: str) -> None:
    with pytest.raises(RunStopped, match=name):
        getattr(current_run, name)


@pytest.mark.parametrize(
    "options, shown",
    [
        ({"not_done": (1,)}, "exception classes"),
        ({"in_doubt": "maybe"}, "abort"),
        ({"undo": 1}, "undo"),
    ],
)
def test_a_wrong_option_of_a_step_is_refused_where_it_stands(
    options: dict[str, object], shown: str
) -> None:
    with pytest.raises(TypeError, match=shown):
        step(**options)(echo)  # type: ignore[call-overload]  # the point of the test


def test_a_step_in_a_thread_that_a_body_started_is_refused() -> None:
    seen: list[BaseException] = []

    def call() -> None:
        try:
            echo("a")
        except CommanderError as error:
            seen.append(error)

    running_threads[threading.get_ident()] = "r-1"
    try:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    finally:
        del running_threads[threading.get_ident()]

    assert "r-1" in str(seen[0])


def make_app(tmp_path: Path) -> Celery:
    app = Celery("plain-calls", broker="memory://", backend="cache+memory://")
    Commander(app, state_directory=tmp_path / "state")
    return app


def test_a_durable_task_is_a_function_when_called_as_one(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.task(durable=True, shared=False)
    def work(value: str) -> str:
        return echo(value)[0]

    assert work("a") == "a"
    assert work.apply(("b",)).get() == "b"
    assert not (tmp_path / "state").exists()


def test_a_plain_task_keeps_celerys_own_fast_path(tmp_path: Path) -> None:
    from celery.app.trace import task_has_custom

    app = make_app(tmp_path)

    @app.task(shared=False)
    def plain() -> None: ...

    @app.task(durable=True, shared=False)
    def durable() -> None: ...

    hooks = ("__call__", "on_success", "on_failure")
    assert not any(task_has_custom(plain._get_current_object(), hook) for hook in hooks)
    assert all(task_has_custom(durable._get_current_object(), hook) for hook in hooks)


def test_what_the_apps_own_task_class_does_around_a_body_stays(tmp_path: Path) -> None:
    app = Celery("around", broker="memory://", task_cls="tests.tasks.around:AroundTask")
    Commander(app, state_directory=tmp_path / "state")

    @app.task(durable=True, shared=False)
    def work() -> list[str]:
        return list(work.around)

    assert work() == ["entered"]
    assert isinstance(work._get_current_object(), app.Task)


def test_the_base_class_is_the_same_as_the_option(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    @app.task(base=DurableTask, shared=False)
    def work() -> None: ...

    assert work.durable
    assert work.Request == "celery_commander.tasks.request:DurableRequest"


class Based(Task):
    """A base class of a user's own."""

    abstract = True


def test_a_durable_task_with_a_base_of_its_own_is_durable_however_it_is_registered(
    tmp_path: Path,
) -> None:
    app = Celery("based", broker="memory://", backend="cache+memory://")

    @app.task(durable=True, base=Based, shared=False)
    def before() -> None: ...

    Commander(app, state_directory=tmp_path / "state")

    @app.task(durable=True, base=Based, shared=False)
    def pending() -> None: ...

    app.finalize()

    @app.task(durable=True, base=Based, shared=False)
    def after() -> None: ...

    class Written(Based):
        name = "written"
        durable = True

        def run(self) -> None: ...

    written = app.register_task(Written())

    found = [app.tasks[task.name] for task in (before, pending, after, written)]
    assert all(hasattr(type(task), "_commander_body") for task in found)
    assert all(isinstance(task, Based) for task in found)
    assert {task.Request for task in found} == {"celery_commander.tasks.request:DurableRequest"}


@pytest.mark.parametrize(
    "options, shown",
    [({"compensate": len}, "make the undo a task"), ({"resolve": 3}, "function of the step's key")],
)
def test_an_undo_that_is_no_task_is_refused_where_the_step_stands(
    options: dict[str, object], shown: str
) -> None:
    with pytest.raises(TypeError, match=shown):
        step(**options)(echo)  # type: ignore[call-overload]  # the point of the test


def test_a_step_is_a_plain_function() -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match="plain function"):
        step(later)
