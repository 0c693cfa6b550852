"""What a step raised is raised again in a replay, and caught by the same except."""

from __future__ import annotations

import json
import subprocess  # noqa: F401 - a module that is there to be misused
import sys
from pathlib import Path
from typing import Any

import pytest

from celery_commander.engine import Fenced, RecordedException, decode_exception, encode_exception


class CardDeclined(Exception):
    """Composes its message, as many do: built from args alone, it would compose it again."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"card declined: {reason}")
        self.code = code


class Picklable(Exception):
    def __init__(self, first: int, *, second: str) -> None:
        super().__init__(first)
        self.second = second

    def __reduce__(self) -> Any:
        return _picklable, (self.args[0], self.second)


def _picklable(first: int, second: str) -> Picklable:
    raise AssertionError("a function of the log's choosing must not be called")


class SaysHow(Exception):
    def __init__(self, first: int, second: str) -> None:
        super().__init__("composed")
        self.pair = (first, second)

    def __reduce__(self) -> Any:
        return SaysHow, self.pair


class Missing(FileNotFoundError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "not there", path)


class Response:
    def __repr__(self) -> str:
        return "<Response 503>"


class Angry(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Refuses(Exception):
    def __init__(self, *args: object) -> None:
        raise RuntimeError("never made this way")

    def __reduce__(self) -> Any:
        return Refuses, ()


def again(error: BaseException) -> Exception:
    return decode_exception(json.loads(json.dumps(encode_exception(error), sort_keys=True)))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x", 1, (2, b"3")),
        KeyError("k"),
        CardDeclined(402, "no money"),
        Picklable(1, second="x"),
        SaysHow(1, "x"),
        Missing("/nowhere"),
        OSError(5, "broken"),
        FileNotFoundError(2, "no", "/a"),
        UnicodeDecodeError("utf-8", b"x\xff", 1, 2, "bad"),
        ImportError("no", name="n", path="p"),
        StopIteration(3),
        Fenced("r", 1, 2),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_with_its_class_arguments_and_attributes(error: Exception) -> None:
    back = again(error)

    assert type(back) is type(error)
    assert back.args == error.args
    assert str(back) == str(error)
    assert vars(back) == vars(error)
    for name in (
        "errno",
        "strerror",
        "filename",
        "name",
        "path",
        "value",
        "reason",
        "start",
        "code",
    ):
        assert getattr(back, name, None) == getattr(error, name, None)
    assert encode_exception(back) == encode_exception(error)


def test_notes_are_kept() -> None:
    error = ValueError("x")
    error.add_note("while charging")

    assert again(error).__notes__ == ["while charging"]


def test_what_cannot_be_recorded_in_it_is_shown_or_left_out() -> None:
    error = ConnectionError("no answer", Response())
    error.response = Response()  # type: ignore[attr-defined]
    error.retries = 3  # type: ignore[attr-defined]

    back = again(error)

    assert type(back) is ConnectionError
    assert back.args == ("no answer", "<Response 503>")
    assert vars(back) == {"retries": 3}


def test_an_exception_that_cannot_even_be_shown_is_recorded() -> None:
    assert type(again(Angry(Angry()))) is Angry
    assert encode_exception(Angry())["message"] == "<Angry that cannot be shown>"


def test_a_lone_surrogate_in_a_message_is_recorded_as_an_escape() -> None:
    assert encode_exception(ValueError("\ud800"))["message"] == "\\ud800"
    assert type(again(ValueError("\ud800"))) is ValueError


def test_a_message_without_end_is_cut() -> None:
    assert len(encode_exception(ValueError(Response, "x" * 10**6))["message"]) < 11_000


def test_a_class_that_is_not_here_is_stood_in_for() -> None:
    recorded = encode_exception(CardDeclined(402, "no money"))
    recorded["type"] = "shop.bank:CardDeclined"

    back = decode_exception(recorded)

    assert isinstance(back, RecordedException)
    assert (back.type_name, back.message) == ("shop.bank:CardDeclined", "card declined: no money")
    assert str(back) == "shop.bank:CardDeclined: card declined: no money"
    assert again(back).args == back.args


def test_a_class_of_a_function_is_stood_in_for() -> None:
    class Local(Exception):
        pass

    back = again(Local("x"))

    assert isinstance(back, RecordedException)
    assert back.type_name.endswith("<locals>.Local")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_ends_a_process_is_never_raised_from_the_log(error: BaseException) -> None:
    back = again(error)

    assert isinstance(back, RecordedException)
    assert back.type_name == f"builtins:{type(error).__name__}"


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:eval", "builtins:int", "os:nothing", "", "x", ":"]
)
def test_only_exception_classes_are_taken(name: str) -> None:
    recorded = encode_exception(ValueError("echo"))
    recorded["type"] = name

    assert isinstance(decode_exception(recorded), RecordedException)


def test_no_other_class_is_ever_called(tmp_path: Path) -> None:
    marker = tmp_path / "was called"
    recorded = encode_exception(ValueError(["touch", str(marker)]))
    recorded |= {"type": "subprocess:Popen", "call": True}

    back = decode_exception(recorded)

    assert isinstance(back, RecordedException)
    assert "its class could not" not in back.message
    assert not marker.exists()


def test_nothing_is_imported_to_rebuild_it() -> None:
    sys.modules.pop("this", None)
    recorded = encode_exception(ValueError("x"))
    recorded["type"] = "this:Error"

    assert isinstance(decode_exception(recorded), RecordedException)
    assert "this" not in sys.modules


def test_a_class_that_refuses_to_be_rebuilt_is_stood_in_for() -> None:
    recorded = encode_exception(ValueError("x"))
    recorded |= {"type": f"{Refuses.__module__}:Refuses", "call": True}

    back = decode_exception(recorded)

    assert isinstance(back, RecordedException)
    assert "never made this way" in back.message


@pytest.mark.parametrize(
    "recorded", [None, 1, [], {}, {"type": "builtins:ValueError"}, {"type": 5}, "x"]
)
def test_a_record_that_is_none_still_tells_something(recorded: Any) -> None:
    assert isinstance(decode_exception(recorded), RecordedException)
