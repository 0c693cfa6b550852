"""Let a body return what Celery's own results may be: signatures, and handles on results."""

from __future__ import annotations

from typing import Any, Final

from celery import Signature, canvas, signature
from celery.result import ResultBase
from kombu.utils import json as kombu_json

from celery_commander.engine import register_type

_KINDS: Final = ("Signature", "_chain", "chain", "group", "_chord", "xmap", "xstarmap", "chunks")


def register_signatures() -> None:
    """Have signatures recorded as what they are: the dictionary that travels in a message."""
    for kind in _KINDS:
        cls = getattr(canvas, kind, None)
        if isinstance(cls, type) and issubclass(cls, Signature):
            register_type(cls, f"celery.{kind}", _packed, signature)


def as_result(value: Any) -> Any:
    """Return a body's value as Celery stores it: a handle on a result by its ids."""
    return value.as_tuple() if isinstance(value, ResultBase) else value


def _packed(sig: Signature) -> Any:
    return kombu_json.loads(kombu_json.dumps(sig))
