"""The page of the real program, while the sandbox's storm rages. EBBTIDE_SANDBOX names the built example."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from playwright.sync_api import expect

from conftest import Opener, row
from test_schema import VALIDATOR

BLOCKED = "default/ledger-0"
"""The pod that a budget holds in the sandbox's storm, on node-03, until its drain fails."""

PATIENCE = 60_000
"""Milliseconds in which the storm, of half a minute, must have shown something."""


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[str]:
    """Runs the sandbox; returns the address of its page once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [os.environ["EBBTIDE_SANDBOX"], "--hold", "--status-address", address]
    log = tmp_path / "sandbox.log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            while not answers(address):
                assert process.poll() is None, log.read_text()
            assert f"http://{address}/" in log.read_text().splitlines()[0], "its first line is the page's address"
            yield f"http://{address}/"
        finally:
            process.terminate()


def answers(address: str) -> bool:
    """Returns whether somebody answers there."""
    with suppress(URLError), urlopen(f"http://{address}/api/status", timeout=20):
        return True
    return False


def frames(url: str) -> Iterator[tuple[str, Any]]:
    """Returns the events of the service: name and data."""
    with urlopen(f"{url}api/events", timeout=60) as stream:
        name = ""
        for line in stream:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)


def test_a_storm_is_shown_live_and_without_reloading(sandbox: str, opened: Opener) -> None:
    page = opened(sandbox, stopped=False)
    page.evaluate("window.same = true")
    expect(page.locator("#health .word")).to_have_text("Blocked", timeout=PATIENCE)
    expect(page.locator("main")).to_contain_text(BLOCKED)
    expect(row(page, "node-03").first).to_contain_text("asg-terminate")
    # Its drain ends without the pod.
    expect(page.locator("#health .word")).to_have_text("Failed", timeout=PATIENCE)
    expect(page.locator("#running li.row")).to_have_count(0, timeout=PATIENCE)
    expect(row(page, "node-03").first).to_contain_text("blocked")
    expect(page.locator("#live")).to_contain_text("Live")
    assert page.evaluate("window.same"), "the page was not loaded again"


def test_every_event_fits_the_schema_and_all_of_them_make_the_report(sandbox: str) -> None:
    rows: dict[str, Any] = {}
    names = []
    for name, report in frames(sandbox):
        VALIDATOR.validate(report)
        names.append(name)
        if name == "full":
            rows = {}
        rows |= {each["id"]: each for each in report["interruptions"]}
        for gone in report.get("removed", []):
            rows.pop(gone, None)
        if len(rows) > 10 and all(each["ended"] for each in rows.values()):
            break
    assert names[0] == "full"
    assert names.count("update") > 3
    with urlopen(f"{sandbox}api/status", timeout=20) as answer:
        whole = json.load(answer)
    VALIDATOR.validate(whole)
    assert {each["id"]: each for each in whole["interruptions"]} == rows
