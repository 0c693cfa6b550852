"""A step keeps its function's signature, for people and for mypy: what is wrong here must be an error there.

mypy runs over this file; an error that it no longer finds makes its comment an unused one, which is an error too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import assert_type

import pytest

from celery_commander.tasks import StepTimeout, step


def charge(order: str, *, total: int = 0) -> str:
    """Charge a card."""
    return f"{order} {total}"


plain = step(charge)
given = step(
    name="bank.charge",
    compensate="refund",
    not_done=ValueError,
    retries=3,
    retry_on=(StepTimeout, OSError),
    backoff=0.5,
    backoff_max=10,
    jitter=False,
    timeout=30,
    in_doubt="park",
)(charge)


@pytest.mark.parametrize("made", [plain, given])
def test_a_step_looks_like_its_function(made: object) -> None:
    assert inspect.signature(made) == inspect.signature(charge)  # type: ignore[arg-type]  # it is called like one
    assert (made.__name__, made.__doc__) == ("charge", "Charge a card.")  # type: ignore[attr-defined]  # object


def test_a_step_is_called_as_its_function_is() -> None:
    assert_type(plain("order", total=3), str)
    assert_type(given("order", total=3), str)
    assert given("order", total=3) == "order 3"


@pytest.mark.parametrize(
    "call",
    [
        lambda: given(),  # type: ignore[call-arg]  # the point of the test
        lambda: given("order", 3),  # type: ignore[call-arg]  # the point of the test
        lambda: given("order", totel=3),  # type: ignore[call-arg]  # the point of the test
        lambda: given("order") + 3,  # type: ignore[operator]  # the point of the test
    ],
)
def test_a_call_with_wrong_arguments_is_an_error_of_types(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        call()


@pytest.mark.parametrize(
    "declare",
    [
        lambda: step(retries="3", retry_on=OSError)(charge),  # type: ignore[call-overload]  # the point
        lambda: step(retries=3, retry_on=KeyboardInterrupt)(charge),  # type: ignore[arg-type]  # the point
        lambda: step(timeout="30")(charge),  # type: ignore[call-overload]  # the point of the test
        lambda: step(in_doubt="ask")(charge),  # type: ignore[call-overload]  # the point of the test
        lambda: step(retires=3)(charge),  # type: ignore[call-overload]  # the point of the test
        lambda: step("charge")(charge),  # type: ignore[call-overload]  # the point of the test
    ],
)
def test_an_option_of_the_wrong_kind_is_an_error_of_types(declare: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        declare()
