"""The browser, the fake service, and what must hold on every page: no error, and no request to anybody else."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

import fake
import reports

# The reader's clock is wrong by this much: time left is computed from the service's.
WRONG_BY = timedelta(hours=3, seconds=17)

# Chromium itself logs requests that fail, as those do that a test refuses.
REFUSED = "Failed to load resource"

expect.set_options(timeout=20_000)

Opened = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Runs the system's Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["EBBTIDE_CHROMIUM"], args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def service() -> Iterator[fake.Fake]:
    """Runs a fake service."""
    with fake.serving() as service:
        yield service


class Opener:
    """Opens pages, and checks at the end that nothing went wrong on them."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.errors: list[str] = []
        self.requests: list[str] = []

    def __call__(self, url: str, *, stopped: bool = True, width: int = 1280, **options: Any) -> Page:
        """Opens a page, by default with a clock that only the test moves."""
        context = self.browser.new_context(viewport={"width": width, "height": 800}, **options)
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.requests.append(request.url))
        if stopped:
            begin = reports.NOW + WRONG_BY
            page.clock.install(time=begin)
            page.clock.pause_at(begin + timedelta(seconds=1))
        page.goto(url)
        return page

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and REFUSED not in message.text:
            self.errors.append(message.text)

    def end(self, origins: tuple[str, ...]) -> None:
        """Checks what the pages did, and closes them."""
        foreign = [url for url in self.requests if not url.startswith((*origins, "data:"))]
        for context in self.browser.contexts:
            context.close()
        assert not self.errors
        assert not foreign


@pytest.fixture
def opened(browser: Browser) -> Iterator[Opener]:
    """Opens any pages of loopback."""
    opener = Opener(browser)
    yield opener
    opener.end(("http://127.0.0.1:", "http://localhost:"))


@pytest.fixture
def shown(browser: Browser, service: fake.Fake) -> Iterator[Opened]:
    """Shows a report of the fake service, live."""
    opener = Opener(browser)

    def show(report: reports.Report, *, live: bool = True, path: str = "", **options: Any) -> Page:
        service.report = report
        page = opener(service.url + path, **options)
        if live:
            expect(page.locator("#live")).to_contain_text("Live")
        return page

    yield show
    opener.end((service.url,))


def row(page: Page, name: str) -> Locator:
    """Returns the row of a Node, by its first label."""
    title = page.locator("h3, h4").filter(has_text=re.compile(rf"^{re.escape(name)}(\.|$)"))
    return page.locator("li.row").filter(has=title)
