"""Tell long-lived objects about forks, without keeping them alive.

A prefork pool forks while everything is open. A child that went on with its parent's connection or lock would corrupt
the one and fake the other, so such objects are asked to put themselves in order: `before` in the parent, then `parent`
and `child` on either side. ``subprocess`` does not come by here; its children lose every descriptor at exec, as all of
ours are opened close-on-exec. Python has no way to take a hook back, so what stays of a collected object is one empty
call per fork.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    parent: Callable[[], object] | None = None,
    child: Callable[[], object] | None = None,
) -> None:
    """Call these bound methods around every later fork, for as long as their objects live."""
    os.register_at_fork(
        before=_weakly(before), after_in_parent=_weakly(parent), after_in_child=_weakly(child)
    )


def _weakly(method: Callable[[], object] | None) -> Callable[[], None]:
    reference = weakref.WeakMethod(method) if method is not None else None

    def call() -> None:
        living = reference() if reference is not None else None
        if living is not None:
            living()

    return call
