"""Act on dead letters: let a run go on, run it anew, or close its letter.

A person's word is an event, `operator.retried` or `operator.discarded`, and durable before anything is done. The
fold lets the first word on a letter count; whoever comes second is told who was first. What the word asks for is then
done the way recovery does it, and by recovery too: a process that dies between the two leaves a run that the next pass
finds released, or a run that was promised and is not in the log yet.
"""

from __future__ import annotations

import builtins
import getpass
import logging
import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_commander.engine import (
    Category,
    DeadLetter,
    DeadLetterQueue,
    DeadLetterRefused,
    DeadLetterResolved,
    Entry,
    Event,
    HistoryArchived,
    LogUnavailable,
    RunHistory,
    RunState,
    State,
    StoreUnavailable,
    UnknownDeadLetter,
    UnknownRun,
    UnknownTask,
    encode,
)

from .gate import fork_gate
from .keys import follower_of
from .message import as_new_run, created_data, of_created
from .publishing import publish_again
from .stuck import StuckUndo, undo_given_up

if TYPE_CHECKING:
    from .install import Commander

logger = logging.getLogger(__name__)

PRUNE_SECONDS = 3600.0
"""The time between two prunings of lapsed letters by one process."""

RETRIED, DISCARDED = "operator.retried", "operator.discarded"


@dataclass(frozen=True, slots=True)
class Acted:
    """Say what came of a person's word."""

    letter: DeadLetter
    """The letter as it stands now."""
    run_id: str
    """The run that goes on; a fresh one where an aborted run is retried."""
    action: str
    """discard, run anew, or what recovery did: requeue, abort; skip where the next pass does it."""
    reason: str


@dataclass(frozen=True, slots=True)
class Said:
    """Say what became of a step in doubt, or that its run be aborted.

    The result of a step that happened must be one that the log can hold; the body sees it as the step's own.
    """

    happened: bool | None = None
    result: Any = None
    abort: bool = False


