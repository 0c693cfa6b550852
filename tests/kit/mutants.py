"""Find what can be deleted: each sync, lock and check of the log, each condition of ownership and of recovery."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.source_tree import ROOT

SYNCS: Final = frozenset(
    ("sync", "sync_meanwhile", "_sync", "sync_directory", "fsync", "fdatasync")
)
LOCKINGS: Final = frozenset(("flock", "unlock"))
LOCKS: Final = frozenset(("try_lock",))
CHECKS: Final = ("refuse", "_refuse", "check", "_check")
_SQL = re.compile(
    r"\b(WHERE|AND|OR)\s+(\w[^()]*?|\([^()]*\))(?=\s*(?:\bAND\b|\bOR\b|\bORDER\b|$))", re.DOTALL
)
_NEUTRAL = {ast.And: "True", ast.Or: "False"}


@dataclass(frozen=True, slots=True)
class Group:
    """Files that are guarded, and the tests that guard them."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    answers: bool = False
    """Whether these are checks too: what a function answers by comparing, early returns, conditions in SQL."""


LOG: Final = Group(
    files=(
        "engine/wal/*.py",
        "engine/control.py",
        "engine/files.py",
        "engine/archive.py",
        "engine/compaction.py",
        "engine/snapshots.py",
        "engine/snapshot_file.py",
        "engine/verification.py",
    ),
    tests=(
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
        "tests/engine/test_looks_saved.py",
        "tests/engine/test_reader_checks.py",
        "tests/engine/test_greenlets.py",
        "tests/engine/test_fences_raced.py",
        "tests/engine/test_strange_files.py",
        "tests/engine/test_streaming.py",
        "tests/engine/test_hostile_bytes.py",
        "tests/engine/test_places.py",
        "tests/crash/test_*.py",
    ),
)
OWNERSHIP: Final = Group(
    files=(
        "engine/fold*.py",
        "engine/leases.py",
        "engine/liveness.py",
        "engine/ledger.py",
        "engine/ledger_rows.py",
    ),
    tests=(
        "tests/engine/test_fold*.py",
        "tests/engine/test_lease*.py",
        "tests/engine/test_liveness.py",
        "tests/engine/test_health_leases.py",
        "tests/engine/test_plan*.py",
        "tests/engine/test_ledger*.py",
    ),
    answers=True,
)
RECOVERY: Final = Group(
    files=("engine/plan.py", "engine/checkpoints.py"),
    tests=("tests/engine/test_plan*.py", "tests/engine/test_checkpoints.py"),
    answers=True,
)
GROUPS: Final = {"log": LOG, "ownership": OWNERSHIP, "recovery": RECOVERY}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One statement or condition, where it stands, and what takes its place."""

    path: str
    where: str
    """The function it stands in, with its class, as `Seal.finish`; or the constant."""
    line: int
    kind: str
    text: str
    instead: str
    span: tuple[int, int]
    """Its first byte in the file, and the one behind its last."""
    nth: int = 0
    """Which of several that read the same in one function, from 0."""

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """Name the mutant whatever stands around its function."""
        return self.path, self.where, self.kind, self.text, self.nth


class _Finder(ast.NodeVisitor):
    """Walk one file from its top to its end."""

    def __init__(self, path: str, source: str, *, answers: bool) -> None:
        self.found: list[Mutant] = []
        self._path, self._data, self._answers = path, source.encode(), answers
        self._within: list[str] = []
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))

    def visit(self, node: ast.AST) -> None:
        """Note what can be deleted of a node, then of all below it."""
        name = _named(node)
        if name is not None:
            self._within.append(name)
        self._look(node)
        self.generic_visit(node)
        if name is not None:
            self._within.pop()

    def _look(self, node: ast.AST) -> None:
        match node:
            case ast.Expr(value=ast.Call() as call) if name_of(call) in SYNCS:
                self._note(node, "sync", "pass")
            case ast.Expr(value=ast.Call() as call) if name_of(call) in LOCKINGS:
                self._note(node, "lock", "pass")
            case ast.Expr(value=ast.Call() as call) if name_of(call).startswith(CHECKS):
                self._note(node, "check", "pass")
            case ast.Call() if name_of(node) in LOCKS:
                self._note(node, "lock", "True")
            case ast.If(orelse=[]) if isinstance(node.body[-1], ast.Raise):
                self._note(node.test, "check", "False")
                self._clauses(node.test)
            case ast.If(orelse=[]) if self._answers and isinstance(node.body[-1], ast.Return):
                self._note(node.test, "check", "False")
                self._clauses(node.test)
            case ast.Return(value=ast.Compare() | ast.BoolOp() as value) if self._answers:
                if isinstance(value, ast.Compare):
                    self._note(value, "answer", "True")
                self._clauses(value)
            case ast.Call(args=conditions) if self._answers and name_of(node) == "where":
                for condition in conditions:
                    self._note(condition, "sql", "True")
            case ast.Constant(value=str() as text) if self._answers and "WHERE" in text:
                self._conditions(node)

    def _clauses(self, test: ast.expr) -> None:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                self._clauses(inner)
            case ast.BoolOp(op=joined, values=values):
                for value in values:
                    self._clauses(value)
                    if not isinstance(value, ast.BoolOp):
                        self._note(value, "clause", _NEUTRAL[type(joined)])

    def _conditions(self, node: ast.Constant) -> None:
        """Note each condition of a WHERE: one that is joined by OR lets more through, one by AND less."""
        start, stop = self._span(node)
        text = self._data[start:stop].decode("latin-1")  # a character a byte
        behind = text.index("WHERE")
        always = "1 = 0" if re.search(r"\bOR\b", text[behind:]) else "1 = 1"
        for found in _SQL.finditer(text.rstrip('"'), behind):
            first, last = found.span(2)
            self._note(node, "sql", always, (start + first, start + last))
            for part in re.finditer(r"(?<=[(])[^()]+?(?= AND )|(?<= AND )[^()]+?(?=[)])", found[2]):
                inner = start + first + part.start(), start + first + part.end()
                self._note(node, "sql", "1 = 1", inner)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _note(
        self,
        node: ast.expr | ast.stmt,
        kind: str,
        instead: str,
        span: tuple[int, int] | None = None,
    ) -> None:
        start, stop = span or self._span(node)
        text = " ".join(self._data[start:stop].decode().split())
        where = ".".join(self._within) or "-"
        self.found.append(
            Mutant(self._path, where, node.lineno, kind, text, instead, (start, stop))
        )


def _named(node: ast.AST) -> str | None:
    """Return the name that a class, a function or a constant has."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return name
        case ast.Assign(targets=[ast.Name(id=name)]) if name.isupper():
            return name
    return None


def mutants_of(path: str, source: str, *, answers: bool = False) -> Iterator[Mutant]:
    """Yield the mutants of one file, from its top to its end. `answers` as in `Group`."""
    finder = _Finder(path, source, answers=answers)
    finder.visit(ast.parse(source))
    alike: Counter[tuple[str, ...]] = Counter()
    for each in sorted(finder.found, key=lambda each: each.span):
        key = each.where, each.kind, each.text
        yield replace(each, nth=alike[key])
        alike[key] += 1


def name_of(call: ast.Call) -> str:
    """Return the last part of what is called: `sync` of `self._files.sync(fd)`."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def all_mutants(group: Group, only: Sequence[str] = ()) -> list[Mutant]:
    """Return the mutants of every guarded file, or of those that are named."""
    paths = sorted({path for pattern in group.files for path in ROOT.glob(pattern)})
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return [
        mutant
        for name in names
        if not only or name in only
        for mutant in mutants_of(
            name, (ROOT / name).read_text(encoding="utf-8"), answers=group.answers
        )
    ]
