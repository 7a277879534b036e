"""A thousand rows, the keyboard, motion."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

import reports
from conftest import Opened, row


def test_a_thousand_rows_are_pages_of_fifty(shown: Opened) -> None:
    page = shown(reports.storm())
    rows = page.locator("#running li.row")
    expect(rows).to_have_count(50)
    expect(page.locator("#running h3").nth(0)).to_have_text("Blocked")
    expect(page.locator("#running .row.blocked")).to_have_count(11)
    assert page.locator("#running h4").nth(11).inner_text() == reports.node(0)
    pages = page.get_by_role("navigation", name="Pages: running")
    expect(pages).to_contain_text("1–50 of 1,000")
    onward = pages.get_by_role("button", name="Next")
    onward.focus()
    page.keyboard.press("Enter")
    expect(pages).to_contain_text("51–100 of 1,000")
    page.keyboard.press("Space")
    expect(pages).to_contain_text("101–150 of 1,000")
    expect(onward).to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(pages).to_contain_text("51–100 of 1,000")
    pages.get_by_role("button", name="Previous").press("Enter")
    pages.get_by_role("button", name="Previous").press("Enter")
    expect(pages).to_contain_text("1–50 of 1,000")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ip-10-0-3-200", ["ip-10-0-3-200"]),
        ("I-0ABC0000000001F4", ["ip-10-0-1-244"]),
        ("zk-102", ["ip-10-0-0-102"]),
        ("7d1f0007", ["ip-10-0-0-7"]),
        ("data/kafka spot ip-10-0-1-40", ["ip-10-0-1-40"]),
        ("nowhere", []),
    ],
)
def test_the_filter_finds(shown: Opened, words: str, found: list[str]) -> None:
    page = shown(reports.storm())
    page.get_by_label("Filter").fill(words)
    rows = page.locator("#running li.row")
    expect(rows).to_have_count(len(found))
    for name in found:
        expect(row(page, name)).to_be_visible()
    if not found:
        expect(page.locator("#running")).to_contain_text("No running interruption matches.")
    page.get_by_label("Filter").fill("")
    expect(rows).to_have_count(50)


def test_the_filter_by_state(shown: Opened) -> None:
    page = shown(reports.storm())
    states = page.get_by_role("group", name="Show by state")
    expect(states.get_by_role("button", name="all 1,060")).to_have_attribute("aria-pressed", "true")
    states.get_by_role("button", name="blocked 11").press("Enter")
    expect(page.locator("#running li.row")).to_have_count(11)
    expect(page.locator("#ended")).to_be_hidden()
    states.get_by_role("button", name="failed 8").press("Enter")
    expect(page.locator("#ended li.row")).to_have_count(8)
    expect(page.locator("#running")).to_be_hidden()
    states.get_by_role("button", name="all").press("Enter")
    expect(page.locator("li.row")).to_have_count(100)


def test_the_keyboard_reaches_the_rows_first(shown: Opened) -> None:
    page = shown(reports.working())
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the running interruptions")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(row(page, "ip-10-0-0-1").locator("summary")).to_be_focused()


def test_only_the_health_is_announced(shown: Opened) -> None:
    page = shown(reports.blocked())
    live = page.locator("[aria-live], [role=alert], [role=status], [role=log]")
    expect(live).to_have_count(1)
    expect(live).to_have_id("health")
    page.evaluate(
        "() => { window.said = 0; new MutationObserver(() => window.said++)"
        ".observe(document.getElementById('health'), { subtree: true, childList: true, characterData: true }); }"
    )
    page.clock.run_for(5000)
    assert page.evaluate("window.said") == 0, "the countdown is announced"


@pytest.mark.parametrize(("motion", "seconds"), [("reduce", "0s"), ("no-preference", "1s")])
def test_motion_on_request(shown: Opened, motion: str, seconds: str) -> None:
    page = shown(reports.working(), reduced_motion=motion)
    bar = page.locator(".bar span").first
    assert bar.evaluate("(bar) => getComputedStyle(bar).transitionDuration") == seconds
