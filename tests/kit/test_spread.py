import pytest

from tests.kit.spread import group_of, scattered


def test_what_is_dear_to_make_is_wanted_in_one_process_only(request: pytest.FixtureRequest) -> None:
    assert scattered(request.session.items) == []


def test_a_test_that_wants_what_is_dear_and_stays_nowhere_is_found(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.kit.spread.DEAR", frozenset({"monkeypatch"}))
    assert request.node.nodeid in scattered(request.session.items)


def test_tests_of_one_server_stay_together_and_others_go_where_there_is_room() -> None:
    names = [
        "tests/celery/test_kills.py::test_a[rabbitmq]",
        "tests/kit/test_services.py::test_postgres_answers[1]",
        "tests/flower/test_pages.py::test_a",
        "tests/celery/test_kills.py::test_a[redis]",
    ]
    first, second, third, fourth = map(group_of, names)
    assert first == second != third
    assert first
    assert third
    assert fourth is None
