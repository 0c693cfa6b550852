"""Delete each sync, lock and check of the log in turn, and see that a test notices.

    python -m tests.kit.mutation [--workers 2] [--only engine/wal/seal.py] [--list] [--json results.json]
    python -m tests.kit.mutation --table results.json > docs/mutations.md

Each mutant is a copy of the tree with one statement less. First run the tests that execute the statement, the
shortest first, then all others of the log; the first that fails has noticed. A mutant that no test notices has
survived: the statement is not needed, or a test is missing. A run that takes longer than `LIMIT_SECONDS` counts as
noticed: the mutant hung. Results that the JSON file holds already are not tried again.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Queue
from typing import Any

from tests.kit.covering import DURATIONS, Covering
from tests.source_tree import ROOMS, ROOT

GUARDED = (
    "engine/wal/*.py",
    "engine/control.py",
    "engine/files.py",
    "engine/archive.py",
    "engine/compaction.py",
    "engine/snapshots.py",
    "engine/snapshot_file.py",
    "engine/verification.py",
)
TESTS = (
    "tests/engine/test_syncs.py",
    "tests/engine/test_wal_*.py",
    "tests/engine/test_segments*.py",
    "tests/engine/test_engine.py",
    "tests/engine/test_log_*.py",
    "tests/engine/test_verify*.py",
    "tests/engine/test_index_rows.py",
    "tests/engine/test_snapshots*.py",
    "tests/engine/test_compaction.py",
    "tests/engine/test_archive.py",
    "tests/engine/test_checks.py",
    "tests/engine/test_reader_checks.py",
    "tests/engine/test_greenlets.py",
    "tests/engine/test_fences_raced.py",
    "tests/engine/test_strange_files.py",
    "tests/engine/test_streaming.py",
    "tests/engine/test_hostile_bytes.py",
    "tests/engine/test_places.py",
    "tests/crash/test_*.py",
)
TRACERS = ("test_wal_interrupted.py", "test_wal_no_memory.py")  # they trace, or count, themselves
FIRST_SECONDS = 40.0  # of tests that execute the statement, before all are run
LIMIT_SECONDS = 420
PAGE = """\
# What a test notices

`make mutants` deletes each sync, lock and check of the log, one at a time, and runs the log's tests on what is left.
The first test that fails has noticed; its path is below `tests/`. This page is made from its results:
`python -m tests.kit.mutation --table results.json`.

{}.
"""
EXPLAINED = {
    (
        "engine/snapshot_file.py",
        "len(previous) != HASH_BYTES",
    ): "such a line does not verify either",
    (
        "engine/snapshots.py",
        "before == (self._changed_at(), self._log.reader.numbers()[0])",
    ): "the same is raised after half a second of looking again",
    (
        "engine/wal/append.py",
        "self._refuse_fenced(drafts)",
    ): "this look is without the lock; those under it decide, and are noticed",
    ("engine/wal/index.py", "self._claim.is_mine()"): "the lock's bound refuses it, later",
    (
        "engine/wal/index.py",
        "not self._store.holds_anything()",
    ): "the log is looked through once more, and the same is raised",
}
"""Why a statement may go unnoticed: the first of its text in its file."""
SYNCS = frozenset(("sync", "sync_meanwhile", "_sync", "sync_directory", "fsync", "fdatasync"))
UNLOCKS = frozenset(("unlock",))
LOCKS = frozenset(("try_lock",))
CHECKS = ("refuse", "_refuse", "check", "_check")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One statement or condition, where it stands, and what takes its place."""

    path: str
    line: int
    kind: str
    text: str
    instead: str
    span: tuple[int, int]
    nth: int = 0
    """Which of several that read the same in one file, from 0."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Name the mutant whatever stands above it in its file."""
        return self.path, self.kind, self.text, self.nth


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yield the mutants of one file, from its top to its end."""
    data, starts = source.encode(), [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))

    def mutant(node: ast.expr | ast.stmt, kind: str, instead: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[node.end_lineno - 1] + node.end_col_offset
        text = " ".join(data[start:stop].decode().split())
        return Mutant(path, node.lineno, kind, text, instead, (start, stop))

    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Call() as call) if name_of(call) in SYNCS:
                found.append(mutant(node, "sync", "pass"))
            case ast.Expr(value=ast.Call() as call) if name_of(call) in UNLOCKS:
                found.append(mutant(node, "lock", "pass"))
            case ast.Expr(value=ast.Call() as call) if name_of(call).startswith(CHECKS):
                found.append(mutant(node, "check", "pass"))
            case ast.Call() if name_of(node) in LOCKS:
                found.append(mutant(node, "lock", "True"))
            case ast.If(orelse=[]) if isinstance(node.body[-1], ast.Raise):
                found.append(mutant(node.test, "check", "False"))
    alike: Counter[str] = Counter()
    for each in sorted(found, key=lambda each: each.span):
        yield replace(each, nth=alike[each.text])
        alike[each.text] += 1


def name_of(call: ast.Call) -> str:
    """Return the last part of what is called: `sync` of `self._files.sync(fd)`."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def all_mutants(only: Sequence[str]) -> list[Mutant]:
    """Return the mutants of every guarded file, or of those that are named."""
    paths = sorted({path for pattern in GUARDED for path in ROOT.glob(pattern)})
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    chosen = [name for name in names if not only or name in only]
    return [
        mutant
        for name in chosen
        for mutant in mutants_of(name, (ROOT / name).read_text(encoding="utf-8"))
    ]


