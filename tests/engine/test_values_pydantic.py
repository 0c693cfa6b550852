"""A pydantic model comes back as it went in, by the two lines that the documentation gives."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from pydantic import BaseModel, ValidationError

from celery_commander.engine import UnreadableValue, UnrecordableValue, decode, encode


class Line(BaseModel):
    sku: str
    price: Decimal


class Order(BaseModel):
    id: UUID
    at: datetime
    lines: list[Line]
    note: str | None = None


class Unregistered(BaseModel):
    a: int


ORDER = Order(
    id=UUID(int=7),
    at=datetime(2026, 1, 2, tzinfo=UTC),
    lines=[Line(sku="a", price=Decimal("1.10"))],
)


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    page = Path(__file__).parents[2] / "docs" / "values.md"
    (lines,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(lines, {"Order": Order})


def test_a_model_round_trips_with_its_nested_ones_through_json() -> None:
    recorded = json.loads(json.dumps(encode({"order": [ORDER]})))
    found = decode(recorded)["order"][0]
    assert found == ORDER
    assert type(found.lines[0].price) is Decimal


def test_what_does_not_fit_the_model_any_more_is_told_and_not_guessed() -> None:
    recorded = json.loads(json.dumps(encode(ORDER)).replace('"a"', "7"))
    with pytest.raises(UnreadableValue) as told:
        decode(recorded)
    assert isinstance(told.value.__cause__, ValidationError)


def test_an_unregistered_model_is_refused_by_its_place() -> None:
    with pytest.raises(UnrecordableValue, match=r"value\[0\]"):
        encode([Unregistered(a=1)])
