"""The page follows the service: events, the end of a stream, a refused one, silence, and time."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

import fake
import reports
from conftest import Opened, row

# Counts, for a row, how often something in it changed.
OBSERVE = """() => {
    window.touched = {};
    new MutationObserver((changes) => changes.forEach(({ target }) => {
        const element = target.nodeType === Node.TEXT_NODE ? target.parentElement : target;
        const place = element?.closest("li.row") ?? element?.closest("[id]");
        const name = place?.querySelector("h4")?.textContent ?? place?.id;
        window.touched[name] = (window.touched[name] ?? 0) + 1;
    })).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
}"""


def test_an_event_changes_its_row_and_nothing_else(shown: Opened, service: fake.Fake) -> None:
    page = shown(reports.storm())
    page.evaluate(OBSERVE)
    changed = next(x for x in service.report["interruptions"] if x["node"] == reports.node(12))
    service.update(changed | {"drains": [changed["drains"][0] | {"gone": 4}]})
    expect(row(page, "ip-10-0-0-12")).to_contain_text("4 of 15 pods gone")
    assert list(page.evaluate("window.touched")) == [reports.node(12)]


def test_new_ended_and_removed(shown: Opened, service: fake.Fake) -> None:
    page = shown(reports.working())
    one = service.report["interruptions"][0]
    service.update(
        reports.interruption(8, deadline=reports.at(30)),
        reports.ended(2, 0),
        removed=(one["id"],),
        health={"state": "failed", "text": "1 drain failed. See below."},
    )
    expect(page.locator("h1")).to_have_text("1 drain failed.")
    expect(page.locator("#running h4").first).to_contain_text("ip-10-0-0-8")
    expect(row(page, "ip-10-0-0-1")).to_have_count(0)
    expect(page.locator("#ended")).to_contain_text("ip-10-0-0-2")
    expect(page).to_have_title("Failed · Ebbtide")


def test_a_whole_report_replaces_everything(shown: Opened, service: fake.Fake) -> None:
    page = shown(reports.storm())
    service.send("full", reports.empty())
    expect(page.locator("h1")).to_have_text("All is well.")
    expect(page.locator("li.row")).to_have_count(0)
    expect(page.locator("#storms")).to_be_hidden()


def test_the_countdown_follows_the_services_time(shown: Opened) -> None:
    report = reports.working()
    report["interruptions"][0]["deadline"] = reports.at(32)
    page = shown(report)
    time = row(page, "ip-10-0-0-1")
    meter = time.get_by_role("meter", name="Time left")
    part = "(meter) => Number(meter.firstChild.style.getPropertyValue('--part'))"
    expect(time).to_contain_text("32 s left")
    expect(page.locator("#live time")).to_have_text("11:20:00 UTC")
    assert meter.evaluate(part) == pytest.approx(32 / 72, abs=0.001)
    page.clock.run_for(10_000)
    expect(time).to_contain_text("22 s left")
    expect(page.locator("#live time")).to_have_text("11:20:10 UTC")
    assert meter.evaluate(part) == pytest.approx(22 / 72, abs=0.001)
    page.clock.run_for(26_000)
    expect(time).to_contain_text("passed 4 s ago")
    expect(meter).to_have_attribute("aria-valuenow", "0")


def test_details_and_focus_survive_an_event(shown: Opened, service: fake.Fake) -> None:
    page = shown(reports.working())
    last = row(page, "ip-10-0-0-3")
    last.locator("summary").press("Enter")
    expect(last).to_contain_text("Message")
    urgent = next(x for x in service.report["interruptions"] if x["node"] == reports.node(3))
    service.update(urgent | {"deadline": reports.at(15)})
    expect(page.locator("#running h4").first).to_contain_text("ip-10-0-0-3")
    expect(last.locator("details")).to_have_attribute("open", "")
    expect(last.locator("summary")).to_be_focused()


def test_a_stream_that_ends_is_opened_again(shown: Opened, service: fake.Fake) -> None:
    page = shown(reports.working())
    service.end_streams()
    expect(page.locator("#live")).to_contain_text("Not live")
    expect(page.locator("#stale")).to_contain_text("Not live: the page asks every 5 s")
    expect(page).to_have_title("At work (not live) · Ebbtide")
    service.report = reports.calm()
    page.clock.run_for(1000)
    expect(page.locator("#live")).not_to_contain_text("Not live")
    expect(page.locator("h1")).to_have_text("All is well.")
    expect(page.locator("#stale")).to_be_hidden()
    assert service.count("api/events") == 2
    assert service.count("api/status") == 0


def test_too_many_viewers(shown: Opened, service: fake.Fake) -> None:
    service.refuses_streams = True
    page = shown(reports.working(), live=False)
    expect(page.locator("#live")).to_contain_text("Not live")
    expect(row(page, "ip-10-0-0-1")).to_be_visible()
    for polls in range(2, 5):
        service.report = service.report | {"health": {"state": "working", "text": f"Answer {polls}."}}
        page.clock.run_for(5000)
        expect(page.locator("h1")).to_have_text(f"Answer {polls}.")
    assert service.count("api/status") == 4
    service.refuses_streams = False
    page.clock.run_for(30_000)
    expect(page.locator("#live")).not_to_contain_text("Not live")
    asked = service.count("api/status")
    page.clock.run_for(12_000)
    assert service.count("api/status") == asked, "a live page polls"


def test_silence_is_no_life(shown: Opened, service: fake.Fake) -> None:
    page = shown(reports.calm())
    page.clock.run_for(20_000)
    service.update(time=reports.at(20), health={"state": "ok", "text": "All is still well."})
    expect(page.locator("h1")).to_have_text("All is still well.")
    page.clock.run_for(39_000)
    assert service.count("api/events") == 1
    page.clock.run_for(2500)
    service.wait_for_streams(2)
    expect(page.locator("#live")).not_to_contain_text("Not live")


def test_a_stream_that_begins_with_silence(shown: Opened, service: fake.Fake) -> None:
    service.is_mute = True
    page = shown(reports.calm(), live=False)
    service.wait_for_streams(1)
    expect(page.locator("#live")).to_have_text("Connecting")
    service.is_mute = False
    page.clock.run_for(42_000)
    expect(page.locator("h1")).to_have_text("All is well.")


def test_no_answer(shown: Opened, service: fake.Fake) -> None:
    page = shown(reports.calm())
    service.refuses_all = True
    service.end_streams()
    expect(page.locator("#live")).to_contain_text("Not live")
    page.clock.run_for(90_000)
    expect(page.locator("#stale")).to_contain_text(
        "Not live: Ebbtide does not answer; this is from 1 min 30 s ago. The page tries again."
    )
    assert service.count("api/events") < 12, "the page does not back off"


def test_an_unreadable_event_is_told_and_forgotten(shown: Opened, service: fake.Fake) -> None:
    page = shown(reports.calm())
    service.send("update", "{")
    expect(page.locator("#stale")).to_contain_text("can't be read")
    expect(page.locator("h1")).to_have_text("All is well.")
    service.send("full", reports.working())
    expect(page.locator("h1")).to_contain_text("5 nodes")
    expect(page.locator("#stale")).to_be_hidden()


def test_another_program_asks_for_a_reload(shown: Opened, service: fake.Fake) -> None:
    page = shown(reports.calm())
    service.update(program="0.2.0")
    expect(page.locator("#stale")).to_have_text("Ebbtide 0.2.0 runs now: reload the page.")
