"""`dead`: what a person sees of dead letters and how he answers them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from celery_commander.engine import NewEvent, encode_exception
from tests.tasks.cli_kit import DONE, HALF, OPEN, answer, invoke, life, make_app, snapshot


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    app = make_app(tmp_path / "state")
    app.conf.task_default_queue = tmp_path.name
    yield app
    app.commander.engine.close()
    app.close()


@pytest.fixture
def ids(app: Celery) -> dict[str, str]:
    """Write an aborted run, a parked one and a stuck one; return the ids of their letters."""
    raised = {"exception": encode_exception(LookupError("secret")), "reason": "exception"}
    limited = {**raised, "exception": encode_exception(SoftTimeLimitExceeded("secret"))}
    doubt = {"kind": "doubt", "due": None, "reason": "step 0 is in doubt"}
    news = [
        *life(DONE)[:2],
        owned(DONE, 2, "run.aborted", {**limited, "generation": 1}),
        *life(OPEN)[:3],
        owned(OPEN, 3, "run.paused", doubt),
        *life(HALF)[:4],
        owned(HALF, 4, "run.aborted", {**raised, "generation": 1}),
        owned(HALF, 5, "run.stuck", {"step": 0, "exception": None, "generation": 1}),
    ]
    written = app.commander.engine.append_many(news)
    return {str(event.run_id): str(event.seq) for event in written if event.type in MAKERS}


MAKERS = ("run.aborted", "run.paused", "run.stuck")


def owned(run_id: str, n: int, event_type: str, data: Mapping[str, object]) -> NewEvent:
    return NewEvent(event_type, data, run_id=run_id, token=1, n=n)


def test_the_list_shows_what_is_open_and_counts_it(app, ids):
    result = invoke(app, "dead")

    lines = result.output.splitlines()
    assert result.exit_code == 0
    assert [line.split()[0] for line in lines[1:4]] == [ids[HALF], ids[OPEN], ids[DONE]]
    assert lines[-1] == "open: 1 aborted, 1 in_doubt, 1 stuck"
    assert "secret" not in result.output
    assert "SoftTimeLimitExceeded" in result.output


def test_the_list_may_be_narrowed_and_widened(app, ids):
    def letters(*options: str) -> list[str]:
        return [one["run_id"] for one in answer(app, "dead", *options)["letters"]]

    assert letters("--category", "stuck") == [HALF]
    assert letters("--limit", "1") == [HALF]
    invoke(app, "dead", "discard", ids[HALF], "--reason", "by hand")
    assert letters() == [OPEN, DONE]
    assert letters("--all").count(HALF) == 2  # its abort, and its undo that was stuck
    assert answer(app, "dead")["open"]["stuck"] == 0


def test_a_body_that_raised_is_listed_as_told_and_may_be_run_anew(app):
    raised = {"exception": encode_exception(LookupError("secret")), "reason": "exception"}
    aborted = owned(DONE, 2, "run.aborted", {**raised, "generation": 1})
    (event,) = app.commander.engine.append_many([*life(DONE)[:2], aborted])[2:]

    assert invoke(app, "dead").output == "nothing is open\n"
    assert "told" in invoke(app, "dead", "--all").output
    told = answer(app, "dead", "show", str(event.seq))
    assert (told["resolution"], told["commands"]) == ("told", [f"dead retry {event.seq}"])
    assert invoke(app, "dead", "discard", str(event.seq), "--reason", "x").exit_code == 1
    assert answer(app, "dead", "retry", str(event.seq))["action"] == "run anew"
    assert "retried" in invoke(app, "dead", "--all").output


def test_a_store_without_letters_says_so(app):
    app.commander.engine.append("note", {})

    assert invoke(app, "dead").output == "nothing is open\n"


def test_a_letter_tells_what_is_asked_and_how_to_answer(app, ids):
    output = invoke(app, "dead", "show", ids[OPEN]).output

    assert f"Did step 0 (charge) happen? Its key is {OPEN}:0." in output
    for option in ("--did-happen", "--did-not-happen", "--abort"):
        assert f"commander dead retry {ids[OPEN]} {option}" in output
    told = answer(app, "dead", "show", ids[OPEN])
    assert (told["category"], told["asks"]["step"], len(told["commands"])) == ("in_doubt", 0, 3)
    told = answer(app, "dead", "show", ids[HALF])
    assert (told["asks"], told["commands"][0]) == (None, f"dead retry {ids[HALF]}")


def test_a_discard_is_told_and_shown_with_who_and_why(app, ids):
    output = invoke(app, "dead", "discard", ids[DONE], "--reason", "by phone").output

    assert f"{ids[DONE]} (aborted) of run {DONE}: discarded" in output
    told = answer(app, "dead", "show", ids[DONE])
    assert (told["resolution"], told["commands"]) == ("discarded", [])
    assert "@" in told["resolved_by"]


def test_a_retry_of_an_aborted_run_tells_the_new_runs_id(app, ids):
    told = answer(app, "dead", "retry", ids[DONE])

    assert told["action"] == "run anew"
    assert told["run_id"] == told["letter"]["retried_as"] != DONE
    assert f"as {told['run_id']}" in invoke(app, "dead", "show", ids[DONE]).output


def test_an_answer_is_recorded_as_it_was_given(app, ids):
    told = answer(app, "dead", "retry", ids[OPEN], "--did-happen", '{"receipt": [4, null]}')

    history = app.commander.history(OPEN)
    assert told["action"] == "requeue"
    assert history.entries[0].status == "completed"
    assert history.entries[0].value == {"receipt": [4, None]}


def test_a_stuck_letter_names_the_undo_and_why_it_failed(app):
    raised = {"exception": encode_exception(LookupError("x")), "reason": "exception"}
    away = encode_exception(ConnectionError("bank.example, account 4711"))
    tries = [
        owned(HALF, 5 + n, kind, {"step": 0, "generation": 1, "attempt": 1 + n // 2, **more})
        for n, (kind, more) in enumerate(
            [("compensation.started", {}), ("compensation.failed", {"exception": away})] * 2
        )
    ]
    gave_up = {"step": 0, "name": "charge", "undo": "cli.refund", "exception": away}
    news = [
        *life(HALF)[:4],
        owned(HALF, 4, "run.aborted", {**raised, "generation": 1}),
        *tries,
        owned(HALF, 9, "run.stuck", {**gave_up, "generation": 1, "attempt": 2}),
    ]
    letter = str(app.commander.engine.append_many(news)[-1].seq)

    (listed,) = answer(app, "dead")["letters"]
    undo = app.commander.history(HALF).entries[0].undo
    why = "the undo cli.refund of step 0 (charge) failed for good: ConnectionError"
    assert (listed["id"], listed["reason"]) == (letter, why)
    told = answer(app, "dead", "show", letter)["stuck"]
    assert told == {
        "step": 0,
        "name": "charge",
        "undo": undo,
        "attempts": 2,
        "error": "ConnectionError",
    }
    assert answer(app, "dead", "show", letter, "--values")["stuck"]["message"] == str(
        away["message"]
    )
    output = invoke(app, "dead", "show", letter).output
    assert f"Step 0 (charge) is not undone: {undo} was tried 2 times" in output
    assert "4711" not in output
    assert "4711" in invoke(app, "dead", "show", letter, "--values").output
    assert answer(app, "dead", "show", letter)["commands"][0] == f"dead retry {letter}"


@pytest.mark.parametrize(
    "options, said",
    [
        (["--did-happen", "receipt"], "is no JSON"),
        (["--did-happen", "1", "--abort"], "exclude each other"),
        (["--did-not-happen", "--abort"], "exclude each other"),
    ],
)
def test_an_answer_that_is_none_is_refused_before_anything_is_said(app, ids, options, said):
    before = app.commander.engine.head()

    result = invoke(app, "dead", "retry", ids[OPEN], *options)

    assert result.exit_code == 2
    assert said in result.stderr
    assert app.commander.engine.head() == before


@pytest.mark.parametrize(
    "command, said",
    [
        ("dead show 999", "no dead letter 999"),
        ("dead retry 999", "no dead letter 999"),
        ("dead retry OPEN", "--did-not-happen or --abort"),
        ("dead discard OPEN --reason x", "parked, not over"),
        ("dead retry DONE --abort", "without an answer"),
        ("dead retry HALF --did-not-happen", "without an answer"),
    ],
)
def test_what_cannot_be_done_is_one_line_of_error(app, ids, command, said):
    names = {"OPEN": ids[OPEN], "DONE": ids[DONE], "HALF": ids[HALF]}
    result = invoke(app, *[names.get(word, word) for word in command.split()])

    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_letter_that_somebody_answered_says_who(app, ids):
    invoke(app, "dead", "discard", ids[DONE], "--reason", "by phone")

    result = invoke(app, "dead", "retry", ids[DONE])

    assert result.exit_code == 1
    assert "resolved already: discarded, by " in result.stderr


@pytest.mark.parametrize(
    "command", ["dead", "dead show 1", "dead retry 1", "dead discard 1 --reason x"]
)
def test_a_command_without_an_app_or_a_log_creates_none(command, tmp_path):
    result = invoke(None, *command.split())
    assert result.exit_code == 2
    assert "celery -A APP commander dead" in result.stderr

    result = invoke(make_app(tmp_path / "state"), *command.split())
    assert result.exit_code == 40
    assert list(tmp_path.iterdir()) == []


def test_another_users_store_is_left_alone(app, ids, monkeypatch):
    app.commander.close()
    directory = Path(app.commander.engine_settings.state_directory)
    before = snapshot(directory)
    monkeypatch.setattr("os.geteuid", lambda: 12345)

    result = invoke(app, "dead")

    assert result.exit_code == 40
    assert "belongs to user" in result.stderr
    assert snapshot(directory) == before
