"""Which events count: every type in every state, every token, and whatever a log may hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_commander.engine.fold import DURABLE_TYPES, RunState, State, Void, fold
from tests.engine.story import (
    ABORTED,
    COMMITTED,
    COMPENSATED,
    CONFLICT,
    EXECUTING,
    IN_DOUBT,
    OWING,
    PAUSED,
    PENDING,
    REQUEUED,
    START,
    STEP_OPEN,
    STUCK,
    VERIFYING,
    Line,
    after,
    event,
    existing,
    next_event,
    state_of,
)

BY_A_PERSON = {"operator.retried": None, "operator.discarded": None}
OUTSIDERS = {"run.created", "run.cancelled", "run.degraded", *BY_A_PERSON}
ROLLS_BACK = {"run.aborted": State.ABORTED, "run.fenced": None}
WORKS = {
    "step.started": None,
    "input.recorded": None,
    "checkpoint.saved": None,
    "run.paused": State.PAUSED,
    "run.requeued": State.PENDING,
    "run.cancelled": None,
    **ROLLS_BACK,
}

# What is valid where, and the state it leads to (None: the same one). Everything else is void.
SITUATIONS: dict[str, tuple[tuple[Line, ...], dict[str, State | None]]] = {
    "before anything": ((), {"run.created": State.PENDING, "run.degraded": State.COMMITTED}),
    "PENDING, nobody ever looked at it": (
        PENDING,
        {
            "run.started": State.EXECUTING,
            "run.fenced": None,
            "run.cancelled": State.COMPENSATED,
            "run.degraded": State.COMMITTED,
        },
    ),
    "PENDING, fenced": (
        (*PENDING, "run.fenced@5"),
        {
            "run.started": State.EXECUTING,
            "run.requeued": State.PENDING,
            "run.paused": State.PAUSED,
            "run.cancelled": State.COMPENSATED,
            "run.degraded": State.COMMITTED,
            **ROLLS_BACK,
        },
    ),
    "PENDING again": (
        REQUEUED,
        {
            "run.started": State.EXECUTING,
            "run.requeued": State.PENDING,
            "run.paused": State.PAUSED,
            "run.cancelled": None,
            "run.degraded": State.COMMITTED,
            **ROLLS_BACK,
        },
    ),
    "EXECUTING": (
        EXECUTING,
        {**WORKS, "run.verifying": State.VERIFYING, "run.committed": State.COMMITTED},
    ),
    "EXECUTING, a step open": (
        STEP_OPEN,
        {
            **{type: after for type, after in WORKS.items() if type != "checkpoint.saved"},
            "step.completed": None,
            "step.failed": None,
            "step.try_failed": None,
            "run.verifying": State.VERIFYING,
        },
    ),
    "VERIFYING": (VERIFYING, {**WORKS, "run.committed": State.COMMITTED}),
    "PAUSED": (
        PAUSED,
        {
            "run.started": State.EXECUTING,
            "run.requeued": State.PENDING,
            "run.paused": State.PAUSED,
            "run.cancelled": None,
            "run.degraded": State.COMMITTED,
            **ROLLS_BACK,
        },
    ),
    "PAUSED for a doubt": (
        IN_DOUBT,
        {
            "run.started": State.EXECUTING,
            "run.requeued": State.PENDING,
            "run.paused": State.PAUSED,
            "run.cancelled": None,
            "run.degraded": State.COMMITTED,
            "operator.retried": None,
            **ROLLS_BACK,
        },
    ),
    "PAUSED for a version": (
        CONFLICT,
        {
            "run.started": State.EXECUTING,
            "run.requeued": State.PENDING,
            "run.paused": State.PAUSED,
            "run.cancelled": None,
            "run.degraded": State.COMMITTED,
            "operator.retried": None,
            **ROLLS_BACK,
        },
    ),
    "COMMITTED": (COMMITTED, {"run.delivered": None, "run.fenced": None}),
    "ABORTED": (
        ABORTED,
        {
            "run.compensated": State.COMPENSATED,
            "run.stuck": State.STUCK,
            "run.delivered": None,
            "run.cancelled": None,
            "run.fenced": None,
            **BY_A_PERSON,
        },
    ),
    "ABORTED, an undo owed": (
        OWING,
        {
            "compensation.started": None,
            "compensation.completed": None,
            "compensation.failed": None,
            "run.stuck": State.STUCK,
            "run.delivered": None,
            "run.cancelled": None,
            "run.fenced": None,
            **BY_A_PERSON,
        },
    ),
    "STUCK": (
        STUCK,
        {
            "run.aborted": State.ABORTED,
            "run.delivered": None,
            "run.cancelled": None,
            "run.fenced": None,
            **BY_A_PERSON,
        },
    ),
    "COMPENSATED": (
        COMPENSATED,
        {"run.delivered": None, "run.fenced": None, **BY_A_PERSON},
    ),
    "COMPENSATED, its letter discarded": (
        (*COMPENSATED, "operator.discarded"),
        {"run.delivered": None, "run.fenced": None},
    ),
}

CASES = [
    pytest.param(lines, type, valid, id=f"{situation}: {type}")
    for situation, (lines, valid) in SITUATIONS.items()
    for type in sorted(DURABLE_TYPES)
]
CLAIMS = {"run.started", "run.fenced"}
OWNED = [
    pytest.param(lines, type, id=f"{situation}: {type}")
    for situation, (lines, valid) in SITUATIONS.items()
    for type in valid
    if type not in OUTSIDERS and lines
]
WRONG_TOKENS = [
    pytest.param(lines, type, wrong, id=f"{situation}: {type}{wrong}")
    for situation, (lines, valid) in SITUATIONS.items()
    for type in valid
    for wrong in ("", "@0", "@4", "@6", "@7")
    if type not in OUTSIDERS and lines and not (type in CLAIMS and wrong in ("@4", "@6", "@7"))
]


def right_token(type: str) -> str:
    if type in OUTSIDERS:
        return ""
    return "@6" if type in CLAIMS else "@5"


# --- every type in every situation ----------------------------------------------------------------


@pytest.mark.parametrize("lines, type, valid", CASES)
def test_what_fits_where_is_exactly_this_table(lines, type, valid):
    state = state_of(*lines)

    folded = after(state, type + right_token(type))

    if type in valid:
        assert isinstance(folded, RunState)
        assert folded.state is (valid[type] or (state.state if state else None))
        assert folded.last_seq == 50
        moved_at = next_event(state, type).timestamp
        assert folded.changed_at == (
            state.changed_at if state and type == "run.fenced" else moved_at
        )
    else:
        assert isinstance(folded, Void)
        assert folded.reason
        if type != "step.started":
            assert folded.state is state


def test_the_table_names_every_state_and_every_durable_type():
    assert {existing(*lines).state for lines, _ in SITUATIONS.values() if lines} == set(State)
    assert {type for _, valid in SITUATIONS.values() for type in valid} == DURABLE_TYPES


@pytest.mark.parametrize("type", sorted(DURABLE_TYPES - OUTSIDERS))
def test_no_token_is_zero(type):
    assert isinstance(after(existing(*PENDING), type + "@0"), Void)


@pytest.mark.parametrize("lines, type, wrong", WRONG_TOKENS)
def test_a_token_that_does_not_hold_the_run_is_void(lines, type, wrong):
    folded = after(existing(*lines), type + wrong)

    assert isinstance(folded, Void)
    assert "does not hold the run" in folded.reason


@pytest.mark.parametrize("lines", [COMMITTED, COMPENSATED])
def test_nothing_but_delivery_and_fences_touches_a_finished_run(lines):
    run = existing(*lines)
    for type in DURABLE_TYPES - {"run.delivered", "run.fenced", *BY_A_PERSON}:
        assert isinstance(after(run, type + right_token(type)), Void), type


def test_an_unknown_type_passes_by():
    run = existing(*EXECUTING)

    assert fold(run, event("task.succeeded", {"any": 1})) is run
    assert fold(run, event("run.teleported", {}, token=99)) is run
    assert fold(None, event("task.sent", {})) is None


def test_an_event_of_no_run_passes_by():
    assert fold(None, event("run.created", {"task": 1}, run_id=None)) is None


def test_an_event_of_another_run_is_a_bug_of_the_caller():
    with pytest.raises(AssertionError, match="another run"):
        fold(existing(*PENDING), event("run.cancelled", {}, run_id="r-2"))


# --- whatever a log may hold ----------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = [
    "task",
    "namespace",
    "message",
    "due",
    "key",
    "reason",
    "sent",
    "step",
    "undo",
    "owed",
    "death",
    "kind",
    "generation",
    "outcome",
    "entry",
    "by",
    "answer",
]


@given(
    lines=st.sampled_from([lines for lines, _ in SITUATIONS.values()]),
    type=st.sampled_from(sorted(DURABLE_TYPES)),
    data=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6),
    token=st.none() | st.integers() | st.sampled_from([0, 1, 5, 6]),
    n=st.none() | st.integers(),
)
def test_no_event_whatsoever_raises(lines, type, data, token, n):
    state = state_of(*lines)

    folded = fold(state, event(type, data, seq=50, token=token, n=n, at=START))

    assert isinstance(folded, RunState | Void)


@pytest.mark.parametrize("lines, type", OWNED)
def test_an_event_without_its_data_is_void_or_needs_none(lines, type):
    state = existing(*lines)
    token = state.token + (type in CLAIMS)

    folded = fold(state, event(type, {}, seq=50, token=token))

    needs_none = {"run.started", "run.fenced", "run.verifying", "run.committed"}
    assert isinstance(folded, RunState if type in needs_none else Void)
