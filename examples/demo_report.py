"""The demo's end: what the witness found, what the log says, and whether both hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from celery_commander.engine import Event

from .demo_stage import ENDS, Stage
from .demo_witness import by_kind, judge, went_on_at
from .demo_worker import ROOT, environment

SHOWN = 5
CORRUPT = 30


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the verdict."""

    name: str
    holds: bool
    says: str


class Report:
    """Everything that the demo claims, asked once, after the last worker has stopped."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._engine = stage.commander.engine
        self._events = list(self._engine.read_from(None))
        self._effects = stage.shop.town.effects()
        self._runs = self._engine.replay()
        run_of = stage.run_of
        self._ends = {o: self._runs[r].state.value for o, r in run_of.items() if r in self._runs}
        self._tampered = tamper(self._engine.path, stage.home / "tampered.wal")
        self.checks = list(self._check())

    @property
    def holds(self) -> bool:
        """Return whether every check holds."""
        return all(check.holds for check in self.checks)

    def table(self) -> str:
        """Return everything to be shown, as lines."""
        ends = Counter(self._ends.values())
        rows = [
            ("runs by end state", _counts(ends)),
            ("effects by kind", _counts(by_kind(self._effects))),
            *self._restarts(),
            ("log events", f"{len(self._events)} ({_counts(_groups(self._events))})"),
        ]
        lines = ["", *_aligned(rows), ""]
        lines += [f"  {'ok  ' if c.holds else 'FAIL'} {c.name}: {c.says}" for c in self.checks]
        lines += [
            "",
            f"  $ celery-commander verify {self._tampered.path.name}   (one byte changed)",
        ]
        lines += [f"  {line}" for line in self._tampered.output.splitlines()]
        return "\n".join(lines)

    def _check(self) -> Iterator[Check]:
        stage = self._stage
        for finding in judge(self._effects, self._ends):
            yield Check(finding.name, finding.holds, _orders(finding.orders))
        for name, orders in (
            ("orders not finished and delivered", self._unfinished()),
            ("orders with a result that denies their run", self._denied_results()),
        ):
            yield Check(name, not orders, _orders(orders))
        yield self._all_killed()
        expected = len(stage.run_of)
        yield Check("runs in the log", len(self._runs) == expected, f"{len(self._runs)}")
        stage.commander.ledger.catch_up()
        differing = [r for r, state in self._runs.items() if stage.commander.ledger.get(r) != state]
        yield Check("runs whose ledger row denies the log", not differing, _orders(differing))
        report = self._engine.verify_integrity()
        says = f"{report.status.name}, {report.events} events, head {report.head[:16]}"
        yield Check("verify", report.exit_code in (0, 10) and bool(report.events), says)
        tampered = self._tampered
        yield Check("verify names a changed byte", tampered.named, tampered.says)

    def _all_killed(self) -> Check:
        struck = self._stage.strikes
        good = [s for s in struck if s.status == -9 and s.unfinished > 0]
        says = (
            f"{len(good)} of {len(struck)}, with {_list(s.unfinished for s in struck)} orders open"
        )
        return Check("workers killed by SIGKILL at work", len(good) == len(struck), says)

    def _unfinished(self) -> list[str]:
        done = {r for r, run in self._runs.items() if run.state.value in ENDS and run.delivered}
        return [order for order, run_id in self._stage.run_of.items() if run_id not in done]

    def _denied_results(self) -> list[str]:
        """Ask Celery's own result backend, which is what a caller's `.get()` reads."""
        expected = {"COMMITTED": "SUCCESS", "COMPENSATED": "FAILURE"}
        stage = self._stage
        return [
            order
            for order, run_id in stage.run_of.items()
            if stage.shop.app.AsyncResult(run_id).state != expected.get(self._ends.get(order, ""))
        ]

    def _restarts(self) -> Iterator[tuple[str, str]]:
        """Say for each kill what recovery decided until the next one, and how soon work went on."""
        strikes = self._stage.strikes
        for strike, until in zip(strikes, [*(s.seq for s in strikes[1:]), None], strict=True):
            later = [
                e for e in self._events if e.seq > strike.seq and (until is None or e.seq <= until)
            ]
            went_on = went_on_at(self._effects, strike.at)
            soon = "never" if went_on is None else f"after {went_on - strike.at:.1f} s"
            yield (
                f"after SIGKILL {strike.worker}",
                f"went on {soon}: {_counts(decisions(later), 'nothing to take over')}",
            )


@dataclass(frozen=True, slots=True)
class Tampered:
    """A copy of the log with one byte changed, and what verify says of it."""

    path: Path
    seq: int
    output: str
    named: bool

    @property
    def says(self) -> str:
        """Return what was changed and what came of it."""
        return f"a byte of event {self.seq}, {'named' if self.named else 'NOT named'}"


def tamper(log: Path, copy: Path) -> Tampered:
    """Copy the log, change one byte in its middle, and let the command line verify the copy."""
    content = bytearray(log.read_bytes())
    at = next(i for i in range(len(content) // 2, len(content)) if content[i : i + 1].isalnum())
    content[at] ^= 1
    copy.write_bytes(content)
    seq = content.count(b"\n", 0, at)  # the first line is the header
    shown = _verify(copy)
    found = json.loads(_verify(copy, "--json").stdout or "{}")
    place = found.get("broken_at") or {}
    named = shown.returncode == CORRUPT and place.get("seq") == seq
    return Tampered(copy, seq, (shown.stdout + shown.stderr).rstrip(), named)


def _verify(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "celery_commander.tasks.cli", "verify", str(path), *options]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def decisions(events: Iterable[Event]) -> dict[str, int]:
    """Count what recovery wrote down, in the words of the log."""
    counted: Counter[str] = Counter()
    for event in events:
        if event.type == "run.requeued":
            counted[f"resumed ({event.payload.get('reason')})"] += 1
        elif event.type == "run.aborted" and event.payload.get("reason") != "exception":
            counted[f"aborted ({event.payload.get('reason')})"] += 1
    return dict(counted)


def _groups(events: Iterable[Event]) -> dict[str, int]:
    return dict(Counter(event.type.split(".")[0] for event in events).most_common())


def _counts(counted: Mapping[str, int], where_none: str = "nothing") -> str:
    return ", ".join(f"{number} {name}" for name, number in counted.items()) or where_none


def _list(numbers: Iterable[int]) -> str:
    return "/".join(str(number) for number in numbers) or "no"


def _orders(orders: Sequence[str]) -> str:
    more = f" and {len(orders) - SHOWN} more" if len(orders) > SHOWN else ""
    return f"{len(orders)}" + (f" ({', '.join(orders[:SHOWN])}{more})" if orders else "")


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name.ljust(width)}  {says}" for name, says in rows]
