"""Delete each sync, lock and check of the log in turn, and see that a test notices.

    python -m tests.kit.mutation [--group ownership] [--only engine/wal/seal.py] [--workers 2] [--json results.json]
    python -m tests.kit.mutation --list
    python -m tests.kit.mutation --table results.json > docs/mutations.md

Each mutant is a copy of the tree with one statement or condition less. First the tests that execute it are run, the
shortest first, then all others of its group; the first that fails, and fails again alone, has noticed. A mutant that
no test notices has survived: the statement is not needed, or a test is missing. A test that runs several times as
long as the longest did without a mutant counts as failed: it hung. Results that the JSON file holds already are not
tried again, unless the mutant survived.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from queue import Queue
from typing import Any

from tests.kit.covering import DURATIONS, Covering
from tests.kit.mutants import GROUPS, Group, Mutant, all_mutants
from tests.kit.mutation_page import reason_of, table, totals
from tests.kit.noticing import Runner
from tests.source_tree import ROOMS, ROOT

TRACERS = ("test_wal_interrupted.py", "test_wal_no_memory.py")  # they trace, or count, themselves
FIRST_SECONDS = 40.0  # of tests that execute the statement, before all are run
CLEAN_SILENCE_SECONDS = 900.0
MIN_SILENCE_SECONDS = 60.0
UNKNOWN_SECONDS = 60.0  # of a test that was not measured
SILENCE_FACTOR = 4.0  # times the longest test without a mutant


class Bench:
    """A copy of the tree, imported before the installed one, in which one mutant at a time is tried."""

    def __init__(self, directory: Path, group: Group) -> None:
        self.tree = directory / "tree"
        path = directory / "path"
        for name in (*ROOMS, "tests", "examples", "bench", "docs", "pyproject.toml", "README.md"):
            source, target = ROOT / name, self.tree / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        (path / "celery_commander").mkdir(parents=True)
        for room in ROOMS:
            (path / "celery_commander" / room).symlink_to(self.tree / room)
        found = [sorted(self.tree.glob(pattern)) for pattern in group.tests]
        self.tests = [file.relative_to(self.tree).as_posix() for files in found for file in files]
        self._variables = {
            "PYTHONPATH": f"{path}{os.pathsep}{self.tree}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.names = Runner(self.tree, self._variables).names(self.tests)

    def learn(self, directory: Path) -> Covering:
        """Run the tests without a mutant and return which of them executes what.

        Raises:
            SystemExit: one fails, and fails again alone.
        """
        data, durations = directory / "coverage", directory / "durations.json"
        if durations.exists():
            return Covering(data, durations)
        directory.mkdir(parents=True, exist_ok=True)
        quiet = [path for path in self.tests if not path.endswith(TRACERS)]
        command = ["-m", "coverage", "run", "--data-file", str(data)]
        command += ["--include", f"{self.tree}/engine/*"]
        command += ["-m", "pytest", "-p", "tests.kit.covering", "--maxfail=0"]
        runner = Runner(self.tree, self._variables | {DURATIONS: str(durations)})
        failed, _ = runner.noticed(quiet, silence_seconds=CLEAN_SILENCE_SECONDS, before=command)
        if failed and Runner(self.tree, self._variables).fails(failed, CLEAN_SILENCE_SECONDS):
            raise SystemExit(f"this test fails without any mutant: {failed}")
        return Covering(data, durations)

    def run(self, mutant: Mutant, covering: Covering) -> str:
        """Return the test that noticed; an empty text when none did."""
        path = self.tree / mutant.path
        data = path.read_bytes()
        start, stop = mutant.span
        path.write_bytes(data[:start] + mutant.instead.encode() + data[stop:])
        try:
            return self._noticed(covering, self._in_order(covering, mutant))
        finally:
            path.write_bytes(data)

    def _in_order(self, covering: Covering, mutant: Mutant) -> Iterator[list[str]]:
        """Yield who executes the statement, who is not measured, all others, and who traces; short tests first."""
        seconds, first, left = covering.seconds, [], FIRST_SECONDS
        for test in covering.tests(mutant.path, mutant.line):
            left -= seconds[test]
            if left < 0:
                break
            first.append(test)
        known = self.names & seconds.keys()
        yield [test for test in first if test in known]
        tracers = {test for test in self.names if test.split("::")[0].endswith(TRACERS)}
        yield sorted(self.names - known - tracers)
        yield sorted(known - set(first), key=lambda test: seconds[test])
        yield sorted(tracers)

    def _noticed(self, covering: Covering, batches: Iterator[list[str]]) -> str:
        runner = Runner(self.tree, self._variables)
        doubtful: list[str] = []
        for tests in filter(None, batches):
            longest = max(covering.seconds.get(test, UNKNOWN_SECONDS) for test in tests)
            silence = max(MIN_SILENCE_SECONDS, SILENCE_FACTOR * longest)
            while True:
                test, hung = runner.noticed(tests, silence_seconds=silence, without=doubtful)
                if not test:
                    break
                if runner.fails(test, silence):
                    return f"{test} (hangs)" if hung else test
                doubtful.append(test)  # it failed once, of something else
        return ""


def tried(
    group: Group, mutants: Sequence[Mutant], workers: int, learnt: Path | None
) -> Iterator[tuple[Mutant, str]]:
    """Try all mutants of one group, several at a time; yield each with what noticed it."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        directory = Path(temporary)
        benches = [Bench(directory / str(number), group) for number in range(workers)]
        covering = benches[0].learn(learnt or directory / "learnt")
        free: Queue[Bench] = Queue()
        for bench in benches:
            free.put(bench)

        def trial(mutant: Mutant) -> tuple[Mutant, str]:
            bench = free.get()
            try:
                return mutant, bench.run(mutant, covering)
            finally:
                free.put(bench)

        with ThreadPoolExecutor(workers) as pool:
            for done in as_completed([pool.submit(trial, mutant) for mutant in mutants]):
                yield done.result()


def main() -> int:
    """Run as a script; the exit status is 1 when a mutant has survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--group", action="append", choices=GROUPS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], metavar="FILE")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--learnt", type=Path)
    parser.add_argument("--table", type=Path, metavar="RESULTS")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text(encoding="utf-8"))))
        return 0
    rows = known_rows(arguments.json)
    for name in arguments.group or GROUPS:
        mutants = all_mutants(GROUPS[name], arguments.only)
        if arguments.list:
            for mutant in mutants:
                print(f"{mutant.kind:<6} {mutant.path}:{mutant.line}  {mutant.text}")
            continue
        done = {(row["path"], row["where"], row["kind"], row["text"], row["nth"]) for row in rows}
        left = [mutant for mutant in mutants if mutant.key not in done]
        learnt = arguments.learnt / name if arguments.learnt else None
        results = tried(GROUPS[name], left, arguments.workers, learnt) if left else ()
        for mutant, noticed in results:
            rows.append({**asdict(mutant), "noticed": noticed})
            word = "noticed " if noticed else "SURVIVED"
            place = f"{mutant.path}:{mutant.line}"
            print(f"{word} {mutant.kind:<6} {place}  {mutant.text}  [{noticed}]", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(totals(rows) if rows else "")
    return 0 if all(row["noticed"] or reason_of(row) for row in rows) else 1


def known_rows(path: Path | None) -> list[dict[str, Any]]:
    """Return what an earlier run found, as far as it noticed."""
    if path is None or not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return [row for row in rows if row["noticed"]]


if __name__ == "__main__":
    sys.exit(main())
