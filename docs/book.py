#!/usr/bin/env python3
"""Builds the documentation as a site, with mdBook.

docs/book.py --check [MDBOOK]   builds the site into target/book and checks it: each page is in SUMMARY.md, each link within the site leads somewhere
docs/book.py                    mdBook's preprocessor: links to files outside docs/ lead to the repository
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from links import ATTRIBUTE, DEFINED, INLINE, OWN, ROOT

DOCS = ROOT / "docs"
SITE = ROOT / "target/book"


def outside(text: str, folder: Path) -> str:
    """Returns a page whose links to files outside docs/ lead to the repository."""

    def moved(match: re.Match[str]) -> str:
        target = match[match.lastindex or 0]
        name, mark, anchor = target.partition("#")
        path = (folder / name).resolve()
        if ":" in name or not name or path.is_relative_to(DOCS) or not path.is_relative_to(ROOT):
            return match[0]
        return match[0].replace(target, f"{OWN}{path.relative_to(ROOT)}{mark}{anchor}")

    for pattern in (INLINE, DEFINED, ATTRIBUTE):
        text = pattern.sub(moved, text)
    return text


def preprocess() -> None:
    """Changes the links of the book on the standard input."""
    _, book = json.load(sys.stdin)

    def walk(items: list[dict]) -> None:
        for item in items:
            if chapter := isinstance(item, dict) and item.get("Chapter"):
                chapter["content"] = outside(chapter["content"], (DOCS / chapter["source_path"]).parent)
                walk(chapter["sub_items"])

    walk(book.get("items") or book["sections"])
    json.dump(book, sys.stdout)


class Page(HTMLParser):
    """The links and the anchors of a page of the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what the tag links to, and its anchor."""
        for name, value in attrs:
            if value and (name == "id" or name == "name" and tag == "a"):
                self.anchors.add(value)
            elif value and name in ("href", "src") and tag in ("a", "img"):
                self.links.append(value)


def faults() -> list[str]:
    """Returns the faults of the site."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in SITE.rglob("*.html")}
    listed = {DOCS / name for name in re.findall(r"\]\(([^)]+)\)", (DOCS / "SUMMARY.md").read_text(encoding="utf-8"))}
    wrong = [f"docs/SUMMARY.md does not list {path.relative_to(ROOT)}" for path in DOCS.rglob("*.md") if path not in listed and path.name != "SUMMARY.md"]
    for path, page in pages.items():
        # Shows all pages one after the other, for printing; its links are those of the pages.
        if path.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in page.links:
            name, _, anchor = link.partition("#")
            if ":" in name or name.startswith("//"):
                continue
            target = (path.parent / unquote(name)).resolve() if name else path
            if not target.is_file() or not target.is_relative_to(SITE):
                wrong.append(f"{path.relative_to(SITE)}: {link}: there is no such file")
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                wrong.append(f"{path.relative_to(SITE)}: {link}: there is no such heading")
    return sorted(wrong)


def check(mdbook: str) -> int:
    """Builds the site, and prints its faults."""
    subprocess.run([mdbook, "build", str(DOCS)], check=True)
    wrong = faults()
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def main() -> int:
    """Acts on the arguments."""
    match sys.argv[1:]:
        case ["--check"]:
            return check("mdbook")
        case ["--check", mdbook]:
            return check(mdbook)
        # mdBook asks whether the preprocessor supports its renderer.
        case ["supports", _]:
            return 0
        case []:
            preprocess()
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