class Bench:
    """A copy of the tree, imported before the installed one, in which one mutant at a time is tried."""

    def __init__(self, directory: Path) -> None:
        self.tree = directory / "tree"
        self.path = directory / "path"
        for name in (*ROOMS, "tests", "examples", "bench", "docs", "pyproject.toml", "README.md"):
            source, target = ROOT / name, self.tree / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        (self.path / "celery_commander").mkdir(parents=True)
        for room in ROOMS:
            (self.path / "celery_commander" / room).symlink_to(self.tree / room)
        found = [sorted(self.tree.glob(pattern)) for pattern in TESTS]
        self.tests = [str(path) for paths in found for path in paths]

    def learn(self, directory: Path) -> Covering:
        """Run the tests without a mutant and return which of them executes what.

        Raises:
            SystemExit: they fail.
        """
        data, durations = directory / "coverage", directory / "durations.json"
        quiet = [path for path in self.tests if not path.endswith(TRACERS)]
        command = ["-m", "coverage", "run", "--data-file", str(data)]
        command += ["--include", f"{self.tree}/engine/*", "-m", "pytest"]
        noticed = self._tested(
            [*command, "-p", "tests.kit.covering"], quiet, {DURATIONS: str(durations)}
        )
        if noticed:
            raise SystemExit(f"the tests fail without any mutant: {noticed}")
        return Covering(self.tree, data, durations)

    def run(self, mutant: Mutant, covering: Covering) -> str:
        """Return the test that noticed; an empty text when none did."""
        path = self.tree / mutant.path
        data = path.read_bytes()
        start, stop = mutant.span
        first, seconds = [], 0.0
        for test in covering.tests(mutant.path, mutant.line):
            seconds += covering.seconds.get(test, 0.0)
            if seconds > FIRST_SECONDS:
                break
            first.append(test)
        path.write_bytes(data[:start] + mutant.instead.encode() + data[stop:])
        try:
            noticed = self._tested(["-m", "pytest"], first, {}) if first else ""
            return noticed or self._tested(["-m", "pytest"], self.tests, {})
        finally:
            path.write_bytes(data)

    def _tested(
        self, command: Sequence[str], tests: Sequence[str], variables: dict[str, str]
    ) -> str:
        options = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
            listed.write("\n".join(tests))
            listed.flush()
            process = subprocess.Popen(
                [sys.executable, *command, *options, f"@{listed.name}"],
                cwd=self.tree,
                env=os.environ
                | {
                    "PYTHONPATH": f"{self.path}{os.pathsep}{self.tree}",
                    "PYTHONDONTWRITEBYTECODE": "1",
                }
                | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            try:
                output, _ = process.communicate(timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.communicate()
                return "it hung"
        if process.returncode == 0:
            return ""
        failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return failed[0].split(" - ")[0].split(maxsplit=1)[1] if failed else "the run ended"


def tried(mutants: Sequence[Mutant], workers: int) -> Iterator[tuple[Mutant, str]]:
    """Try all mutants, several at a time; yield each with what noticed it."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        benches = [Bench(Path(directory) / str(number)) for number in range(workers)]
        covering = benches[0].learn(Path(directory))
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
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], metavar="FILE")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, metavar="RESULTS")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text(encoding="utf-8"))))
        return 0
    mutants = all_mutants(arguments.only)
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.kind:<6} {mutant.path}:{mutant.line}  {mutant.text}")
        return 0
    rows = known_rows(arguments.json)
    done = {(row["path"], row["kind"], row["text"], row["nth"]) for row in rows}
    left = [mutant for mutant in mutants if mutant.key not in done]
    for mutant, noticed in tried(left, arguments.workers):
        rows.append({**asdict(mutant), "noticed": noticed})
        word = "noticed " if noticed else "SURVIVED"
        place = f"{mutant.path}:{mutant.line}"
        print(f"{word} {mutant.kind:<6} {place}  {mutant.text}  [{noticed}]", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(totals(rows))
    return 0 if all(row["noticed"] or reason_of(row) for row in rows) else 1


def reason_of(row: Mapping[str, Any]) -> str | None:
    """Return why a mutant may survive, None when it may not."""
    return EXPLAINED.get((row["path"], row["text"])) if row["nth"] == 0 else None


def totals(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many mutants there are, of each kind, and what became of them."""
    kinds = Counter(row["kind"] for row in rows)
    left = [row for row in rows if not row["noticed"]]
    explained = sum(reason_of(row) is not None for row in left)
    told = ", ".join(f"{number} {kind}s" for kind, number in sorted(kinds.items()))
    return (
        f"{len(rows)} mutants ({told}): {len(rows) - len(left)} noticed, {explained} explained,"
        f" {len(left) - explained} survived"
    )


def known_rows(path: Path | None) -> list[dict[str, Any]]:
    """Return what an earlier run found, as far as it noticed."""
    if path is None or not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return [row for row in rows if row["noticed"]]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the results as a page: by file, what was deleted, and which test noticed."""
    told = [
        PAGE.format(totals(rows)),
        "| file | kind | deleted | noticed by |",
        "|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["path"], row["line"])):
        test = row["noticed"].removeprefix("tests/").split("[")[0]
        who = f"`{test}`" if test else f"nobody: {reason_of(row) or 'A TEST IS MISSING'}"
        text = row["text"].replace("|", "\\|")
        told.append(f"| `{row['path']}` | {row['kind']} | `{text}` | {who} |")
    return "\n".join(told)


if __name__ == "__main__":
    sys.exit(main())
