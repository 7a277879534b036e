"""What the page shows of each report."""

from __future__ import annotations

import re

from playwright.sync_api import expect

import fake
import reports
from conftest import Opened, row


def test_a_calm_night(shown: Opened) -> None:
    page = shown(reports.calm())
    expect(page.locator("#health .word")).to_have_text("Calm")
    expect(page.locator("h1")).to_have_text("All is well.")
    expect(page.locator("#health")).to_contain_text("The last interruption ended 3 hours ago, in time.")
    expect(page.locator("#running")).to_contain_text("Nothing is being drained.")
    expect(page.locator("#day .reading p")).to_have_text("9 notices in the last day, most at 02:20")
    expect(page.locator("#ended li.row")).to_have_count(4)
    expect(page.locator("#blockers")).to_be_empty()
    expect(page.locator("#storms")).to_be_hidden()
    expect(page.locator("#stale")).to_be_hidden()


def test_running_interruptions(shown: Opened) -> None:
    page = shown(reports.working())
    names = page.locator("#running h4").all_inner_texts()
    assert [name.partition(".")[0] for name in names] == [
        "ip-10-0-0-1",
        "ip-10-0-0-5",
        "ip-10-0-0-2",
        "ip-10-0-0-3",
        "i-0abc000000000004",
    ]

    draining = row(page, "ip-10-0-0-1")
    expect(draining).to_contain_text("spot")
    expect(draining).to_contain_text("1 min 20 s left")
    expect(draining).to_contain_text("capacity ends 11:21:20")
    expect(draining.get_by_role("meter", name="Time left")).to_have_attribute("aria-valuenow", "67")
    expect(draining).to_contain_text("7 of 12 pods gone")
    expect(draining).to_contain_text("5 left · 4 left alone")
    expect(draining.get_by_role("progressbar", name="Pods gone")).to_have_attribute(
        "aria-valuetext", "7 of 12 pods gone"
    )

    completing = row(page, "ip-10-0-0-2")
    expect(completing).to_contain_text("completing the hook")
    expect(completing).to_contain_text(
        "Waits for volumes: 2 volumes are attached: pvc-data-0, pvc-data-1 at most 48 s more"
    )
    expect(completing).to_contain_text("hook open")
    expect(completing).to_contain_text("3 heartbeats, last 11:19:39")

    held = row(page, "ip-10-0-0-3")
    expect(held).to_contain_text("19 min 00 s left")
    expect(held).to_contain_text("time limit 11:39:00")
    expect(held).to_contain_text("drain not begun")

    expect(row(page, "i-0abc000000000004")).to_contain_text("no deadline")
    two = row(page, "ip-10-0-0-5")
    expect(two.get_by_role("progressbar")).to_have_count(2)
    expect(two).to_contain_text("Retrying: Patching the Node failed: 429 Too Many Requests")
    two.get_by_text("Details").click()
    expect(two).to_contain_text("2 joined")
    expect(two).to_contain_text("7d1f0005")


def test_who_blocks_comes_first_on_a_phone(shown: Opened) -> None:
    page = shown(reports.blocked(), width=360)
    page.set_viewport_size({"width": 360, "height": 640})
    card = page.locator("#blockers article")
    expect(card).to_have_count(1)
    expect(card).to_contain_text("default/db-0")
    expect(card).to_contain_text("needs 2 healthy pods and has 2 currently")
    expect(card.locator(".advice")).to_contain_text("Make another pod of the budget Ready elsewhere")
    expect(card).to_contain_text("1 min 26 s left on ip-10-0-0-7")
    box = card.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 640, "one must scroll to see what to do"
    assert page.locator("#running h4").first.inner_text().startswith("ip-10-0-0-7.")
    expect(row(page, "ip-10-0-0-7")).to_contain_text("held for 34 s")
    assert page.locator("body").get_attribute("data-state") == "blocked"


def test_a_storm(shown: Opened) -> None:
    page = shown(reports.storm())
    expect(page.locator("#figures")).to_contain_text("11 blocked")
    expect(page.locator("#figures")).to_contain_text("held, the oldest for 4 s")
    running, over = page.locator("#storms article").all()
    expect(running).to_contain_text("still running")
    expect(running).to_contain_text("1,000 running")
    expect(over).to_contain_text("992 in time8 failed")
    expect(over).to_contain_text("slowest ip-10-0-2-219.eu-west-1.compute.internal, 1 min 33 s")
    expect(over.locator("li")).to_have_count(8)
    expect(over.locator("li").first).to_contain_text("ip-10-0-1-244.eu-west-1.compute.internal timed-out")
    pools = page.locator("#pools")
    expect(pools.locator("tbody tr")).to_have_count(8)
    pools.get_by_role("button", name="Show all 12").press("Enter")
    expect(pools.locator("tbody tr")).to_have_count(12)
    expect(pools.locator("caption")).to_have_text("Most interrupted")


