"""Read the project's own source, for tests that keep its shape."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("engine", "tasks", "beat")
CODE = (*ROOMS, "tests", "examples", "bench")


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, made absolute: ``celery_commander.engine.wal.append``."""

    module: str
    line: int
    relative: bool
    at_top: bool  # runs when the file is imported: not in a function, not under TYPE_CHECKING


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file of the project."""

    path: Path

    def __str__(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def room(self) -> str:
        """Return the top folder it lies in."""
        return self.path.relative_to(ROOT).parts[0]

    @property
    def module(self) -> str:
        """Return its dotted name, as imported."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        names = parts[:-1] if parts[-1] == "__init__" else parts
        prefix = ("celery_commander",) if self.room in ROOMS else ()
        return ".".join(prefix + names)

    @property
    def text(self) -> str:
        """Return what is written in it."""
        return self.path.read_text(encoding="utf-8")

    @property
    def tree(self) -> ast.Module:
        """Return it parsed."""
        return ast.parse(self.text, filename=str(self))

    def imports(self) -> Iterator[Import]:
        """Yield everything it imports, wherever in the file."""
        yield from _imports(self.tree, self._package(), at_top=True)

    def _package(self) -> list[str]:
        names = self.module.split(".")
        return names if self.path.name == "__init__.py" else names[:-1]


def sources(*folders: str) -> list[Source]:
    """Return the Python files below the given top folders, in order."""
    return [
        Source(path)
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "__pycache__" not in path.parts
    ]


def _imports(node: ast.AST, package: list[str], *, at_top: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, relative=False, at_top=at_top)
        elif isinstance(child, ast.ImportFrom):
            yield from _imported_from(child, package, at_top=at_top)
        else:
            inside = at_top and not _runs_later(child)
            yield from _imports(child, package, at_top=inside)


def _imported_from(node: ast.ImportFrom, package: list[str], *, at_top: bool) -> Iterator[Import]:
    relative = node.level > 0
    base = package[: len(package) - node.level + 1] if relative else []
    if relative and len(base) < 2:
        raise AssertionError(
            f"{'.'.join(package)}:{node.lineno}: a relative import leaves its room"
        )
    module = [*base, *(node.module.split(".") if node.module else [])]
    if node.module is None:  # from . import name: the name is the module
        for alias in node.names:
            yield Import(".".join([*module, alias.name]), node.lineno, relative, at_top)
    else:
        yield Import(".".join(module), node.lineno, relative, at_top)


def _runs_later(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
