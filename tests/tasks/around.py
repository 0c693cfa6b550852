"""A task class like those of web frameworks: it enters a context around every body."""

from __future__ import annotations

from typing import Any, ClassVar

from celery import Task


class AroundTask(Task):
    abstract = True
    around: ClassVar[list[str]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.around.append("entered")
        try:
            return self.run(*args, **kwargs)
        finally:
            self.around.clear()