def test_the_day_is_a_table_too(shown: Opened) -> None:
    page = shown(reports.storm())
    table = page.locator("#day table")
    expect(table).to_be_hidden()
    page.get_by_text("The day as a table").press("Enter")
    expect(table.locator("tbody tr").first).to_have_text("11:101,0000")
    expect(table.locator("tbody tr").filter(has_text="10:30")).to_have_text("10:309407")
    page.locator(".sea").hover(position={"x": 1, "y": 9})
    expect(page.locator("#day .reading p")).to_have_text("11-22 11:20–11-22 11:30: 0 notices")


def test_ended_interruptions(shown: Opened) -> None:
    page = shown(reports.blocked())
    over = row(page, "ip-10-0-0-21")
    expect(over.locator(".bad")).to_have_text("blocked")
    expect(over).to_contain_text("2 of 3 pods gone; default/db-0: its budget")
    expect(over).to_contain_text("11:05:00")
    expect(over).to_contain_text("after 1 min 33 s")
    expect(row(page, "ip-10-0-0-20").locator(".good")).to_have_text("drained")


def test_a_replica_that_does_not_answer(shown: Opened) -> None:
    page = shown(reports.silent())
    expect(page.locator("#figures")).to_contain_text("1 of 2 silent")
    silent = page.locator("#replicas tr").filter(has_text="10.0.3.7")
    expect(silent).to_contain_text("no answer within 2 s")


def test_a_replica_that_has_died_in_the_middle_of_drains(shown: Opened) -> None:
    page = shown(reports.dead())
    expect(page.locator("#health .word")).to_have_text("Blocked")
    expect(page.locator("#figures")).to_contain_text("1 of 2 silent")
    expect(page.locator("#figures")).to_contain_text("1 blocked")
    groups = page.locator("#running h3.group").all_inner_texts()
    assert [group.lower() for group in groups] == ["blocked", "by deadline", "records on nodes"]
    held = row(page, "ip-10-0-0-7")
    expect(held).to_contain_text("another replica acts on it, or did")
    expect(held).to_contain_text("Node condition: default/db-0 is held back by")
    expect(row(page, "ip-10-0-0-8")).to_contain_text("another replica acts on it, or did")
    expect(row(page, "ip-10-0-0-9")).to_have_count(1)
    expect(row(page, "ip-10-0-0-9")).to_contain_text("draining")


def test_not_ready(shown: Opened) -> None:
    page = shown(reports.unready())
    expect(page.locator("#health .word")).to_have_text("Not ready")
    expect(page.locator("#figures")).to_contain_text("receiving fails: denied")
    expect(page.locator("#replicas")).to_contain_text("not ready")


def test_a_dry_run_and_another_version_say_so(shown: Opened) -> None:
    page = shown(reports.calm() | {"dryRun": True, "version": 2})
    expect(page.locator("#stale")).to_contain_text("Dry run")
    expect(page.locator("#stale")).to_contain_text("The report has version 2, and this page knows 1: reload the page.")


def test_hostile_strings_stay_text(shown: Opened) -> None:
    page = shown(reports.hostile())
    card = page.locator("#blockers article")
    expect(card).to_contain_text(reports.HOSTILE_POD)
    expect(card).to_contain_text("</p><b>bold</b>")
    expect(page.locator("h1")).to_have_text("<h1>Pwned</h1>.")
    expect(page.locator("#running h4")).to_have_text(r"ip-10-0-6-6\u{202e}moc.live\u{7}\u{0}.internal")
    # Words that the page does not know.
    for word in ("quantum-flux", "__proto__", "Waits for <i>:", "hook <hr>", r"a\u{200b}b\u{d83d}"):
        expect(page.locator("#running")).to_contain_text(word)
    expect(page.locator("#ended")).to_contain_text("vapourised")
    expect(page.locator("#pools")).to_contain_text("__proto__")
    assert page.locator("main :is(img, script, hr, iframe, u, object, style)").count() == 0
    assert page.locator("svg").count() == 1
    assert page.title() == "Blocked · Ebbtide"
    everything = page.evaluate("document.documentElement.textContent")
    assert not re.search("[\0-\x08\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", everything)
    assert "x" * 500 not in everything, "a string without an end is shown whole"


def test_objects_in_the_place_of_strings_stay_text(shown: Opened) -> None:
    report = reports.blocked()
    element = {"tag": "img", "key": None, "style": {}, "attributes": {"src": "x"}, "children": []}
    report["interruptions"][0] |= {"problem": element, "hook": [element], "kind": element, "phase": element}
    page = shown(report)
    expect(page.locator("#running")).to_contain_text("Retrying: [object Object]")
    assert page.locator("main img").count() == 0


def test_below_the_api_servers_proxy(shown: Opened, service: fake.Fake) -> None:
    page = shown(reports.calm(), path=fake.PROXY.removeprefix("/") + "/")
    expect(page.locator("h1")).to_have_text("All is well.")
    service.end_streams()
    service.refuses_streams = True
    # The first poll is due 5 s after the page has noticed.
    expect(page.locator("#stale")).to_contain_text("the page asks every 5 s")
    service.report = reports.working()
    page.clock.run_for(5000)
    expect(page.locator("h1")).to_contain_text("5 nodes")
    assert all(service.below_proxy)
