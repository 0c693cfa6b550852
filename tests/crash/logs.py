"""Run writers in processes of their own, under strace where a system call is to fail or to kill."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STRACE = "/usr/bin/strace"

WRITER = """
import sys
from celery_commander.engine import EventSourcingEngine, CommanderError
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
wait = len(sys.argv) < 5 or sys.argv[4] != "unwaited"
try:
    with EventSourcingEngine.open(path) as log:
        print("opened", flush=True)
        for index in range(count):
            event = log.append("note", {"by": name, "i": index}, run_id=name, wait=wait)
            print("ack", index, event.seq, flush=True)
except CommanderError as error:
    print("error", type(error).__name__, error, flush=True)
"""


def writer(
    path: Path, name: str, count: int, *, strace: list[str] | None = None, wait: bool = True
) -> subprocess.Popen[str]:
    """Start a process that appends `count` events and prints each acknowledgement."""
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    if not wait:
        command.append("unwaited")
    if strace is not None:
        command = [STRACE, "-f", "-qq", "-o", os.devnull, *strace, *command]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def heard(process: subprocess.Popen[str], seconds: float = 60) -> list[list[str]]:
    """Wait for the process and return the words of each line it printed."""
    output, _ = process.communicate(timeout=seconds)
    return [line.split() for line in output.splitlines()]


def acknowledged(lines: list[list[str]]) -> dict[int, int]:
    """Return the seq of each acknowledged event."""
    return {int(line[1]): int(line[2]) for line in lines if line[0] == "ack" and len(line) == 3}
