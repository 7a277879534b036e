#!/usr/bin/env python3
"""Records the sandbox in a terminal and writes docs/recording.svg, an animated picture of the real output.

docs/recording.py              runs `cargo run --quiet --example sandbox`
docs/recording.py COMMAND…     runs another command, such as target/debug/examples/sandbox

The picture scrolls at the speed of the output, with long pauses and bursts evened out.
"""

from __future__ import annotations

import os
import pty
import re
import sys
import time
from html import escape
from itertools import pairwise
from pathlib import Path

PICTURE = Path(__file__).with_suffix(".svg")

COLUMNS, ROWS = 120, 28
SIZE, ADVANCE, LEADING, MARGIN, BAR = 13, 7.85, 18, 16, 34
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
PAPER, INK = "#0f1720", "#d5dde5"
STYLES = {
    "1": "font-weight:bold",
    "2": "fill:#8393a3",
    "31": "fill:#ff7b72",
    "32": "fill:#7ee787",
    "33": "fill:#f2cc60",
    "35": "fill:#d2a8ff",
}
"""Style of each SGR code that the sandbox uses."""

FASTEST, SLOWEST, FIRST, LAST = 0.15, 0.9, 4.0, 7.0
"""Minimum and maximum time between two lines, and the times for the first and the last page, in seconds."""

SGR = re.compile(r"\x1b\[([\d;]*)m")


def record(command: list[str]) -> list[tuple[float, str]]:
    """Runs a command in a terminal; returns its lines, each with the seconds until the line was complete."""
    lines: list[tuple[float, str]] = []
    rest, began = b"", time.monotonic()

    def read(terminal: int) -> bytes:
        nonlocal rest
        data = os.read(terminal, 65536)
        *complete, rest = (rest + data).split(b"\n")
        lines.extend((time.monotonic() - began, line.decode().rstrip("\r")) for line in complete)
        return data

    if status := os.waitstatus_to_exitcode(pty.spawn(command, read)):
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    return lines


def wrapped(line: str) -> list[list[tuple[str, str]]]:
    """Returns the rows of a line as a terminal shows them. Each is a list of characters with their SGR codes."""
    cells, codes, at = [], "", 0
    for found in SGR.finditer(line):
        cells += [(char, codes) for char in line[at : found.start()]]
        codes, at = "" if found[1] in ("", "0") else found[1], found.end()
    cells += [(char, codes) for char in line[at:]]
    return [cells[at : at + COLUMNS] for at in range(0, max(len(cells), 1), COLUMNS)]


def drawn(row: list[tuple[str, str]], y: int) -> str:
    """Draws one row. Each run of one style and each symbol has its own position, so that no font shifts the rest."""
    runs: list[tuple[int, str, str]] = []
    for column, (char, codes) in enumerate(row):
        last = runs[-1] if runs else None
        same = last and last[2] == codes and char.isascii() and last[1].isascii()
        if last and same and (char == " " or not last[1].endswith("  ")):
            runs[-1] = (last[0], last[1] + char, codes)
        else:
            runs.append((column, char, codes))
    spans = []
    for column, text, codes in runs:
        column += len(text) - len(text.lstrip(" "))
        if text := text.strip(" "):
            names = "".join(f"c{code}" if at == 0 else f" c{code}" for at, code in enumerate(codes.split(";")) if code)
            style = f' class="{names}"' if names else ""
            spans.append(f'<tspan x="{MARGIN + column * ADVANCE:.1f}"{style}>{escape(text, quote=False)}</tspan>')
    return f'<text y="{y}">{"".join(spans)}</text>' if spans else ""


def picture(lines: list[tuple[float, str]]) -> str:
    """Returns the animated picture: one column of all rows, which scrolls behind a window."""
    rows = [(at, row) for at, line in lines for row in wrapped(line)]
    gaps = [min(max(after - before, FASTEST), SLOWEST) for (before, _), (after, _) in pairwise(rows[ROWS - 1 :])]
    total = FIRST + sum(gaps) + LAST
    steps, now = ["0%{transform:none}"], FIRST
    for nth, gap in enumerate(gaps, 1):
        now += gap
        steps.append(f"{now / total * 100:.2f}%{{transform:translateY({-nth * LEADING}px)}}")
    steps.append(f"to{{transform:translateY({-len(gaps) * LEADING}px)}}")
    width, height = round(2 * MARGIN + COLUMNS * ADVANCE), BAR + ROWS * LEADING + MARGIN
    style = [
        f"text{{font:{SIZE}px {FONT};fill:{INK};white-space:pre}}",
        *(f".c{code}{{{rule}}}" for code, rule in STYLES.items()),
        f".roll{{animation:roll {total:.1f}s steps(1,end) infinite}}",
        "@media(prefers-reduced-motion:reduce){.roll{animation:none}}",
        f"@keyframes roll{{{''.join(steps)}}}",
    ]
    dots = "".join(f'<circle cx="{18 + 18 * nth}" cy="17" r="5.5" fill="#3d4a57"/>' for nth in range(3))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" aria-label="The sandbox in a terminal">',
        "<!-- Written by docs/recording.py: change that, not this. -->",
        "<title>cargo run --example sandbox</title>",
        f"<style>{''.join(style)}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{PAPER}"/>{dots}',
        f'<text x="{width / 2:.0f}" y="22" class="c2" text-anchor="middle">cargo run --example sandbox</text>',
        f'<svg y="{BAR}" width="{width}" height="{ROWS * LEADING}"><g class="roll">',
        *filter(None, (drawn(row, (nth + 1) * LEADING - 5) for nth, (_, row) in enumerate(rows))),
        "</g></svg>",
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def main() -> int:
    """Records a command and writes the picture."""
    command = sys.argv[1:] or ["cargo", "run", "--quiet", "--example", "sandbox"]
    PICTURE.write_text(picture(record(command)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
