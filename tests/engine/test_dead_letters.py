"""Dead letters say what has happened, no more; and a ledger that is built anew has the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_commander.engine.database import Database
from celery_commander.engine.dead_letters import DeadLetterQueue
from celery_commander.engine.engine import EventSourcingEngine
from celery_commander.engine.events import NewEvent
from celery_commander.engine.fold import RunState, State, Void
from celery_commander.engine.history import RunHistory
from celery_commander.engine.ledger import RunLedger
from celery_commander.engine.letters import Category, DeadLetter, keeps_events, letters_of
from tests.engine.ledgers import write
from tests.engine.story import (
    ABORTED,
    COMMITTED,
    COMPENSATED,
    CONFLICT,
    EXECUTING,
    IN_DOUBT,
    OWING,
    START,
    STEP_OPEN,
    STUCK,
    Line,
    after,
    existing,
    told,
)
from tests.engine.test_ledger_is_the_fold import MOVE, make_move

POISON = (*EXECUTING, ("run.aborted@5", {"reason": "poison"}))
DIED = (*EXECUTING, "run.fenced@6", "run.requeued@6")
LIMIT = {"type": "billiard.exceptions:SoftTimeLimitExceeded", "message": "", "args": []}
CANCELLED = ("run.aborted@5", {"reason": "cancelled"})
LOST = (*EXECUTING, ("run.aborted@5", {"reason": "its history is incomplete"}))
AGAIN = "operator.retried"
CLOSED = "operator.discarded"

# A story, and its letters in the order of the log: category, resolution.
LETTERS: dict[str, tuple[tuple[Line, ...], list[tuple[str, str | None]]]] = {
    "a run that goes well has none": (COMMITTED, []),
    "a body that raised is told its caller": (ABORTED, [("aborted", "told")]),
    "and stays so when it was undone": (COMPENSATED, [("aborted", "told")]),
    "a body that raised and left a step in doubt": (
        (*STEP_OPEN, ("run.aborted@5", {"in_doubt": [0]})),
        [("aborted", None)],
    ),
    "a soft limit": ((*EXECUTING, ("run.aborted@5", {"exception": LIMIT})), [("aborted", None)]),
    "a hard limit": (
        (*EXECUTING, ("run.cancelled", {"reason": "time limit"}), CANCELLED),
        [("aborted", None)],
    ),
    "a revoked run": ((*EXECUTING, "run.cancelled", CANCELLED), [("aborted", "told")]),
    "recovery's own decision": (LOST, [("aborted", None)]),
    "a poison run": (POISON, [("poison", None)]),
    "a step in doubt": (IN_DOUBT, [("in_doubt", None)]),
    "another code": (CONFLICT, [("version_conflict", None)]),
    "a person lets a run that raised go anew": ((*COMPENSATED, AGAIN), [("aborted", "retried")]),
    "an undo that failed for good": (STUCK, [("aborted", "stuck"), ("stuck", None)]),
    "a recovered run is born resolved": (DIED, [("recovered", "resumed")]),
    "a requeue without a death is none": (
        (*EXECUTING, ("run.requeued@5", {"death": False})),
        [],
    ),
    "a pause of one's own is none": ((*EXECUTING, "run.paused@5"), []),
    "a parked run that is let go on": ((*CONFLICT, AGAIN), [("version_conflict", "retried")]),
    "a second word comes too late": (
        (*STUCK, AGAIN, CLOSED),
        [("aborted", "stuck"), ("stuck", "retried")],
    ),
    "a parked run that recovery aborts": (
        (*IN_DOUBT, "run.aborted@5"),
        [("in_doubt", "aborted"), ("aborted", "told")],
    ),
    "a parked run that is claimed": (
        (*IN_DOUBT, "run.started@6"),
        [("in_doubt", "resumed")],
    ),
    "a stuck undo that began again": (
        (*STUCK, AGAIN, "run.aborted@5"),
        [("aborted", "stuck"), ("stuck", "retried"), ("aborted", "told")],
    ),
    "parked again": (
        (
            *CONFLICT,
            AGAIN,
            ("run.requeued@5", {"death": False}),
            "run.started@6",
            ("run.paused@6", {"kind": "version"}),
        ),
        [("version_conflict", "retried"), ("version_conflict", None)],
    ),
    "a discarded letter": ((*COMPENSATED, CLOSED), [("aborted", "discarded")]),
    "a void event makes none": ((*COMMITTED, "run.aborted@5"), []),
}


@pytest.fixture
def ledger_of(tmp_path: Path) -> Iterator[tuple[EventSourcingEngine, RunLedger, Database]]:
    database = Database(tmp_path / "ledger.sqlite")
    with EventSourcingEngine.open(tmp_path / "wal") as engine:
        yield engine, RunLedger(database, engine), database
    database.close()


@pytest.mark.parametrize("lines, expected", LETTERS.values(), ids=LETTERS)
def test_a_story_has_exactly_these_letters(lines, expected):
    made = letters_of(None, told(*lines))

    assert [(one.category, one.resolution) for one in made.values()] == expected
    assert all(one.id == str(seq) == str(one.seq) for seq, one in made.items())


@pytest.mark.parametrize("lines, expected", LETTERS.values(), ids=LETTERS)
def test_the_ledger_has_the_same_letters_wherever_its_batches_are_cut(ledger_of, lines, expected):
    engine, ledger, database = ledger_of
    write(engine, "r-1", lines)
    while ledger.catch_up(limit=1):
        pass

    found = DeadLetterQueue(database, now=engine_time).list(open_only=False)

    assert [(one.category, one.resolution) for one in reversed(found)] == expected


def engine_time() -> datetime:
    return datetime.now(UTC)


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(MOVE, min_size=1, max_size=60),
    cuts=st.lists(st.integers(1, 20), min_size=1, max_size=5),
)
def test_the_letters_of_a_ledger_are_those_of_the_log(moves, cuts):
    with TemporaryDirectory() as folder:
        check_letters(Path(folder), moves, cuts)


def check_letters(
    folder: Path, moves: list[tuple[int, int, int, str, str | None]], cuts: list[int]
) -> None:
    database = Database(folder / "ledger.sqlite")
    queue = DeadLetterQueue(database)
    with EventSourcingEngine.open(folder / "wal") as engine:
        ledger = RunLedger(database, engine)
        states: dict[str, RunState] = {}
        for number, move in enumerate(moves):
            make_move(engine, states, move)
            if number % cuts[number % len(cuts)] == 0:
                ledger.catch_up(limit=1 + number % 7)
        ledger.catch_up()
        caught_up = everything(queue)
        ledger.rebuild()

        assert caught_up == everything(queue) == letters_in(engine)
        retriable = {one.run_id: one.seq for one in caught_up if one.may_be_retried}
        assert retriable == {
            run_id: state.letter for run_id, state in states.items() if state.letter is not None
        }
        assert len([one for one in caught_up if one.is_open]) == queue.open_count
    database.close()


def everything(queue: DeadLetterQueue) -> list[DeadLetter]:
    return queue.list(open_only=False, limit=10_000)[::-1]


def letters_in(engine: EventSourcingEngine) -> list[DeadLetter]:
    runs: dict[str, list] = {}
    for event in engine.read_from(None):
        if event.run_id is not None:
            runs.setdefault(event.run_id, []).append(event)
    letters = [one for events in runs.values() for one in letters_of(None, events).values()]
    return sorted(letters, key=lambda one: one.seq)


# --- what a person's word does ---------------------------------------------------------------------


def test_a_run_has_one_open_letter_and_its_state_names_it():
    assert existing(*STUCK).letter == len(STUCK)
    assert existing(*COMMITTED).letter is None
    assert existing(*IN_DOUBT, "run.started@6").letter is None


@pytest.mark.parametrize("entry", ["1", "4 ", "004", "", None, 5])
def test_a_word_that_names_another_letter_is_void(entry):
    folded = after(existing(*CONFLICT), (AGAIN, {"entry": entry}))

    assert isinstance(folded, Void)


@pytest.mark.parametrize(
    "lines, answer",
    [
        (IN_DOUBT, None),
        (IN_DOUBT, {"step": 1, "happened": True}),
        (IN_DOUBT, {"step": 0}),
        (IN_DOUBT, {"step": 0, "happened": "no"}),
        (IN_DOUBT, {"abort": False}),
        (IN_DOUBT, [0]),
        (CONFLICT, {"step": 0, "happened": True}),
        (STUCK, {"abort": True}),
        (COMPENSATED, {"abort": True}),
    ],
)
def test_an_answer_that_does_not_fit_is_void(lines, answer):
    assert isinstance(after(existing(*lines), (AGAIN, {"answer": answer})), Void)


def test_a_parked_run_cannot_be_closed():
    for lines in (IN_DOUBT, CONFLICT):
        assert isinstance(after(existing(*lines), CLOSED), Void)


@pytest.mark.parametrize("lines", [IN_DOUBT, CONFLICT, STUCK])
def test_what_waits_is_released_until_it_goes_on(lines):
    run = existing(*lines, AGAIN)

    assert run.released
    assert run.state is existing(*lines).state
    assert not run.settled
    assert not existing(*lines, AGAIN, "run.aborted@5").released


def test_an_aborted_run_stays_what_it_is_when_another_goes_in_its_place():
    run = existing(*COMPENSATED, "run.delivered@5", AGAIN)

    assert (run.state, run.released, run.settled) == (State.COMPENSATED, False, True)


def test_to_have_a_parked_run_aborted_is_to_cancel_it():
    assert existing(*IN_DOUBT, (AGAIN, {"answer": {"abort": True}})).cancel_requested == "operator"


@pytest.mark.parametrize("happened", [True, False])
def test_a_history_keeps_what_was_said_of_a_step_until_it_is_started_again(happened):
    word = (AGAIN, {"answer": {"step": 0, "happened": happened, "result": 7}})
    entry = RunHistory.of(told(*IN_DOUBT, word)).entries[0]

    assert entry.told == ("happened" if happened else "not happened")
    assert entry.value == (7 if happened else None)
    assert entry.in_doubt

    again = (*IN_DOUBT, word, "run.requeued@5", "run.started@6", ("step.started@6", {"step": 0}))
    assert RunHistory.of(told(*again)).entries[0].told is None
    assert RunHistory.of(told(*again, "step.completed@6")).entries[0].told is None


def test_a_void_word_says_nothing_of_a_step():
    void = (AGAIN, {"entry": "1", "answer": {"step": 0, "happened": True, "result": 7}})

    assert RunHistory.of(told(*IN_DOUBT, void)).entries[0].told is None


# --- the queue -------------------------------------------------------------------------------------


@pytest.fixture
def queue(ledger_of) -> DeadLetterQueue:
    engine, ledger, database = ledger_of
    for run_id, lines in (
        ("r-told", ABORTED),
        ("r-aborted", LOST),
        ("r-undone", (*COMPENSATED, CLOSED)),
        ("r-doubt", IN_DOUBT),
        ("r-stuck", STUCK),
        ("r-died", DIED),
    ):
        write(engine, run_id, lines)
    ledger.catch_up()
    return DeadLetterQueue(database, days=30, now=lambda: engine_time() + late)


late = timedelta(0)


def run_ids(queue: DeadLetterQueue, *args, **options) -> list[str]:
    return [one.run_id for one in queue.list(*args, **options)]


def test_the_list_has_what_is_open_the_newest_first(queue):
    assert run_ids(queue) == ["r-stuck", "r-doubt", "r-aborted"]
    assert run_ids(queue, "in_doubt") == ["r-doubt"]
    assert run_ids(queue, Category.RECOVERED) == []
    assert run_ids(queue, Category.RECOVERED, open_only=False) == ["r-died"]
    assert run_ids(queue, limit=1, offset=1) == ["r-doubt"]
    with pytest.raises(ValueError, match="lost"):
        queue.list("lost")


def test_every_category_is_counted(queue):
    counts = queue.counts()

    assert set(counts) == set(Category)
    assert {kind.value: number for kind, number in counts.items() if number} == {
        "aborted": 1,
        "in_doubt": 1,
        "stuck": 1,
    }
    assert queue.open_count == 3


def test_a_letter_is_found_by_its_id_open_or_not(queue):
    for one in queue.list(open_only=False):
        assert queue.get(one.id) == one
    for nonsense in ("0", "99999", "", "-1", "x", "1" * 30, "²"):
        assert queue.get(nonsense) is None


def test_what_needs_a_person_never_lapses_and_the_rest_does(queue, monkeypatch):
    monkeypatch.setattr("tests.engine.test_dead_letters.late", timedelta(days=29))
    assert len(queue.list(open_only=False)) == 7
    assert queue.prune() == 0

    monkeypatch.setattr("tests.engine.test_dead_letters.late", timedelta(days=31))
    kept = ["r-stuck", "r-doubt"]
    lapsed = [one for one in ("1", "2") if queue.get(one)]
    assert (run_ids(queue, open_only=False), queue.open_count, lapsed) == (kept, 2, [])
    assert queue.prune(limit=1) == 1
    assert queue.prune() == 4
    assert queue.prune() == 0
    assert run_ids(queue, open_only=False) == kept


def test_counting_reads_an_index_of_the_open_ones_only(queue, ledger_of):
    _, _, database = ledger_of
    with database.read() as connection:
        plan = connection.exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT category, count(*) FROM dead_letters WHERE resolved_at IS NULL"
            " AND (created_at >= 5 OR category IN ('stuck')) GROUP BY category"
        ).all()

    assert [row.detail for row in plan] == ["SCAN dead_letters USING COVERING INDEX letters_open"]


def test_a_promised_run_is_named_until_the_ledger_has_it(ledger_of):
    engine, ledger, database = ledger_of
    write(engine, "r-1", (*COMPENSATED, (AGAIN, {"retry_as": "r-2"})))
    ledger.catch_up()
    queue = DeadLetterQueue(database)

    assert [(one.run_id, one.retried_as) for one in queue.unanswered()] == [("r-1", "r-2")]
    engine.append_many([NewEvent("run.created", told("run.created")[0].payload, "r-2")])
    ledger.catch_up()
    assert queue.unanswered() == []


@pytest.mark.parametrize(
    "lines, days, kept",
    [
        (COMMITTED, 0, False),
        (COMPENSATED, 29, True),
        (COMPENSATED, 31, False),
        ((*COMPENSATED, CLOSED), 0, False),
        (OWING, 31, False),
        (IN_DOUBT, 10_000, True),
        (STUCK, 10_000, True),
    ],
)
def test_a_runs_events_are_kept_for_its_open_letter(lines, days, kept):
    assert keeps_events(existing(*lines), START + timedelta(days=days, hours=1)) is kept


def test_a_reason_tells_the_kind_of_an_exception_and_not_its_message():
    raised = {"type": "shop:CardDeclined", "message": "card 4711 of ann", "args": []}
    (letter,) = letters_of(
        None, told(*STEP_OPEN, ("run.aborted@5", {"exception": raised}))
    ).values()

    assert letter.reason == "CardDeclined"
