"""Types of a user's own, registered as a user would."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from celery_commander.engine import (
    register_type,
)


class Colour(enum.Enum):
    RED = 1
    ALSO_RED = 1  # noqa: PIE796 - an alias, which must come back as what it stands for


class Level(enum.IntEnum):
    LOW = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: str


class Point(NamedTuple):
    x: int
    y: int


class Temperature:
    def __init__(self, kelvin: float) -> None:
        self.kelvin = kelvin


register_type(Money, "test.money")
register_type(Point, "test.point")
register_type(Temperature, "test.temperature", lambda value: value.kelvin, Temperature)
