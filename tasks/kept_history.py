"""Keep a run's history outside its log, as a test suite does, and replay it from there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from celery import Celery

from celery_commander.engine import Event, Position, RunHistory

from .errors import HistoryUnreadable
from .replaying import Replayed, rehearse

if TYPE_CHECKING:
    from .install import Commander

FORMAT: Final = "commander-history/1"


def exported(commander: Commander, run_id: str) -> dict[str, Any]:
    """Return a run's history as a document that stands for itself: plain JSON, with arguments and values.

    Raises:
        HistoryArchived, LogError: it is not there, or cannot be read.

    """
    events = commander.engine.history(run_id)
    return {
        "format": FORMAT,
        "run_id": run_id,
        "log_id": commander.engine.log_id,
        "exported_at": datetime.now(UTC).isoformat(),
        "events": [
            {
                "seq": event.seq,
                "id": event.id,
                "type": event.type,
                "timestamp": event.timestamp.isoformat(),
                "n": event.n,
                "token": event.token,
                "hash": event.hash,
                "data": event.payload,
            }
            for event in events
        ],
    }


def imported(document: Mapping[str, Any]) -> RunHistory:
    """Return the history that a document holds.

    Raises:
        HistoryUnreadable: it is no such document.

    """
    run_id = str(document.get("run_id")) if isinstance(document, Mapping) else "?"
    try:
        if document["format"] != FORMAT:
            raise HistoryUnreadable(run_id, f"its format is {document['format']!r}, not {FORMAT!r}")
        history = RunHistory.of([_event(run_id, each) for each in document["events"]])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HistoryUnreadable(run_id, f"it is no exported history ({error!r})") from error
    if history.state is None:
        raise HistoryUnreadable(run_id, "it holds no run")
    return history


def _event(run_id: str, each: Mapping[str, Any]) -> Event:
    return Event(
        Position(each["seq"], 0, 0),
        each["seq"],
        each["id"],
        each["type"],
        datetime.fromisoformat(each["timestamp"]),
        run_id,
        dict(each["data"]),
        each["hash"],
        each["n"],
        each["token"],
    )


def replay_history(app: Celery, history: str | os.PathLike[str] | Mapping[str, Any]) -> Replayed:
    """Run the body of an exported history's task over it, as a test of the code: a file, or the document itself.

    No log, broker or backend is needed; the app must have a Commander and know the task. Arguments of steps are not
    compared, only kinds, names and places: their digests can be made with the log's own secret alone.

    Raises:
        NonDeterministic: the code is another than what was recorded; it names the place and both sides.
        HistoryUnreadable: the document cannot be read, or not be replayed here.
        UnknownTask: the app does not know the task.

    """
    commander: Commander = app.commander
    found = rehearse(commander, imported(read_document(history)), has_secret=False)
    found.check()
    return found


def read_document(history: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an exported history, read from its file if it is one.

    Raises:
        HistoryUnreadable: there is no such file, or it is no JSON.

    """
    if isinstance(history, Mapping):
        return history
    try:
        document: Mapping[str, Any] = json.loads(Path(history).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise HistoryUnreadable(str(history), str(error)) from error
    return document
