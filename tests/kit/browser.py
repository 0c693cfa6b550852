"""Drive a real headless Chromium, which may reach nothing but this machine.

A page that asks for anything from elsewhere gets an error, which `console` shows. The network is cut by name:
a page that names an address in numbers is not stopped.
"""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from selenium.webdriver import ChromeOptions, Remote
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.command import Command

from .group import process_group
from .programs import HINT, find_program
from .servers import free_port
from .waiting import wait_until

START_SECONDS = 90


@dataclass(slots=True)
class Browser:
    """One window. Text is what a reader sees, not what the page was written with."""

    driver: Remote

    def open(self, url: str, *, user: str | None = None) -> None:
        """Go to a page and wait until it is there; `user` is `name:password` for basic authentication."""
        headers = {}
        if user is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        self._devtools("Network.enable", {})
        self._devtools("Network.setExtraHTTPHeaders", {"headers": headers})
        self.driver.get(url)

    def text(self, selector: str = "body") -> str:
        """Return the text of the first element that a CSS selector finds."""
        return str(self.driver.find_element(By.CSS_SELECTOR, selector).text)

    def click(self, link: str) -> None:
        """Follow the link of this text."""
        self.driver.find_element(By.LINK_TEXT, link).click()

    def table(self, selector: str) -> list[list[str]]:
        """Return the cells of a table's body."""
        rows = self.driver.execute_script(
            "return [...document.querySelectorAll(arguments[0] + ' tbody tr')]"
            ".map(row => [...row.cells].map(cell => cell.innerText.trim()))",
            selector,
        )
        return [[str(cell) for cell in row] for row in rows]

    def script(self, code: str) -> object:
        """Return what a piece of JavaScript returns."""
        found: object = self.driver.execute_script(code)
        return found

    def console(self) -> list[str]:
        """Return the errors that the page has written to the console since this was asked last."""
        logged = self.driver.execute(Command.GET_LOG, {"type": "browser"})["value"]
        return [str(entry["message"]) for entry in logged if entry["level"] == "SEVERE"]

    def photograph(self, path: Path) -> None:
        """Write a picture of the whole page."""
        self.driver.set_window_size(1280, 600)
        height = self.driver.execute_script("return document.documentElement.scrollHeight")
        self.driver.set_window_size(1280, max(int(height), 600) + 160)
        self.driver.save_screenshot(str(path))

    def _devtools(self, command: str, parameters: Mapping[str, object]) -> None:
        self.driver.execute("executeCdpCommand", {"cmd": command, "params": dict(parameters)})


@contextmanager
def chromium(directory: Path) -> Iterator[Browser]:
    """Run a browser, with its profile in *directory*, until the block ends or the test run is killed."""
    port = free_port()
    driver_program = find_program("chromedriver")
    assert driver_program is not None, HINT
    url = f"http://127.0.0.1:{port}"
    with process_group([driver_program, f"--port={port}"], directory, name="chromedriver") as group:
        wait_until(lambda: _ready(url), seconds=START_SECONDS, what=group.tail)
        with Remote(url, options=_options(directory)) as driver:
            driver.set_page_load_timeout(START_SECONDS)
            yield Browser(driver)


def _options(directory: Path) -> ChromeOptions:
    options = ChromeOptions()
    options.binary_location = find_program("chromium") or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",  # a container's root may have no sandbox
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-proxy-server",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--window-size=1280,900",
        f"--user-data-dir={directory / 'profile'}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return options


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/status", timeout=2) as answer:
            return b'"ready":true' in answer.read()
    except (urllib.error.URLError, ConnectionError):
        return False
