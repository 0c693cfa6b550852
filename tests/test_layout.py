"""The shape of the house: which room may know which, how large a file may grow, what may be written in it."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.source_tree import CODE, ROOMS, ROOT, Import, Source, sources

DOORS_OPEN_TO = {
    "engine": set(),
    "tasks": {"celery_commander.engine"},
    "beat": {"celery_commander.engine", "celery_commander.tasks"},
}
ENGINE_MAY_USE = {"sqlalchemy"}
ONLY_THERE = {"alembic": "engine/migrations/", "cryptography": "engine/signing.py"}

# Names of places where this was not made to be read: working notes, hosts of package registries, issue numbers.
FORBIDDEN = re.compile(
    r"\.\./shared|/work/|\bissues? #?\d{1,2}\b|\bissues? show\b"
    r"|pypi\.|pythonhosted|registry\.npmjs|deb\.debian|/tmp/cc\b",
    re.IGNORECASE,
)
SPEAKS_OF_THEM = {"tests/test_layout.py"}
MOST_LINES = 400
MOST_FUNCTION_LINES = 60
MOST_POSITIONAL = 4


def rooms_sources() -> list[Source]:
    found = sources(*ROOMS)
    assert found, "the rooms are empty"
    return found


def complain(broken: list[str]) -> None:
    assert not broken, "\n" + "\n".join(broken)


def owner(module: str, names: set[str]) -> str | None:
    """Return which of *names* is *module*, or holds it."""
    return next((name for name in names if module == name or module.startswith(f"{name}.")), None)


def test_the_engine_imports_only_the_standard_library_and_sqlalchemy() -> None:
    allowed = sys.stdlib_module_names | ENGINE_MAY_USE | {"celery_commander"}
    complain(
        [
            f"{source}:{imported.line} imports {imported.module}"
            for source in sources("engine")
            for imported in source.imports()
            if (top := imported.module.split(".")[0]) not in allowed
            and not str(source).startswith(ONLY_THERE.get(top, "nowhere"))
        ]
    )


def test_optional_libraries_are_imported_on_use_in_their_one_place() -> None:
    complain(
        [
            f"{source}:{imported.line} imports {imported.module}"
            for source in rooms_sources()
            for imported in source.imports()
            if (place := ONLY_THERE.get(imported.module.split(".")[0]))
            and (not str(source).startswith(place) or (place.endswith(".py") and imported.at_top))
        ]
    )


def test_rooms_know_each_other_only_by_their_doors() -> None:
    def allowed(source: Source, imported: Import) -> bool:
        return imported.relative or imported.module in DOORS_OPEN_TO[source.room]

    complain(
        [
            f"{source}:{imported.line} imports {imported.module}"
            for source in rooms_sources()
            for imported in source.imports()
            if owner(imported.module, {"celery_commander"}) and not allowed(source, imported)
        ]
    )


def test_inside_a_room_nothing_flows_upward() -> None:
    modules = {source.module: source for source in rooms_sources()}

    def needs(source: Source) -> set[str]:
        found = {
            imported.module
            for imported in source.imports()
            if imported.relative and imported.at_top
        }
        # A door lists its room; whoever imports the door from inside makes the circle.
        return {name for name in found if name in modules} - {source.module}

    try:
        TopologicalSorter({name: needs(source) for name, source in modules.items()}).prepare()
    except CycleError as error:
        pytest.fail("files import each other: " + " -> ".join(error.args[1]))


def test_every_folder_of_a_room_is_listed_in_pyproject() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = set(listed["tool"]["setuptools"]["packages"])
    folders = {
        ".".join(("celery_commander", *source.path.parent.relative_to(ROOT).parts))
        for source in rooms_sources()
    }
    assert packages == folders


def test_every_folder_of_a_room_is_a_package() -> None:
    complain(
        [
            f"{folder.relative_to(ROOT)} has no __init__.py"
            for folder in sorted({source.path.parent for source in rooms_sources()})
            if not (folder / "__init__.py").exists()
        ]
    )


def test_what_is_installed_is_what_is_written() -> None:
    """A file that was added after the installation would be missing for users and for mypy."""
    installed = {room: installed_folder(room) for room in ROOMS}
    complain(
        [
            f"{source} is not installed: run `make install`"
            for source in rooms_sources()
            if not (installed[source.room] / source.path.relative_to(ROOT / source.room)).exists()
        ]
    )


def installed_folder(room: str) -> Path:
    spec = importlib.util.find_spec(f"celery_commander.{room}")
    places = (spec and spec.submodule_search_locations) or []
    assert places, f"{room} is not installed"
    return Path(places[0])


def test_the_namespace_itself_holds_nothing() -> None:
    import celery_commander

    assert celery_commander.__file__ is None


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_tells_type_checkers_that_it_is_typed(room: str) -> None:
    assert (ROOT / room / "py.typed").exists()


def test_no_file_grows_beyond_its_bound() -> None:
    complain(
        [
            f"{source} has {lines} lines: split it by concept"
            for source in sources(*CODE)
            if (lines := len(source.text.splitlines())) > MOST_LINES
        ]
    )


def test_no_function_grows_beyond_its_bound() -> None:
    complain(
        [
            f"{source}:{node.lineno} {node.name} has {lines} lines"
            for source in rooms_sources()
            for node in functions(source)
            if (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_FUNCTION_LINES
        ]
    )


def test_a_function_takes_at_most_four_positional_parameters() -> None:
    complain(
        [
            f"{source}:{node.lineno} {node.name} takes {count}: put options after *"
            for source in rooms_sources()
            for node in functions(source)
            if (count := positional(node)) > MOST_POSITIONAL and not celery_decides(node)
        ]
    )


def functions(source: Source) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [parameter.arg for parameter in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def celery_decides(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a signature is somebody else's: a constructor of an error or an override that says so."""
    return node.name == "__init__" or node.name.startswith(("on_", "apply", "__"))


