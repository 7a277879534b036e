"""Takes the pictures of the page for the README and docs: a blocked drain by day, a storm's end by night."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

import fake
import reports

LIMIT = 250 * 1024
PICTURES = {"status-light.png": ("light", reports.blocked), "status-dark.png": ("dark", reports.blocked)}


def main() -> None:
    """Writes the pictures to a folder."""
    folder = Path(sys.argv[1])
    with fake.serving() as service, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ["EBBTIDE_CHROMIUM"], args=["--no-sandbox"])
        for name, (scheme, make) in PICTURES.items():
            service.report = make()
            page = browser.new_page(
                viewport={"width": 1280, "height": 1240}, color_scheme=scheme, reduced_motion="reduce"
            )
            page.clock.install(time=reports.NOW)
            page.clock.pause_at(reports.NOW + timedelta(seconds=1))
            page.goto(service.url)
            expect(page.locator("#live")).to_contain_text("Live")
            page.screenshot(path=folder / name)
            size = (folder / name).stat().st_size
            print(f"{folder / name}: {size // 1024} KiB")
            assert size < LIMIT, f"{name} is larger than {LIMIT // 1024} KiB"
        browser.close()


if __name__ == "__main__":
    main()
