"""A headless Chromium driven through chromedriver in plain W3C WebDriver.

Debian's packages are `chromium` and `chromium-driver`. Without them tests are skipped, or fail under continuous
integration.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from docs.screenshot import CHROMIUM_OPTIONS, chromium

_ARGUMENTS = (*CHROMIUM_OPTIONS, "--window-size=1400,1000")
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def programs() -> tuple[str, str] | None:
    """Find Chromium and its driver; None where one of them is missing."""
    browser, driver = chromium(), shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


def required_programs() -> tuple[str, str]:
    """Return Chromium and its driver; without them skip the test, or fail it under continuous integration."""
    if installed := programs():
        return installed
    reason = "Chromium or chromedriver was not found: install Debian's chromium and chromium-driver"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@dataclass(frozen=True)
class Browser:
    """One session; every call is one HTTP request to the driver."""

    session: str

    def call(self, path: str, **body: Any) -> Any:
        """Send one command and return its value. Raises HTTPError where the browser refuses."""
        request = urllib.request.Request(
            f"{self.session}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with _DIRECT.open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path) -> None:
        """Load a file, and forget what was logged before."""
        self.call("url", url="about:blank")
        self.messages(), self.requests()
        self.call("url", url=page.resolve().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function body of JavaScript returns."""
        return self.call("execute/sync", script=script, args=list(arguments))

    def messages(self) -> list[str]:
        """Return the console's warnings and errors since last asked, uncaught exceptions among them.

        The driver hears of them after the page has loaded, in their order: what was logged before a line of our own is
        there when that line is. Raises AssertionError where the line does not come.
        """
        last, entries = f"nothing before {uuid.uuid4()} is missing", list[dict[str, str]]()
        self.run("console.log(arguments[0])", last)
        for _ in range(600):
            entries += self.call("se/log", type="browser")
            if any(last in entry["message"] for entry in entries):
                return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]
            time.sleep(0.05)
        raise AssertionError("the console's messages did not come")

    def requests(self) -> list[str]:
        """Return the addresses requested since last asked, the page's own file left out."""
        events = [json.loads(entry["message"])["message"] for entry in self.call("se/log", type="performance")]
        urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in urls if not url.startswith(("file:", "about:"))]

    def developer(self, command: str, **parameters: Any) -> Any:
        """Send one command of the Chrome DevTools protocol."""
        return self.call("goog/cdp/execute", cmd=command, params=parameters)


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Start driver and browser with an empty profile, and end both afterwards."""
    program, driver = required_programs()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [driver, "--port=0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                browser = _session(f"http://127.0.0.1:{_port(process)}", program, profile)
                try:
                    yield browser
                finally:
                    _DIRECT.open(urllib.request.Request(browser.session, method="DELETE"), timeout=60).close()
            finally:
                process.terminate()


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"started successfully on port (\d+)", line):
            return int(match[1])
    raise AssertionError("chromedriver ended before it listened")


def _session(address: str, program: str, profile: str) -> Browser:
    options = {"binary": program, "args": [*_ARGUMENTS, f"--user-data-dir={profile}"]}
    logging = {"browser": "ALL", "performance": "ALL"}
    expected = {"goog:chromeOptions": options, "goog:loggingPrefs": logging}
    made = Browser(f"{address}").call("session", capabilities={"alwaysMatch": expected})
    return Browser(f"{address}/session/{made['sessionId']}")
