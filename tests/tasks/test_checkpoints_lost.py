"""A content that is not what the log says is never handed out."""

from __future__ import annotations

import pytest

from celery_commander.engine import (
    State,
    StoreUnavailable,
)
from tests.tasks.flow import Flow, at, saves


@pytest.mark.parametrize(
    "damage, why",
    [
        ("DELETE FROM checkpoints", "its content is not in the store"),
        ("UPDATE checkpoints SET content = x'7b7d'", "its content is not the one"),
        (
            "UPDATE checkpoints SET content = cast(replace(content, 'A', 'X') AS BLOB)",
            "its content is not the one that was saved: its checksum differs",
        ),
    ],
)
def test_a_content_that_was_lost_or_edited_parks_and_is_named(
    flow: Flow, damage: str, why: str
) -> None:
    flow.start()
    flow.change(damage)
    flow.before = ("z",)

    assert flow.deliver() == "IGNORED"

    (saved,) = flow.events("checkpoint.saved")
    assert flow.bench.state() is State.PAUSED
    assert f"checkpoint {saved.payload['checkpoint']} is not believed: {why}" in flow.reason()
    assert flow.calls == at("a0 b1 c2")


def test_an_older_checkpoint_serves_when_the_newest_is_lost(flow: Flow) -> None:
    flow.save = saves("older", "newest")
    flow.start()
    older, newest = flow.events("checkpoint.saved")
    flow.change(f"DELETE FROM checkpoints WHERE id = '{newest.payload['checkpoint']}'")
    flow.before, flow.ends = ("z",), True

    flow.deliver()
    assert flow.deliver() == "SUCCESS"

    assert flow.got[-1] == "older"
    (requeued,) = flow.events("run.requeued")
    assert requeued.payload["checkpoint"]["id"] == older.payload["checkpoint"]


def test_a_content_that_no_event_names_is_nobodys(flow: Flow) -> None:
    flow.start()
    flow.change(
        "INSERT INTO checkpoints SELECT 'newer', run_id, token, cast('\"forged\"' AS BLOB)"
        " FROM checkpoints"
    )
    flow.before, flow.ends = ("z",), True

    flow.deliver()
    flow.deliver()

    assert flow.got[-1] == {"done": ["A", "B"]}


@pytest.mark.parametrize("older_is_there", [True, False])
def test_recovery_decides_when_the_content_is_gone_before_the_restart(
    flow: Flow, older_is_there: bool, caplog: pytest.LogCaptureFixture
) -> None:
    saved = ("older", "newest") if older_is_there else ("newest",)
    flow.save = saves(*saved)
    flow.start()
    flow.before, flow.ends = ("z",), True
    flow.deliver()
    flow.change(
        "UPDATE checkpoints SET content = cast('\"forged\"' AS BLOB)"
        " WHERE instr(content, cast('new' AS BLOB))"
    )

    assert flow.deliver() == "IGNORED"
    assert flow.got[-1] is None  # nothing was handed out
    result = flow.bench.app.commander.bootstrapper.bootstrap()

    (detail,) = result.details
    if older_is_there:
        assert (detail.action, result.recovered) == ("requeue", 1)
        assert flow.deliver() == "SUCCESS"
        assert flow.got[-1] == "older"
    else:
        assert (detail.action, result.aborted) == ("park", 0)
        assert "is lost or was changed" in detail.reason
        assert flow.bench.state() is State.PAUSED
    assert "is not believed: its content is not the one that was saved" in caplog.text


def test_a_store_that_cannot_be_read_is_no_reason_to_begin_anew(flow: Flow) -> None:
    flow.start()
    flow.bench.app.commander.close()
    for path in flow.database.parent.glob("checkpoints.sqlite*"):
        path.write_bytes(b"no database at all, " * 400)
    flow.before = ("z",)

    assert flow.deliver() == "IGNORED"
    assert flow.bench.state() is State.PAUSED
    assert "checkpoints.sqlite cannot be used now" in flow.reason()
    with pytest.raises(StoreUnavailable):
        flow.bench.app.commander.checkpoints.run_ids()


def test_recovery_waits_for_a_store_that_cannot_be_read_before_a_restart(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    flow.start()
    flow.before = ("z",)
    flow.deliver()
    flow.bench.app.commander.close()
    for path in flow.database.parent.glob("checkpoints.sqlite*"):
        path.write_bytes(b"no database at all, " * 400)

    assert flow.deliver() == "IGNORED"
    result = flow.bench.app.commander.bootstrapper.bootstrap()

    assert [detail.reason for detail in result.details] == ["its checkpoints cannot be read now"]
    assert flow.bench.state() is State.EXECUTING
    assert "may have to wait" in caplog.text
