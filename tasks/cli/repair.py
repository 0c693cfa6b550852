"""`commander repair`: let a log go on that a failed sync or a break has stopped, and have it say who answers for it."""

from __future__ import annotations

import dataclasses
import getpass
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from celery_commander.engine import (
    Anchor,
    AnchorDirectory,
    BreakRefused,
    Damage,
    EventSourcingEngine,
    IntegrityReport,
    LogCorrupt,
    LogPoisoned,
    LogTorn,
    is_break,
)

from .output import UNREADABLE, as_json, belongs_to_us, fail, find_commander, find_log, print_json
from .verify import exit_status

if TYPE_CHECKING:
    from ..install import Commander

NEEDED = 1

POISONED = """\
A sync of the log has failed, so nobody can say which of its last bytes are on disk, and nothing is
appended. Every event that was acknowledged is on disk. Find out first why the sync failed: a disk
that is dying is no place for the repair. Then

    commander repair --accept --by NAME

copies what verifies to files of which no sync has failed, keeps the rest in quarantine, and writes
into the log what was done and who answers for it. Workers that wait go on by themselves."""

TORN = """\
A crash left bytes behind the last event, and by the setting strict nobody cuts them by himself. They
were never acknowledged. Look at them if you like; then

    commander repair --accept --by NAME

keeps them in quarantine, cuts them off, and writes that into the log."""

BROKEN = """\
Nothing is appended, and recovery decides nothing. The best remedy is the right file, from a backup or
the archive: put it back and run this command again. If there is none, keep a copy of the state
directory, find out who or what changed the file, and

    commander repair --accept --by NAME

lets the log go on. Nothing is cut or rewritten: the damaged files stay as they are, and the log says
which events are lost, who answers for that, and when. Verification then says BREAK_ACCEPTED (15), and
runs of which an event may be lost wait for a person: see `commander dead`."""


@click.command(short_help="Let a log go on that a failed sync or a break has stopped.")
@click.option("--accept", is_flag=True, help="Do it; without this it is only said what is wrong.")
@click.option("--by", help="Who answers for it, for the log; default: this user at this host.")
@as_json
@click.pass_context
def repair(ctx: click.Context, accept: bool, by: str | None, as_json: bool) -> None:
    """Say what stops the log; with --accept let it go on, after a failed sync or behind a break.

    What a crash leaves is repaired without this command, at the next append. Where the damage is undone
    the mark of the break is taken away. A log that was rolled back behind an anchor, or behind what
    this boot has seen of it (31, 32), is not accepted here: restore it.

    Exit status: 0 the log takes events, its chain is good · 15 it does, behind an accepted break · 1 a
    repair is needed, or a lock is held · 40 the disk still refuses, or the log was moved · else what
    verify answers.
    """
    commander = find_commander(ctx)
    path = find_log(commander)
    if not belongs_to_us(path):
        fail(f"{path} belongs to user {path.stat().st_uid}: repair as that user", UNREADABLE)
    work = _Repair(commander, by or f"{getpass.getuser()}@{socket.gethostname()}", accept=accept)
    try:
        work.do()
    except ValueError as error:
        fail(str(error))
    if as_json:
        print_json({"path": path, **work.document()})
    else:
        work.say(path)
    ctx.exit(work.exit_code)


class _Repair:
    """Find out what stops a log, and do about it what may be done."""

    def __init__(self, commander: Commander, by: str, *, accept: bool) -> None:
        self._commander = commander
        self._engine: EventSourcingEngine = commander.engine
        self._by = by
        self._accept = accept
        self._anchors: list[Anchor] = []
        self.needed: str | None = None
        self.done: Any = None
        self.breaks: tuple[Damage, ...] = ()
        self.explained = ""
        self.report: IntegrityReport | None = None

    def do(self) -> None:
        """Look, and act if that was asked for.

        Raises:
            ValueError: who answers for it is named in too many characters.
            LogError: something else is wrong, or the disk refuses.
        """
        place = self._commander.engine_settings.anchor_directory
        if place is not None:
            self._anchors = AnchorDirectory(place).read(self._engine.log_id)
        if not self._without_poison():
            return
        self.report = self._verified()
        if is_break(self.report):
            self._break()
        elif self._engine.breaks.lift(self.report):
            self.done = {"mark": "taken away"}
        if self.needed is None:
            self._engine.settle()

    @property
    def exit_code(self) -> int:
        if self.report is None:
            return NEEDED
        code = exit_status(self.report, require_anchor=False)
        return NEEDED if self.needed is not None and self.breaks else code

    def document(self) -> dict[str, Any]:
        """Return what is told as JSON."""
        return {
            "needed": self.needed,
            "repaired": self.done,
            "breaks": [damage.format() for damage in self.breaks],
            "verified": None if self.report is None else self.report.status.name,
        }

    def say(self, path: Path) -> None:
        """Print it."""
        if self.needed is not None:
            click.echo(f"{path}: {self.needed}")
            for damage in self.breaks:
                click.echo(f"  {told(damage)}")
            click.echo(f"\n{self.explained}" if self.explained else "", nl=bool(self.explained))
        elif self.report is not None:
            click.echo(
                f"{path} takes events; {self.report.status.name}: {self.report.events} events"
            )
            for each in self.report.accepted:
                click.echo(f"  {each.told}")

    def _without_poison(self) -> bool:
        """Tell whether neither a failed sync nor a torn end stops the log, any more."""
        error = what_stops(self._engine)
        if error is not None and self._accept:
            done = self._engine.repair(self._by)
            self.done = {"torn": error.reason} if done is None else dataclasses.asdict(done)
            error = what_stops(self._engine)
        if error is not None:
            self.needed = error.reason
            self.explained = TORN if isinstance(error, LogTorn) else POISONED
        return error is None

    def _break(self) -> None:
        """Say what is broken, or accept it."""
        assert self.report is not None
        try:
            self.breaks = self._engine.breaks.survey(self._anchors)
        except BreakRefused as error:
            self.needed = str(error)
            return
        if not self._accept:
            self.needed, self.explained = f"{self.report.status.name}, it is broken", BROKEN
            return
        accepted = self._engine.breaks.accept(self._by, self._anchors)
        self.done = {"seq": accepted.seq, "accepted": len(accepted.damages)}
        self._commander.ledger.rebuild()  # it may know what the log has lost
        self.report = self._verified()
        self._engine.breaks.lift(self.report)
        if is_break(self.report):
            self.needed = f"{self.report.status.name}, {self.report.reason}"

    def _verified(self) -> IntegrityReport:
        return self._engine.verify_integrity(anchors=self._anchors)


def what_stops(engine: EventSourcingEngine) -> LogPoisoned | LogTorn | None:
    """Return the failed sync or the torn end for which a log takes no events; None when it is neither.

    Raises:
        LogUnavailable: it is something else, and no break.
    """
    try:
        engine.settle()
    except (LogPoisoned, LogTorn) as error:
        return error
    except LogCorrupt:
        return None  # verification tells where
    return None


def told(damage: Damage) -> str:
    """Return one break in a line or two: what is lost, where, whose it may be."""
    lost = damage.lost
    what = "no event is lost"
    if lost is not None and lost.events:
        what = f"events {lost.first_seq} to {lost.last_seq}"
    lines = f"{what}, {damage.name} byte {damage.offset}: {damage.reason}"
    if damage.runs:
        lines += f"\n    the damaged lines name run {', '.join(damage.runs)}; others may be touched"
    return lines
