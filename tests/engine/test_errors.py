"""Every error names the thing and the remedy, and survives being sent."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from celery_commander.engine import (
    BreakRefused,
    CommanderError,
    LockTimeout,
    LogBroken,
    LogTorn,
    SettingsError,
    StoreBusy,
    errors,
)

ALL = [
    thing
    for thing in vars(errors).values()
    if inspect.isclass(thing) and issubclass(thing, CommanderError)
] + [BreakRefused, LogBroken, LogTorn]
FACTS: dict[str, Any] = {
    "path": "/state/event-sourcing.wal",
    "seq": 7,
    "offset": 1234,
    "token": 3,
    "fence": 4,
    "index": 2,
    "step": 5,
    "seconds": 1.5,
    "suggestion": "lease_seconds",
}


def make(cls: type[CommanderError]) -> CommanderError:
    if cls.__init__ is CommanderError.__init__:
        return cls()
    names = [name for name in inspect.signature(cls).parameters if name != "self"]
    return cls(*[FACTS.get(name, f"the {name}") for name in names])


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_an_error_survives_being_sent_and_keeps_its_facts(cls: type[CommanderError]) -> None:
    error = make(cls)

    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error), cls(*error.args)):
        assert type(back) is cls
        assert (back.args, vars(back), str(back)) == (error.args, vars(error), str(error))


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_a_message_tells_every_fact_in_one_line(cls: type[CommanderError]) -> None:
    error = make(cls)
    told = str(error)

    assert "\n" not in told
    assert "{" not in told
    for value in error.args:
        assert str(value) in told


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_the_tree_in_the_docstring_shows_every_error_under_its_parent(
    cls: type[CommanderError],
) -> None:
    tree = [line for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    depth = {line.strip("│├└─ ").split()[0]: line.index(line.strip("│├└─ ")[0]) for line in tree}

    assert cls.__name__ in depth
    if cls is not CommanderError:
        parent = cls.__bases__[0].__name__
        assert depth[cls.__name__] == depth[parent] + 4
        above = list(depth)[: list(depth).index(cls.__name__)]
        assert next(name for name in reversed(above) if depth[name] < depth[cls.__name__]) == parent


def test_a_value_with_braces_is_no_template() -> None:
    error = SettingsError("lease_seconds", "{key}", "it {must} be a number")

    assert str(error) == "Setting lease_seconds = '{key}' is refused: it {must} be a number."


def test_a_subclass_from_elsewhere_may_have_any_docstring() -> None:
    class Theirs(CommanderError):
        """Uses {braces} and {0} as it likes."""

    assert str(Theirs("x")) == "Theirs('x')"


def test_a_busy_lock_is_caught_as_an_unavailable_one() -> None:
    assert issubclass(LockTimeout, errors.LogUnavailable)
    assert issubclass(StoreBusy, errors.StoreUnavailable)
    assert LockTimeout("/x", "pid 3", 2.0).reason
