"""Read what a model's answer says about its own cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOKEN_COUNTS = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "input_tokens",
    "output_tokens",
)


def usage_of(answer: Any) -> dict[str, int]:
    """Return the token counts that an answer carries under `usage`, by the providers' own names; often none."""
    usage = answer.get("usage") if isinstance(answer, Mapping) else getattr(answer, "usage", None)
    counts = {}
    for name in TOKEN_COUNTS:
        count = usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
        if isinstance(count, int) and not isinstance(count, bool):
            counts[name] = count
    return counts
