"""Show a value of anybody's in a message, within a bound."""

from __future__ import annotations

LONGEST = 100


def shown(value: object) -> str:
    """Return the value's repr, cut where it grows long; its class where it has none."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # whatever it is, it is named by its key as well
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
