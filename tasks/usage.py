"""Read what a model's answer says about itself: what it cost, and by which name its provider knows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

TOKEN_COUNTS: Final = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "input_tokens",
    "output_tokens",
)
REQUEST_IDS: Final = ("request_id", "_request_id", "id")
"""Where answers carry the provider's id of the request; the first that is text counts."""

LONGEST_ID: Final = 200


def whole(answer: Any) -> Any:
    """Return an answer that is streamed as the list of its parts, any other as it is."""
    return list(answer) if isinstance(answer, Iterator) else answer


def meta_of(answer: Any, seconds: float) -> dict[str, Any]:
    """Return what is recorded beside an answer: token counts by the provider's names, seconds, request id.

    Of a streamed answer the last part that says so counts.
    """
    meta: dict[str, Any] = {"seconds": round(seconds, 6)}
    for part in answer if isinstance(answer, list) else (answer,):
        meta |= usage_of(part) | _request_id(part)
    return meta


def usage_of(answer: Any) -> dict[str, int]:
    """Return the token counts that an answer carries under `usage`, by the providers' own names; often none."""
    usage, counts = _field(answer, "usage"), {}
    for name in TOKEN_COUNTS:
        count = _field(usage, name)
        if isinstance(count, int) and not isinstance(count, bool):
            counts[name] = count
    return counts


def _request_id(answer: Any) -> dict[str, str]:
    found = (_field(answer, name) for name in REQUEST_IDS)
    text = next((each for each in found if isinstance(each, str) and each), None)
    return {} if text is None else {"request_id": text[:LONGEST_ID]}


def _field(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, Mapping) else getattr(answer, name, None)
