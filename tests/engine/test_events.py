"""An event is made fast and is still what it always was: the same bytes, the same frozen value, an id of its own."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_commander.engine import Event, NewEvent
from celery_commander.engine import events as events_module
from celery_commander.engine.chain import check_id
from celery_commander.engine.events import FreshEvent, encode_data, format_timestamp
from celery_commander.engine.ids import new_event_ids
from tests.engine.logs import open_log
from tests.kit import ManualClock

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)


@given(OBJECTS)
def test_the_text_of_data_is_the_standard_librarys_byte_for_byte(data: dict[str, object]) -> None:
    standard = json.dumps(
        data, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    )
    assert encode_data(data) == (standard, data)


def test_without_the_encoder_in_c_the_text_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"b": [1, 2.5, None, True, 'é\n"\u2028'], "a": {"z": {}, "y": []}}
    text, _ = encode_data(data)
    monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    assert events_module._encoder()(data) == text


def test_what_an_append_returns_is_an_event_like_any_other(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        event = log.append("note", {"i": 1}, run_id="r", token=3, n=2)
        (read,) = log.history("r")
    assert type(event) is type(read) is Event
    assert event == read
    assert repr(event) == repr(read)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.seq = 1  # type: ignore[misc]  # this is the test
    assert dataclasses.replace(event, seq=9).seq == 9


def test_a_fresh_event_has_the_fields_of_an_event_and_no_others() -> None:
    assert FreshEvent.__slots__ == Event.__slots__


def test_the_callers_data_may_change_after_the_append(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        data = {"list": [1]}
        event = log.append("note", data)
        data["list"].append(2)
        assert event.payload == {"list": [1]}


def test_the_ids_of_a_batch_are_as_good_as_single_ones(tmp_path: Path) -> None:
    now = ManualClock().wall()
    ids = new_event_ids(now, 200)
    assert len(set(ids)) == 200
    for each in ids:
        check_id(each)
        made = UUID(each)
        assert (made.version, made.variant) == (7, "specified in RFC 4122")
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", each)
    assert len({each[19] for each in ids}) == 4  # both free bits beside the variant are used
    assert new_event_ids(now, 0) == []
    with open_log(tmp_path) as log:
        appended = log.append_many([NewEvent("x", {}, id="mine"), NewEvent("x", {})])
    assert appended[0].id == "mine"
    assert UUID(appended[1].id).version == 7


def test_a_moment_of_any_zone_is_written_in_utc() -> None:
    moment = ManualClock().wall()
    assert format_timestamp(moment.astimezone()) == format_timestamp(moment)
    assert len(format_timestamp(moment.replace(microsecond=0))) == 27