def test_a_door_is_a_contents_page() -> None:
    complain(
        [
            f"{source}:{node.lineno} is code"
            for source in rooms_sources()
            if source.path.name == "__init__.py"
            for node in source.tree.body
            if not is_contents(node)
        ]
    )


def is_contents(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)  # the docstring
    names = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [ast.unparse(name) for name in names if name is not None] == ["__all__"]


def test_every_celery_task_of_ours_has_a_name_of_ours() -> None:
    """A name made from a module's path would change when a file moves, and messages in flight would be lost."""
    constants = {
        target.id: node.value.value
        for source in rooms_sources()
        for node in source.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    complain(
        [
            f"{source}:{node.lineno} has no explicit name that begins with celery_commander."
            for source in sources("tasks", "beat")
            for node in task_makers(source)
            if not task_name(node, constants).startswith("celery_commander.")
        ]
    )


def task_makers(source: Source) -> list[ast.expr]:
    """Return every use of ``@x.task``, ``@shared_task``, called or bare."""
    decorators = [decorator for node in functions(source) for decorator in node.decorator_list]
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    makers = [node for node in calls if makes_tasks(node.func)]
    return makers + [node for node in decorators if makes_tasks(node)]


def makes_tasks(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        receiver = ast.unparse(node.value)
        return node.attr == "task" and receiver.split(".")[-1].lstrip("_") in ("app", "celery")
    return isinstance(node, ast.Name) and node.id == "shared_task"


def task_name(node: ast.expr, constants: Mapping[str, object]) -> str:
    for keyword in node.keywords if isinstance(node, ast.Call) else []:
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
        if keyword.arg == "name":
            return str(constants.get(ast.unparse(keyword.value).split(".")[-1], ""))
    return ""


def written_files() -> list[str]:
    """Return every text file that is, or could be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode == 0:
        names = listed.stdout.split("\n")
        return [name for name in names if name and (ROOT / name).is_file()]
    # Not a repository (an unpacked source archive): the folders that we know.
    return [str(source) for source in sources(*CODE)] + ["Makefile", "pyproject.toml", "README.md"]


def test_nothing_written_here_names_where_it_was_made() -> None:
    broken = []
    for name in written_files():
        if name in SPEAKS_OF_THEM:
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a golden file in bytes
        for number, line in enumerate(text.splitlines(), start=1):
            if found := FORBIDDEN.search(line):
                broken.append(f"{name}:{number} says {found[0]!r}")
    complain(broken)


@pytest.mark.parametrize(
    "line",
    ["see ../shared/X.md", "as issue #2 says", "in /work/main", "index https://pypi.example"],
)
def test_the_forbidden_words_are_recognised(line: str) -> None:
    assert FORBIDDEN.search(line)
