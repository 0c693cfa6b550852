"""What the books of the three services prove, said as findings that have to be empty.

Pure functions over rows: what is judged here was written by the services, never by the runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .services import Effect

UNDO_OF = {"unreserve": "reserve", "refund": "charge", "recall": "ship"}
FORWARD = ("reserve", "charge", "ship")
KINDS = (*FORWARD, *UNDO_OF)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that must not be; `orders` are those for which it is."""

    name: str
    orders: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Return True when there is nothing to find."""
        return not self.orders


def by_kind(effects: Iterable[Effect]) -> dict[str, int]:
    """Count the effects of each kind, in the order in which a life has them."""
    counted = Counter(effect.kind for effect in effects)
    return {kind: counted[kind] for kind in KINDS}


def judge(effects: Iterable[Effect], ends: Mapping[str, str]) -> list[Finding]:
    """Hold the books against how the orders ended (order id to the state of its run)."""
    done: dict[str, Counter[str]] = defaultdict(Counter)
    for effect in effects:
        done[effect.order_id][effect.kind] += 1
    left = {order: _left(counted) for order, counted in done.items()}
    return [
        _find("effects done twice", done, _twice),
        _find("orders charged, neither shipped nor refunded", left, _stranded("charge")),
        _find("orders reserved, neither shipped nor released", left, _stranded("reserve")),
        _find("orders shipped, not charged", left, lambda has: has["ship"] > has["charge"]),
        Finding("orders whose books deny their run's end", tuple(_denied(left, ends))),
    ]


def went_on_at(effects: Iterable[Effect], killed_at: float) -> float | None:
    """Return when the first process that was born after a kill did something, or None."""
    effects = list(effects)
    dead = {effect.pid for effect in effects if effect.at <= killed_at}
    later = [effect.at for effect in effects if effect.at > killed_at and effect.pid not in dead]
    return min(later, default=None)


def _left(counted: Mapping[str, int]) -> Counter[str]:
    """Take the undone from the done: what is left of each kind."""
    undone = {kind: counted.get(undo, 0) for undo, kind in UNDO_OF.items()}
    return Counter({kind: counted.get(kind, 0) - undone[kind] for kind in FORWARD})


def _twice(counted: Mapping[str, int]) -> bool:
    """An order is one order, so a second row is one too many, whatever key it came with."""
    return any(number > 1 for number in counted.values())


def _stranded(kind: str) -> Callable[[Mapping[str, int]], bool]:
    return lambda has: has[kind] > 0 and has["ship"] < has[kind]


def _denied(left: Mapping[str, Counter[str]], ends: Mapping[str, str]) -> Iterable[str]:
    """Yield the orders of which not all is there although committed, or something although undone."""
    for order in sorted(left.keys() | ends.keys()):
        has = {left[order][kind] if order in left else 0 for kind in FORWARD}
        if has != {"COMMITTED": {1}, "COMPENSATED": {0}}.get(ends.get(order, "no run")):
            yield order


def _find(
    name: str,
    stories: Mapping[str, Counter[str]],
    wrong: Callable[[Mapping[str, int]], bool],
) -> Finding:
    return Finding(name, tuple(sorted(order for order, has in stories.items() if wrong(has))))
