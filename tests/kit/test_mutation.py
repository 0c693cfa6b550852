"""The mutation run finds what it is to delete; an empty list of survivors would else say nothing."""

from __future__ import annotations

from tests.kit.mutation import all_mutants, mutants_of

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


def test_each_kind_is_found_and_its_place_is_exact() -> None:
    found = list(mutants_of("a.py", SOURCE))
    assert [(each.kind, each.line, each.text) for each in found] == [
        ("lock", 3, "self._files.try_lock(fd)"),
        ("check", 5, 'self.known > 3 and not ("ü" in self.name)'),
        ("sync", 9, "self._files.sync( fd, )"),
        ("lock", 12, "self._files.unlock(fd)"),
        ("check", 13, "_refuse_another(fd)"),
    ]
    data = SOURCE.encode()
    for each in found:
        start, stop = each.span
        compile(data[:start] + each.instead.encode() + data[stop:], each.path, "exec")


def test_every_mutant_of_the_log_is_one() -> None:
    mutants = all_mutants([])
    assert {each.kind for each in mutants} == {"sync", "lock", "check"}
    assert len({(each.path, each.span) for each in mutants}) == len(mutants) > 80
