"""Say which plain tasks are observed: all, their failures, none, or those of some names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from celery_commander.engine import SettingsError, suggest

KEYWORDS = ("all", "failures", "none")
OWN_PREFIX = "celery_commander."


class Interest(Enum):
    """How much is recorded of one task."""

    NOTHING = 0
    FAILURES = 1
    EVERYTHING = 2


@dataclass(frozen=True, slots=True)
class Observe:
    """Hold what `commander_observe` says; `patterns` are shell patterns over task names, of which one must match."""

    otherwise: Interest
    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: object) -> Observe:
        """Read the setting: `all`, `failures`, `none`, or name patterns as a list or as text with commas.

        Raises:
            SettingsError: it is neither; a keyword that was probably meant is named. A task whose name looks like a
                keyword can be given in a list.

        """
        if isinstance(value, str):
            word = value.strip().lower()
            if word in KEYWORDS:
                return cls(_KEYWORD_MEANS[word])
            close = None if set(word) & set("*?[,.") else suggest(word, KEYWORDS)
            if close is not None:
                raise SettingsError("observe", value, _MAY_BE, close)
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple | set | frozenset) or not value:
            raise SettingsError("observe", value, _MAY_BE)
        if not all(isinstance(each, str) and each.strip() for each in value):
            raise SettingsError("observe", value, _MAY_BE)
        return cls(Interest.NOTHING, tuple(value))

    def interest(self, name: str) -> Interest:
        """Return how much is recorded of the task of this name.

        Of our own tasks only failures are, unless a pattern asks for them: what they do stands in the log already.
        """
        if self.patterns:
            wanted = any(fnmatchcase(name, pattern) for pattern in self.patterns)
            return Interest.EVERYTHING if wanted else Interest.NOTHING
        if self.otherwise is Interest.EVERYTHING and name.startswith(OWN_PREFIX):
            return Interest.FAILURES
        return self.otherwise

    @property
    def is_nothing(self) -> bool:
        """Tell whether nobody is ever observed."""
        return self.otherwise is Interest.NOTHING and not self.patterns


_MAY_BE = "it must be all, failures, none, or name patterns (a list, or text with commas)"
_KEYWORD_MEANS = {
    "all": Interest.EVERYTHING,
    "failures": Interest.FAILURES,
    "none": Interest.NOTHING,
}
