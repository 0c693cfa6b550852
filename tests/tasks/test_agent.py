"""What a model said is recorded whole; the example's agent is killed at every event and asks nothing twice."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from celery_commander.tasks import current_run
from tests.engine.forked import Forked
from tests.kit import CrashPoint, arm
from tests.tasks.bench import Bench

SAYS = (
    {"role": "assistant", "tool": "book_flight", "arguments": ["Oslo"]},
    {"role": "assistant", "tool": "book_flight", "arguments": ["Rome"]},
    {"role": "assistant", "content": "You fly to Oslo, then to Rome."},
)


class Model(ThreadingHTTPServer):
    """A model that says one thing after another, by how much was said to it, and counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/chat"


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        turn = len(messages) // 2
        assert isinstance(self.server, Model)
        self.server.asked.append(turn)
        usage = {"prompt_tokens": 10 * len(messages), "completion_tokens": 5}
        reply = {"id": f"req-{turn}", "message": SAYS[turn], "usage": usage}
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def model() -> Iterator[Model]:
    server = Model()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


class Agent:
    """The example, imported anew in a process of its own for every use: a module is imported once in a process."""

    def __init__(self, directory: Path, model: Model) -> None:
        self.environment = {
            "AGENT_DIR": str(directory),
            "MODEL_URL": model.url,
            "TOOLS_FILE": str(directory / "tools"),
        }
        self.queue = directory.name

    def use(self, function: Callable[[Bench], Any], **environment: str) -> Forked:
        def run(_: Forked) -> Any:
            os.environ.update(self.environment | environment)
            module = importlib.import_module("examples.agent")
            module.app.conf.task_default_queue = self.queue
            arm()
            with contextlib.closing(module.app.commander):
                return function(Bench(module.app, []))

        return Forked(run)


@pytest.fixture
def agent(tmp_path: Path, model: Model) -> Agent:
    return Agent(tmp_path, model)


def sent(bench: Bench) -> str:
    return bench.send("examples.agent.answer", "Where do I fly?")


def booked(tmp_path: Path) -> list[str]:
    return [line.split(" ", 1)[1] for line in (tmp_path / "tools").read_text().splitlines()]


def test_the_agent_comes_to_its_answer_and_every_reply_is_recorded_with_what_it_cost(
    agent: Agent, tmp_path: Path
) -> None:
    def work(bench: Bench) -> Any:
        run_id = sent(bench)
        result = bench.deliver(run_id)
        events = bench.app.commander.engine.history(run_id)
        return result, [e.payload["meta"] for e in events if e.type == "input.recorded"]

    with agent.use(work) as child:
        (state, result), told = child.result()
    assert (state, result["answer"]) == ("SUCCESS", SAYS[-1]["content"])
    assert booked(tmp_path) == ["flight to Oslo", "flight to Rome"]
    assert [each.pop("seconds") > 0 for each in told] == [True] * 3
    assert told == [
        {"prompt_tokens": 10 * count, "completion_tokens": 5, "request_id": f"req-{turn}"}
        for turn, count in enumerate((1, 3, 5))
    ]


@pytest.mark.crash
@pytest.mark.parametrize("event, nth", [
    ("input.recorded", 1), ("step.completed", 1), ("input.recorded", 2), ("step.completed", 2),
    ("input.recorded", 3), ("run.committed", 1),
])  # fmt: skip
def test_a_killed_agent_asks_and_books_nothing_twice(
    agent: Agent, model: Model, tmp_path: Path, event: str, nth: int
) -> None:
    point = CrashPoint(event, nth=nth, directory=tmp_path)
    with agent.use(sent) as child:
        run_id = child.result()
    with (
        agent.use(lambda bench: bench.deliver(run_id), **point.environment()) as child,
        pytest.raises(EOFError),
    ):
        child.hear()

    def work(bench: Bench) -> Any:
        bench.app.commander.bootstrapper.bootstrap()
        return bench.deliver(run_id)

    with agent.use(work) as child:
        assert child.result()[0] == "SUCCESS"
    assert model.asked == [0, 1, 2]
    assert booked(tmp_path) == ["flight to Oslo", "flight to Rome"]


def test_a_streamed_answer_is_recorded_whole_with_what_its_last_part_says(bench: Bench) -> None:
    calls: list[str] = []

    def stream(words: str) -> Iterator[dict[str, Any]]:
        calls.append(words)
        for word in words.split():
            yield {"delta": word}
        yield {"delta": "", "id": "req-7", "usage": {"output_tokens": 3}}

    def body(self: Any) -> list[str]:
        parts = current_run.llm(stream, "to be recorded")
        if self.request.retries == 0:
            raise self.retry(countdown=0)
        return [part["delta"] for part in parts]

    assert bench.run(body, bind=True)[0] == "RETRY"
    assert bench.deliver(bench.run_id, retries=1) == ("SUCCESS", ["to", "be", "recorded", ""])
    assert calls == ["to be recorded"]
    (told,) = [
        e.payload["meta"]
        for e in bench.app.commander.engine.history(bench.run_id)
        if e.type == "input.recorded"
    ]
    assert (told["request_id"], told["output_tokens"]) == ("req-7", 3)
