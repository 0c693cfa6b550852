"""Lend Flower's own templates to our pages, and our entry to Flower's navigation."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from tornado.template import Loader, Template

logger = logging.getLogger(__name__)

OURS: Final = Path(__file__).with_name("templates")
_PREFIX: Final = "commander-"
_NAVIGATION: Final = "navbar.html"
_ENTRY: Final = b'{% include "commander-nav.html" %}'
_END_OF_LIST: Final = b"</ul>"


class Templates(Loader):
    """Load Flower's templates from its folder, and those that begin with `commander-` from ours.

    Flower has no place for further entries in its navigation, so they are put at the end of its first list while it is
    loaded; no file is changed. In a Flower that draws it otherwise the entry is missing, and the pages are there.
    """

    def _create_template(self, name: str) -> Template:
        if name == _NAVIGATION:
            return Template(_with_entry(Path(self.root, name).read_bytes()), name=name, loader=self)
        if name.startswith(_PREFIX):
            return Template((OURS / name).read_bytes(), name=name, loader=self)
        return super()._create_template(name)


def _with_entry(navigation: bytes) -> bytes:
    before, end, after = navigation.partition(_END_OF_LIST)
    if not end:
        logger.warning(
            "Flower's navigation has no list: the pages are at /durable-runs all the same."
        )
        return navigation
    return before + _ENTRY + end + after
