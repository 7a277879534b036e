"""What holds for the page of any service: EBBTIDE_PAGE_URL names a running one; else a fake one shows each report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

import fake
import reports
from conftest import Opener
from test_schema import VALIDATOR

LIMIT = 60 * 1024
RUNNING = os.environ.get("EBBTIDE_PAGE_URL")


@pytest.fixture(params=["running"] if RUNNING else list(reports.ALL))
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Returns the address of a service, with a slash at its end."""
    if RUNNING:
        yield RUNNING.rstrip("/") + "/"
        return
    with fake.serving() as service:
        service.report = reports.ALL[request.param]()
        yield service.url


def read(address: str) -> tuple[bytes, Any]:
    """Returns the body and the headers of an answer."""
    with urlopen(address, timeout=20) as answer:
        return answer.read(), answer.headers


def test_files_are_small_and_allow_nothing_else(url: str) -> None:
    size = 0
    for name, (_, kind) in fake.FILES.items():
        body, headers = read(url + name)
        size += len(body)
        assert headers["Content-Security-Policy"] == fake.POLICY, name
        assert headers["X-Content-Type-Options"] == "nosniff", name
        assert headers["Content-Type"].partition(";")[0] == kind.partition(";")[0], name
    assert size < LIMIT


def test_reports_fit_the_schema(url: str) -> None:
    body, headers = read(url + "api/status")
    assert headers["Content-Type"].partition(";")[0] == "application/json"
    VALIDATOR.validate(json.loads(body))
    with urlopen(url + "api/events", timeout=20) as stream:
        assert stream.headers["Content-Type"].partition(";")[0] == "text/event-stream"
        lines = [stream.readline().decode().rstrip("\n") for _ in range(3)]
    fields = dict(line.partition(":")[::2] for line in lines if line)
    assert fields["event"].strip() == "full"
    VALIDATOR.validate(json.loads(fields["data"]))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_is_live_quiet_and_accessible(opened: Opener, url: str, scheme: str, width: int) -> None:
    # axe needs a clock that runs.
    page = opened(url, stopped=False, width=width, color_scheme=scheme, reduced_motion="reduce")
    expect(page.locator("#live")).to_contain_text("Live")
    expect(page.locator("#health h1")).not_to_be_empty()
    expect(page).to_have_title(page.locator("#health .word").inner_text() + " · Ebbtide")
    running = page.locator("#running li.row").count()
    assert running <= 50
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    found = [
        (violation["id"], [node["html"][:160] for node in violation["nodes"][:3]])
        for violation in Axe().run(page).response["violations"]
    ]
    assert not found
