"""Find the browser and its driver.

They are looked for on PATH, or where ``COMMANDER_TEST_CHROMIUM`` and ``COMMANDER_TEST_CHROMEDRIVER`` say.
Apart from browser.py, so that whoever only asks for them needs no selenium.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "chromedriver": ("chromedriver",),
}
PACKAGES = {"chromium": "chromium", "chromedriver": "chromium-driver"}
HINT = f"sudo apt-get install {' '.join(PACKAGES.values())}"


def find_program(name: str) -> str | None:
    """Return the path of the browser or of its driver, or None."""
    given = os.environ.get(f"COMMANDER_TEST_{name.upper()}")
    return given or next(filter(None, map(shutil.which, PROGRAMS[name])), None)


def missing_programs() -> list[str]:
    """Return what has to be installed before a browser can be driven."""
    return [name for name in PROGRAMS if find_program(name) is None]
