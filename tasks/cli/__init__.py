"""The command line: `celery -A app commander …`, and `celery-commander …` where there is no app."""

from .group import commander, main

__all__ = ["commander", "main"]
