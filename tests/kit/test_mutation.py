"""The mutation run finds what it is to delete; an empty list of survivors would else say nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.kit.mutants import GROUPS, LOG, OWNERSHIP, RECOVERY, Mutant, all_mutants, mutants_of
from tests.kit.mutation_page import EXPLAINED
from tests.kit.noticing import Runner
from tests.source_tree import ROOT

SOURCE = """
def write(self, fd):
    while not self._files.try_lock(fd):
        pass
    if self.known > 3 and not ("ü" in self.name):
        raise ValueError
    if self.known:
        self.count = 1
    self._files.sync(
        fd,
    )
    self._files.unlock(fd)
    _refuse_another(fd)
"""
OWNED = '''
CLAIM = """
UPDATE leases SET holder = :holder
WHERE holder IS NULL
   OR (dead = :dead AND token = :token)
"""
RENEW = "UPDATE leases SET until = 0 WHERE run_id = ? AND holder = ?"
class Lease:
    def is_mine(self):
        if self.pid != pid:
            return False
        return self.until and now() < self.until
    def holds(self, token):
        return token == self.token
    def drop(self):
        return delete(runs).where(runs.c.token < self.token)
'''
SOME = """
def test_well():
    pass
def test_fails():
    assert False
def test_hangs():
    while True:
        pass
"""


def test_each_kind_is_found_and_its_place_is_exact() -> None:
    found = list(mutants_of("a.py", SOURCE))
    assert [(each.kind, each.line, each.text) for each in found] == [
        ("lock", 3, "self._files.try_lock(fd)"),
        ("clause", 5, "self.known > 3"),
        ("check", 5, 'self.known > 3 and not ("ü" in self.name)'),
        ("clause", 5, 'not ("ü" in self.name)'),
        ("sync", 9, "self._files.sync( fd, )"),
        ("lock", 12, "self._files.unlock(fd)"),
        ("check", 13, "_refuse_another(fd)"),
    ]
    assert {each.where for each in found} == {"write"}
    _all_compile(SOURCE, found)


def test_what_decides_who_owns_a_run_is_found_too() -> None:
    found = list(mutants_of("a.py", OWNED, answers=True))
    assert [(each.where, each.kind, each.text, each.instead) for each in found] == [
        ("CLAIM", "sql", "holder IS NULL", "1 = 0"),
        ("CLAIM", "sql", "(dead = :dead AND token = :token)", "1 = 0"),
        ("CLAIM", "sql", "dead = :dead", "1 = 1"),
        ("CLAIM", "sql", "token = :token", "1 = 1"),
        ("RENEW", "sql", "run_id = ?", "1 = 1"),
        ("RENEW", "sql", "holder = ?", "1 = 1"),
        ("Lease.is_mine", "check", "self.pid != pid", "False"),
        ("Lease.is_mine", "clause", "self.until", "True"),
        ("Lease.is_mine", "clause", "now() < self.until", "True"),
        ("Lease.holds", "answer", "token == self.token", "True"),
        ("Lease.drop", "sql", "runs.c.token < self.token", "True"),
    ]
    _all_compile(OWNED, found)


def test_every_mutant_is_one_and_has_a_name_of_its_own() -> None:
    for group, least in ((LOG, 150), (OWNERSHIP, 90), (RECOVERY, 50)):
        mutants = all_mutants(group)
        assert {"check", "clause"} < {each.kind for each in mutants}
        assert len({(each.path, each.span, each.instead) for each in mutants}) == len(mutants)
        assert len({each.key for each in mutants}) == len(mutants) > least


@pytest.mark.slow
def test_the_first_test_that_fails_or_hangs_has_noticed(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SOME, encoding="utf-8")
    runner = Runner(tmp_path, {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])})
    well, fails, hangs = (f"test_some.py::test_{name}" for name in ("well", "fails", "hangs"))

    def noticed(*tests: str, without: tuple[str, ...] = ()) -> tuple[str, bool]:
        return runner.noticed(tests, silence_seconds=20, without=without)

    assert runner.names(["test_some.py"]) == {well, fails, hangs}
    assert noticed("test_some.py") == (fails, False)
    assert noticed("test_some.py", without=(fails,)) == (hangs, True)
    assert noticed("test_some.py", without=(fails, hangs)) == ("", False)
    assert noticed(well) == noticed(fails, without=(fails,)) == ("", False)
    assert runner.fails(fails, 20)


def test_no_mutant_is_explained_that_is_not_there() -> None:
    known = {
        (each.path, each.where, each.text)
        for group in GROUPS.values()
        for each in all_mutants(group)
    }
    assert set(EXPLAINED) <= known


def _all_compile(source: str, found: list[Mutant]) -> None:
    data = source.encode()
    for each in found:
        start, stop = each.span
        compile(data[:start] + each.instead.encode() + data[stop:], each.path, "exec")
