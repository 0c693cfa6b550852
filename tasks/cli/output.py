"""What all commands share: the app's commander, one way to print, one way to fail."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from celery_commander.engine import (
    CommanderError,
    CompactionRefused,
    ForeignLog,
    LogCorrupt,
    LogUnavailable,
    SnapshotMismatch,
)

if TYPE_CHECKING:
    from ..install import Commander

# LOG_FORMAT section 5: what verify answers is also how the other commands fail.
CORRUPT = 30
FOREIGN = 34
SNAPSHOT_MISMATCH = 38
UNREADABLE = 40
FAILED = 1

_EXIT_CODES = (
    (LogCorrupt, CORRUPT),
    (ForeignLog, FOREIGN),
    (SnapshotMismatch, SNAPSHOT_MISMATCH),
    (LogUnavailable, UNREADABLE),
)

Function = TypeVar("Function", bound=Callable[..., Any])


def fail(message: str, exit_code: int = FAILED) -> NoReturn:
    """Say one line on stderr and end the command with `exit_code`."""
    click.echo(f"Error: {message}", err=True)
    raise click.exceptions.Exit(exit_code)


def exit_code_of(error: CommanderError) -> int:
    """Return the exit code that verify would give to what went wrong."""
    if isinstance(error, CompactionRefused):
        return error.exit_code
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            return code
    return FAILED


def as_json(command: Function) -> Function:
    """Give a command the option --json."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document.")(command)


def find_commander(ctx: click.Context) -> Commander:
    """Return the commander of the app that `celery -A` has loaded.

    Raises:
        click.UsageError: there is no app, or it has no commander.
    """
    app = getattr(ctx.obj, "app", None)
    if app is None:
        raise click.UsageError(
            f"{ctx.info_name} needs an app: celery -A APP commander {ctx.info_name}"
        )
    app.loader.import_default_modules()
    app.finalize()
    commander: Commander | None = getattr(app, "commander", None)
    if commander is None:
        raise click.UsageError(
            f"app {app.main!r} has no commander: add Commander(app) where it is made"
        )
    return commander


def find_log(commander: Commander) -> Path:
    """Return the path of the app's log; where there is none the command ends, and creates none."""
    path = commander.engine_settings.event_sourcing_wal
    try:
        path.stat()
    except PermissionError as error:
        fail(no_right(error), UNREADABLE)
    except OSError:
        pass  # missing, or something else stands in its directory's place
    else:
        return path
    fail(
        f"{path} does not exist: no worker of this app has run here. Set commander_state_directory"
        " or COMMANDER_STATE_DIRECTORY to its state, or start in its working directory",
        UNREADABLE,
    )


def belongs_to_us(path: Path) -> bool:
    """Tell whether the log is this user's; only then may a command write beside it."""
    return path.stat().st_uid == os.geteuid()


def no_right(error: PermissionError) -> str:
    """Return the line for a path that this user may not look at."""
    return (
        f"{error.filename} cannot be read by user {os.geteuid()}: {error.strerror}."
        " Ask as the user whose workers write it"
    )


def print_json(document: Any) -> None:
    """Print one JSON document: moments as ISO 8601, enums as their values."""
    click.echo(json.dumps(document, default=_plain, ensure_ascii=False, indent=2))


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows in columns as wide as they have to be."""
    table = [list(heads), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
    for row in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


def utc(moment: datetime) -> str:
    """Return a moment as the tables show it; their heads say that it is UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return utc(value)
    return str(value.value if isinstance(value, Enum) else value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    return str(value)