class DeadLetters:
    """List dead letters and act on them: `app.commander.dead_letters`.

    Letters of every namespace of the store are shown; acted on are those of this app's own.
    """

    def __init__(self, commander: Commander) -> None:
        self._commander = commander
        self._pruned_at: float | None = None

    def list(
        self,
        category: Category | str | None = None,
        *,
        open_only: bool = True,
        limit: int = 100,
        offset: int = 0,
    ) -> builtins.list[DeadLetter]:
        """Return letters, newest first; of one category, or of all.

        Raises:
            ValueError: there is no such category.

        """
        queue = self._fresh()
        return queue.list(category, open_only=open_only, limit=limit, offset=offset)

    def show(self, entry: str) -> DeadLetter:
        """Return one letter, open or resolved.

        Raises:
            UnknownDeadLetter: there is none of that id.

        """
        letter = self._fresh().get(entry)
        if letter is None:
            raise UnknownDeadLetter(entry)
        return letter

    def counts(self) -> dict[Category, int]:
        """Return how many letters are open of each category, as of the ledger's last catch-up."""
        return self._queue.counts()

    @property
    def open_count(self) -> int:
        """Return how many letters are open, as of the ledger's last catch-up."""
        return self._queue.open_count

    def asked_about(self, letter: DeadLetter) -> Entry | None:
        """Return the step of which a person must say what became of it; None when nothing is asked."""
        history = self._commander.history(letter.run_id)
        if letter.category is not Category.IN_DOUBT or not history.in_doubt:
            return None
        doubts = history.in_doubt
        left = (entry for entry in doubts if not (entry.resolve or entry.retry_in_doubt))
        return next(left, doubts[0])  # what settles itself is asked only when nothing else is

    def stuck_undo(self, letter: DeadLetter) -> StuckUndo | None:
        """Return which undo made a run stuck, from its history; None for other letters, and once that is archived."""
        if letter.category is not Category.STUCK:
            return None
        try:
            events = self._commander.engine.history(letter.run_id)
        except HistoryArchived:
            return None
        return undo_given_up([event for event in events if event.seq <= letter.seq])

    def retry(self, entry: str, answer: Said | None = None, *, by: str | None = None) -> Acted:
        """Let the run of a letter go on, or run an aborted one anew; `by` is who says so, default user@host.

        A parked run is replayed under the code as it is now; one with a step in doubt needs an `answer`. A stuck
        rollback begins again where it stopped. A recovered run went on by itself.

        Raises:
            UnknownDeadLetter, DeadLetterResolved: there is nothing to act on; somebody may have been faster.
            DeadLetterRefused: the answer is missing, or one is given that nobody asked for, or it is too early.
            UnknownTask: this app does not know the run's task; ask an app that does.
            UnrecordableValue: the result that was given cannot be recorded.
            LogError, StoreUnavailable: nothing was recorded; or it was, and the next pass does it.

        """
        letter = self.show(entry)
        if not letter.may_be_retried:
            return self._finish(letter, answer)
        self._check_ours(letter)
        word = {"entry": entry, "by": by or who(), "answer": self._worded(letter, answer)}
        if letter.category in (Category.ABORTED, Category.POISON):
            self._check_undone(letter)
            word["retry_as"] = self._new_id(letter)
        self._say(letter, RETRIED, word)
        return self._carry_out(self.show(entry))

    def discard(self, entry: str, reason: str, *, by: str | None = None) -> Acted:
        """Close a letter of which nothing more is expected. What its run came to stays as it is.

        Raises:
            UnknownDeadLetter, DeadLetterResolved: there is nothing to close.
            DeadLetterRefused: its run is parked, so it is not over; retry it, or have it aborted.

        """
        letter = self.show(entry)
        if not letter.is_open:
            raise _resolved(letter)
        self._check_ours(letter, needs_task=False)
        if letter.category in (Category.IN_DOUBT, Category.VERSION_CONFLICT):
            raise DeadLetterRefused(
                entry, "its run is parked, not over; retry it, or retry it with --abort to undo it"
            )
        self._say(letter, DISCARDED, {"entry": entry, "reason": reason, "by": by or who()})
        return Acted(self.show(entry), letter.run_id, "discard", reason)

    def sweep(self) -> None:
        """Finish what a dead process promised, and forget letters that have lapsed, now and then."""
        for letter in self._queue.unanswered():
            if letter.namespace == self._commander.namespace and letter.retried_as is not None:
                self._try_anew(letter, letter.retried_as)
        if self._pruned_at is None or time.monotonic() - self._pruned_at >= PRUNE_SECONDS:
            self._pruned_at = time.monotonic()
            self._queue.prune()

    def _try_anew(self, letter: DeadLetter, run_id: str) -> None:
        try:
            self._run_anew(letter, run_id)
        except (LogUnavailable, StoreUnavailable):
            raise
        except Exception:  # one that cannot be read stops no other
            logger.exception("Dead letter %s could not be retried, the next pass tries.", letter.id)

    @property
    def _queue(self) -> DeadLetterQueue:
        return self._commander.store.dead_letters

    def _fresh(self) -> DeadLetterQueue:
        self._commander.ledger.catch_up()
        return self._queue

    def _check_ours(self, letter: DeadLetter, *, needs_task: bool = True) -> None:
        if letter.namespace != self._commander.namespace:
            raise DeadLetterRefused(
                letter.id, f"its run is of namespace {letter.namespace!r}; ask that app"
            )
        if needs_task and letter.task not in self._commander.app.tasks:
            raise UnknownTask(letter.run_id, letter.task)

    def _check_undone(self, letter: DeadLetter) -> None:
        """Let no run act anew while the undo of the first is under way."""
        state = self._commander.history(letter.run_id).state
        if state is not None and state.state is State.ABORTED and state.owed:
            raise DeadLetterRefused(
                letter.id,
                f"the undo of run {letter.run_id} is under way; retry it once that is over",
            )

    def _worded(self, letter: DeadLetter, answer: Said | None) -> dict[str, Any] | None:
        """Return an answer as the log holds it, once it is one to what is asked."""
        asked = self.asked_about(letter)
        parked = letter.category in (Category.IN_DOUBT, Category.VERSION_CONFLICT)
        if answer is None or (answer.happened is None and not answer.abort):
            if asked is not None:
                raise DeadLetterRefused(
                    letter.id,
                    f"step {asked.step} ({asked.name}) of run {letter.run_id} is in doubt; find out what became of "
                    f"{asked.key}, then say --did-happen RESULT, --did-not-happen or --abort",
                )
            return None
        if answer.abort and parked:
            return {"abort": True}
        if asked is None:
            raise DeadLetterRefused(
                letter.id, "no step of its run is in doubt; retry it without an answer"
            )
        worded = {"step": asked.step, "happened": answer.happened}
        if answer.happened:
            worded["result"] = encode(answer.result, path="result")
        return worded

    def _new_id(self, letter: DeadLetter) -> str:
        """Return the id of the run that goes in place of a letter's: the same whoever asks, so there is one."""
        state = self._commander.history(letter.run_id).state
        if state is None or state.key is None:
            log_id = self._commander.engine.log_id
            return str(uuid.uuid5(uuid.NAMESPACE_URL, f"celery-commander:{log_id}:{letter.id}"))
        follower, is_next = follower_of(self._commander, state.task, state.key, letter.run_id)
        if not is_next:
            reason = f"run {follower} has taken its place: it was sent with the same key"
            raise DeadLetterRefused(letter.id, reason)
        return follower

    def _say(self, letter: DeadLetter, event_type: str, word: Mapping[str, Any]) -> None:
        """Write a person's word down and see whether it is the one that counts.

        Raises:
            DeadLetterResolved: another word was first, or the run went on meanwhile.
            DeadLetterRefused: the word does not fit the run any more.

        """
        engine = self._commander.engine
        mine = engine.append(
            event_type, word, run_id=letter.run_id, wait=True
        )  # before anything is done
        counting = _counting_word(engine.history(letter.run_id), letter.id)
        if counting is None or counting.seq != mine.seq:
            now = self.show(letter.id)
            if not now.may_be_retried:
                raise _resolved(now)
            raise DeadLetterRefused(letter.id, "its run has changed meanwhile; look at it again")

    def _finish(self, letter: DeadLetter, answer: Said | None) -> Acted:
        """Do what was asked before and is not done yet; a second call of the same command after a crash comes here."""
        try:
            events = self._commander.engine.history(letter.run_id)
        except HistoryArchived as error:
            raise _resolved(letter) from error
        word, state = _counting_word(events, letter.id), RunHistory.of(events).state
        if word is None or word.type != RETRIED or not self._is_unfinished(letter, state):
            raise _resolved(letter)
        if answer is not None and self._worded(letter, answer) != word.payload.get("answer"):
            raise _resolved(letter)
        return self._carry_out(letter)

    def _is_unfinished(self, letter: DeadLetter, state: RunState | None) -> bool:
        if letter.retried_as is not None:
            return self._commander.history(letter.retried_as).state is None
        return state is not None and state.released

    def _carry_out(self, letter: DeadLetter) -> Acted:
        if letter.retried_as is not None:
            return self._run_anew(letter, letter.retried_as)
        detail = self._commander.bootstrapper.decide(letter.run_id)
        return Acted(letter, letter.run_id, detail.action, detail.reason)

    def _run_anew(self, letter: DeadLetter, run_id: str) -> Acted:
        """Register the run that goes in a letter's place, then publish it; what cannot be sent now, recovery sends."""
        commander = self._commander
        created = commander.history(letter.run_id).created
        if not created:
            raise UnknownRun(letter.run_id)
        message = as_new_run(of_created(created), run_id)
        data = created_data(commander, message) | {"retry_of": letter.run_id}
        commander.engine.append("run.created", data, run_id=run_id, wait=True)  # before it is sent
        try:
            with fork_gate.passed():
                publish_again(commander, message)
        except Exception as error:  # noqa: BLE001  # whatever the broker raises, the run is in the log
            logger.error("Run %s was not sent, a later pass will: %s", run_id, error)
            return Acted(letter, run_id, "run anew", "its message could not be sent yet")
        commander.engine.append("task.sent", {"task": letter.task}, run_id=run_id, wait=False)
        return Acted(letter, run_id, "run anew", f"in place of run {letter.run_id}")


def who() -> str:
    """Return who asks, as the log remembers it: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user id without a name, as containers have them
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _counting_word(events: builtins.list[Event], entry: str) -> Event | None:
    """Return a person's word on a letter that counts, out of its run's events; there is one at most."""
    void = {event.seq for event, _ in RunHistory.of(events).voided}
    return next(
        (
            event
            for event in events
            if event.type in (RETRIED, DISCARDED)
            and event.payload.get("entry") == entry
            and event.seq not in void
        ),
        None,
    )


def _resolved(letter: DeadLetter) -> DeadLetterResolved:
    by = letter.resolved_by or "the run itself"
    return DeadLetterResolved(letter.id, letter.resolution or "resolved", by)
