#!/usr/bin/env python3
"""Checks every link within the repository: the file and the heading must exist.

docs/links.py --check   exits 1 and names each dead link

The script checks links of Markdown files, paths such as `src/lib.rs` in their text, and in all text files links to
this repository on GitHub, such as the alerts' links to the runbook. It ignores links to other sites.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
PATH_IN_TEXT = "path: "
OWN = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["repository"] + "/blob/main/"

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
CODE = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
INLINE = re.compile(r"\]\(\s*<?((?:[^\s()<>]|\([^\s()]*\))*)>?(?:\s+[\"'(][^)]*)?\s*\)")
DEFINED = re.compile(r"^ {0,3}\[([^\]^][^\]]*)\]:\s*<?(\S+?)>?(?:\s|$)", re.MULTILINE)
USED = re.compile(r"\[([^\[\]]+)\]\[([^\[\]]*)\]")
ATTRIBUTE = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"")
PATH = re.compile(r"(?<!`)`((?:src|tests|benches|examples|deploy|docs|\.ci|\.github)/[\w./-]+)`")
ANCHOR = re.compile(r"<a\b[^>]*?\b(?:id|name)=\"([^\"]+)\"")


def files() -> list[Path]:
    """Returns the files of the repository, with new ones that git does not ignore."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode().split("\0")
    return sorted(path for path in {ROOT / name for name in listed if name} if path.is_file())


def prose(text: str) -> str:
    """Returns the text with empty lines for blocks of code."""
    lines, fence = [], ""
    for line in text.splitlines():
        found = FENCE.match(line)
        if fence:
            if found and found[1].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            lines.append("")
        elif found:
            fence = found[1]
            lines.append("")
        else:
            lines.append(line)
    return "\n".join(lines)


def slug(heading: str) -> str:
    """Returns GitHub's anchor for a heading."""
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    """Returns the anchors of a Markdown file."""
    text = prose(path.read_text(encoding="utf-8"))
    found: set[str] = set(ANCHOR.findall(text))
    times: dict[str, int] = {}
    for line in text.splitlines():
        if heading := HEADING.match(line):
            name = slug(heading[1])
            nth = times.get(name, 0)
            times[name] = nth + 1
            found.add(f"{name}-{nth}" if nth else name)
    return frozenset(found)


def fault(source: Path, target: str) -> str | None:
    """Returns the fault of a link or a path, or None."""
    if target.startswith(PATH_IN_TEXT):
        return None if (ROOT / target.removeprefix(PATH_IN_TEXT)).exists() else "there is no such file"
    if target.startswith(OWN):
        source, target = ROOT / "README.md", target.removeprefix(OWN)
    if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", target) or target.startswith("//"):
        return None
    name, _, anchor = target.partition("#")
    name = unquote(name)
    if name.startswith("/"):
        return "begins with /: write the path from this file's folder"
    path = (source.parent / name).resolve() if name else source
    if not path.is_relative_to(ROOT):
        return "is outside the repository"
    if not path.exists():
        return "there is no such file"
    if anchor and path.suffix == ".md" and unquote(anchor) not in anchors(path):
        return f"{path.relative_to(ROOT)} has no heading of that name"
    return None


def links(path: Path, text: str) -> list[tuple[int, str]]:
    """Returns each link of a file, with its offset."""
    found: list[tuple[int, str]] = []
    if path.suffix != ".md":
        pattern = re.compile(re.escape(OWN) + r"[\w./#-]*[\w/]")
        return [(match.start(), match[0]) for match in pattern.finditer(text)]
    named = [(match.start(), f"{PATH_IN_TEXT}{match[1]}") for match in PATH.finditer(prose(text))]
    text = CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), prose(text))
    for pattern in (INLINE, ATTRIBUTE):
        found += [(match.start(), match[1]) for match in pattern.finditer(text)]
    defined = {match[1].lower(): match for match in DEFINED.finditer(text)}
    found += [(match.start(), match[2]) for match in defined.values()]
    for match in USED.finditer(text):
        name = (match[2] or match[1]).lower()
        if name not in defined:
            found.append((match.start(), f"[{name}]: is not defined"))
    return sorted(found + named)


def faults() -> tuple[list[str], int]:
    """Returns the faults of all links, and the number of links."""
    wrong, count = [], 0
    for path in files():
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for at, target in links(path, text):
            count += 1
            why = "no such definition" if target.endswith("]: is not defined") else fault(path, target)
            if why:
                line = text.count("\n", 0, at) + 1 if path.suffix != ".md" else prose(text).count("\n", 0, at) + 1
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {target}: {why}")
    return wrong, count


def main() -> int:
    """Prints the dead links."""
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    wrong, count = faults()
    for line in wrong:
        print(line, file=sys.stderr)
    if not count:
        print("found no links: docs/links.py looks in the wrong place", file=sys.stderr)
    print(f"{count} links, {len(wrong)} dead")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
