"""Give a body its run: `current_run.now()` instead of `datetime.now()`, and what else would differ at a replay.

Outside a run everything works as if there were no log, so that a durable task can be called and tested as a function.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4

from .errors import RunStopped
from .execution import Execution, current_execution
from .lost import refuse_lost_thread
from .steps import StepSpec, call, plain_key
from .usage import whole

R = TypeVar("R")

LONGEST_CHANGE_ID = 128


class CurrentRun:
    """Answer for the run that goes on in this thread.

    `now`, `uuid4`, `random`, `random_bytes`, `record` and `llm` record one value each. When the process dies before the
    value was written it is made again, so what they call must not have effects; `tool` may.
    """

    @property
    def id(self) -> str:
        """Return the run's id, which is its task id."""
        return self._execution("id").run_id

    @property
    def attempt(self) -> int:
        """Return how often the run was claimed, this time included; from 1."""
        return self._execution("attempt").attempt

    @property
    def token(self) -> int:
        """Return the fencing number of this attempt: a system that keeps the highest can refuse a late owner."""
        return self._execution("token").token

    @property
    def replaying(self) -> bool:
        """Return whether the next step or input is answered from the log; False outside a run."""
        execution = current_execution.get()
        return execution is not None and execution.replaying

    @property
    def idempotency_key(self) -> str:
        """Return the key of the step that is running: the same whenever it is run again. Outside a run a fresh one.

        A thread that a step starts must be given the step's context (`contextvars.copy_context().run`), or the key.

        Raises:
            RunStopped: no step is running, or a bare thread of a run asks.

        """
        execution = current_execution.get()
        if execution is not None:
            if execution.step_key is None:
                raise RunStopped(
                    execution.run_id, "an idempotency key belongs to a step; ask for it inside one"
                )
            return execution.step_key
        if (key := plain_key.get()) is not None:
            return key
        refuse_lost_thread("idempotency_key")
        return str(uuid4())

    def now(self) -> datetime:
        """Return the time in UTC, recorded."""
        return self._input("now", "now", lambda: datetime.now(UTC))

    def uuid4(self) -> UUID:
        """Return a random UUID, recorded."""
        return self._input("uuid4", "uuid4", uuid4)

    def random(self) -> float:
        """Return a number in [0, 1), recorded; not for secrets."""
        return self._input("random", "random", random.random)

    def random_bytes(self, n: int) -> bytes:
        """Return `n` random bytes from the system, recorded in the log in clear: do not make secrets of them."""
        count: object = n
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(f"random_bytes takes a whole number of bytes, 0 or more, not {n!r}")
        return self._input(
            "random_bytes", "random_bytes", lambda: random.SystemRandom().randbytes(n), told=n
        )

    def record(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Return what `function` returns, recorded; it must not have effects."""
        return self._input(
            "record", _name(function), lambda: function(*args, **kwargs), told=[list(args), kwargs]
        )

    def llm(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Return a model's answer, recorded whole: after a crash the model is not asked again.

        Beside it stand the seconds that it took, the token counts that it carries under `usage`, and the provider's id
        of the request. A streamed answer (an iterator) is recorded, and returned, as the list of its parts. What
        cannot be recorded (a client library's own class) is refused by its place: return plain data, or register it.
        """
        answer: R = self._input(
            "llm",
            _name(function),
            lambda: whole(function(*args, **kwargs)),
            told=[list(args), kwargs],
        )
        return answer

    def tool(self, function: Callable[..., R], /, *args: Any, **kwargs: Any) -> R:
        """Call a tool as a step: it may have effects, and `idempotency_key` is its key. It has no undo."""
        spec = StepSpec(function, _name(function), kind="tool")
        return call(spec, args, kwargs)  # type: ignore[no-any-return]  # the recorded value has the function's type

    def patched(self, change_id: str) -> bool:
        """Return whether this run takes the way that came with a change: `if current_run.patched("tax"): …`.

        True where the run has not come past this point yet; that is recorded, and every later attempt takes the same
        way. False in a run that came past it before the change, which so goes on as it began. One answer holds for an
        id wherever it is asked in a run. Outside a run it is True.

        A patch is retired in two steps. Once no unfinished run began before the change, the old way can go, while the
        call stays and its answer is not looked at. Once no unfinished run has it recorded, the call can go too;
        `commander replay --all --check` tells.

        Raises:
            RunStopped: it was called inside a step, or in another thread.
            ValueError: the id is not text of 1 to 128 characters.

        """
        asked: object = change_id
        if not isinstance(asked, str) or not 1 <= len(asked) <= LONGEST_CHANGE_ID:
            raise ValueError(
                f"a change's id is text of 1 to {LONGEST_CHANGE_ID} characters, not {change_id!r}"
            )
        execution = current_execution.get()
        if execution is None:
            refuse_lost_thread("patched()")
            return True
        return execution.patches.take(change_id)

    def checkpoint(self, state: Any, version: int = 1) -> None:
        """Save what the body needs to go on from here: its own state, plain data, at most `checkpoint_bytes` encoded.

        After a crash a run is replayed from its first line whenever that is possible, checkpoint or not. What is saved
        here serves when it is not: the code has changed, or the history has a hole; and only in a body whose first call
        is `restored()`. In any other it is a mark. `version` is the body's own number for what its state looks like: a
        state of another version is not handed to it. A store that is away costs the checkpoint, not the run. Outside a
        run nothing happens.

        Raises:
            RunStopped: it was called inside a step, or in another thread.
            UnrecordableValue: a part of the state would not come back as it is; the run is aborted.
            CheckpointTooLarge: the state is larger than `checkpoint_bytes`.
            ValueError: the version is not a whole number from 0.

        """
        execution = current_execution.get()
        if execution is None:
            refuse_lost_thread("checkpoint()")
            return
        execution.marks.checkpoint(state, version)

    def restored(self, default: R, version: int = 1) -> R:
        """Return the state from which this attempt goes on, or `default` when it begins at the first line.

        It must be the body's first call of `current_run` or of a step. Then a run that cannot be replayed may begin
        from its last checkpoint of this `version`: the steps and inputs before it are not looked at again (their undos
        stay owed), those after it are given back as at any replay. Outside a run it returns `default`.

        Raises:
            RunStopped: it is not the first call, was called inside a step, or in another thread.
            ValueError: the version is not a whole number from 0.

        """
        execution = current_execution.get()
        if execution is None:
            refuse_lost_thread("restored()")
            return default
        state: R = execution.marks.restored(default, version)
        return state

    def _execution(self, asked: str) -> Execution:
        execution = current_execution.get()
        if execution is None:
            raise RunStopped("(none)", f"current_run.{asked} was asked for outside a durable task")
        return execution

    def _input(self, kind: str, name: str, produce: Callable[[], R], *, told: Any = None) -> R:
        execution = current_execution.get()
        if execution is not None:
            recorded: R = execution.input(kind, name, produce, told=told)
            return recorded
        refuse_lost_thread(name)
        return produce()


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


current_run = CurrentRun()
