"""What all our pages share: Flower's own handler, the app's commander, and who is asking."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from flower.views import BaseHandler
from tornado.web import HTTPError

from celery_commander.engine import CommanderError

from .reader import Reader

if TYPE_CHECKING:
    from ..install import Commander

logger = logging.getLogger(__name__)


class Handler(BaseHandler):
    """A page of Flower that reads the log; its authentication, its look and its address prefix are Flower's."""

    def initialize(self, reader: Reader) -> None:
        """Take what all pages share."""
        self.reader = reader

    def set_default_headers(self) -> None:
        """Let no other site read what is here; an old Flower without authentication would."""
        super().set_default_headers()
        for header in ("Origin", "Headers", "Methods"):
            self.clear_header(f"Access-Control-Allow-{header}")

    @property
    def commander(self) -> Commander:
        """Return the commander of the app that Flower watches.

        Raises:
            HTTPError: 404, it has none.
        """
        commander: Commander | None = getattr(self.capp, "commander", None)
        if commander is None:
            raise HTTPError(404, "This app has no commander: add Commander(app) where it is made.")
        return commander

    @property
    def secured(self) -> bool:
        """Tell whether Flower asks its users who they are."""
        options = self.application.options
        return bool(options.basic_auth or options.auth)

    def is_known_user(self) -> bool:
        """Tell whether an authenticated user asks. Nobody is one where there is no authentication.

        Raises:
            HTTPError: 401, credentials were given and are wrong.
        """
        if not self.secured:
            return False
        if self.application.options.basic_auth and "Authorization" not in self.request.headers:
            return False
        return bool(self.current_user)

    def address(self, name: str, *parts: str, **query: str | int | None) -> str:
        """Return the address of a page of ours; what is None or empty is left out of its query."""
        given = {key: value for key, value in query.items() if value not in (None, "")}
        path: str = self.reverse_url(name, *parts)
        return f"{path}?{urlencode(given)}" if given else path

    def query(self, name: str) -> str:
        """Return one argument of the query as it was sent; templates escape it where it is shown."""
        return str(self.get_query_argument(name, "")).strip()

    def say(self, answer: dict[str, Any], *, failing: bool) -> None:
        """Answer with JSON that nobody may keep; 503 when failing."""
        self.set_header("Cache-Control", "no-store")
        if failing:
            self.set_status(503)
        self.write(answer)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Write one line about a log that cannot be read, not a traceback."""
        if isinstance(value, CommanderError | OSError):
            logger.warning("%s cannot be answered: %s", self.request.path, value)
        else:
            super().log_exception(typ, value, tb)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Show why the log cannot be read; paths are for authenticated users."""
        error = (kwargs.get("exc_info") or (None, None, None))[1]
        if isinstance(error, CommanderError | OSError):
            self.set_status(503)
            reason = str(error) if self.secured else None
            self.render("commander-problem.html", reason=reason)
        else:
            super().write_error(status_code, **kwargs)
