"""Fork real processes that run a function of the test, and hear what it returned."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from tests.kit import kill


class Forked:
    """One forked process that runs `function(child)`; the parent talks to it by lines."""

    def __init__(self, function: Callable[[Forked], Any]) -> None:
        from_child, to_parent = os.pipe()
        from_parent, to_child = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(from_child)
            os.close(to_child)
            self._read, self._write = from_parent, to_parent
            self._run(function)
        os.close(to_parent)
        os.close(from_parent)
        self._read, self._write = from_child, to_child
        self._ended = False

    def _run(self, function: Callable[[Forked], Any]) -> None:
        signal.alarm(60)  # a test that fails leaves nobody behind
        try:
            self.say((True, function(self)))
        except BaseException:  # noqa: BLE001 - the other side raises it
            self.say((False, traceback.format_exc()))
        finally:
            os._exit(0)

    def say(self, thing: object) -> None:
        """Send something to the other side."""
        data = pickle.dumps(thing)
        os.write(self._write, len(data).to_bytes(4, "big") + data)

    def hear(self) -> Any:
        """Wait for what the other side says; EOFError when it is gone."""
        size = int.from_bytes(self._exactly(4), "big")
        return pickle.loads(self._exactly(size))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = os.read(self._read, size - len(data))
            if not part:
                raise EOFError(f"process {self.pid} is gone")
            data += part
        return data

    def result(self) -> Any:
        """Wait for the function's result; what it raised is shown as it was."""
        succeeded, value = self.hear()
        self.end()
        assert succeeded, value
        return value

    def send_signal(self, sign: signal.Signals) -> None:
        kill(self.pid, sign)

    def end(self) -> None:
        """Kill the process if it still runs, and wait for its end."""
        if not self._ended:
            self._ended = True
            kill(self.pid)
            os.waitpid(self.pid, 0)
            os.close(self._read)
            os.close(self._write)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@contextmanager
def all_at_once(count: int, function: Callable[[int], Any]) -> Iterator[list[Forked]]:
    """Fork `count` processes that call `function(number)` as nearly at one instant as can be."""
    gate, opener = os.pipe()

    def run(number: int) -> Callable[[Forked], Any]:
        def wait_and_call(_: Forked) -> Any:
            os.close(opener)
            os.read(gate, 1)  # returns for all when the parent closes its end
            return function(number)

        return wait_and_call

    processes = [Forked(run(number)) for number in range(count)]
    os.close(gate)
    os.close(opener)
    try:
        yield processes
    finally:
        for process in processes:
            process.end()


def together(count: int, function: Callable[[int], Any]) -> list[Any]:
    """Return what `function(number)` returned in each of `count` processes that ran it at once."""
    with all_at_once(count, function) as processes:
        return [process.result() for process in processes]
