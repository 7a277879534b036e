#!/usr/bin/env python3
"""Draws two pictures with time axes.

docs/timeline.svg   a spot drain until its deadline, and a lifecycle hook kept alive by heartbeats
docs/life.svg       the whole life of a drained node, with all its waits

docs/timeline.py           writes the pictures
docs/timeline.py --check   exits 1 if a picture is out of date
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parent

# Seconds, with the values of src/pipeline/drain/grace.rs and src/pipeline/interruption/times.rs.
REMOVAL_TIME, MAX_EVICTION_TIME = 2, 10

MINUS = "\N{MINUS SIGN}"

WIDTH, LEFT, RIGHT = 1000, 176, 948
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
INK, SOFT, LINE, PAPER = "#1f2933", "#52606d", "#cbd2d9", "#fbfcfd"
WAITS, REFUSED, ENDS, HOLDS, DONE, LAST = "#dde3ea", "#f4bf5f", "#7fb2e5", "#c9b6e8", "#2f8f4e", "#c0392b"


def deleted_at(deadline: int, grace: int, tried: int) -> int:
    """Returns when a blocked pod is deleted: as late as its grace period allows, after attempts to evict."""
    return max(deadline - grace - REMOVAL_TIME, tried + min(MAX_EVICTION_TIME, (deadline - tried) // 4))


def margin(timeout: int) -> int:
    """Returns the safety margin before a hook expires."""
    return min(max(timeout // 10, 3), 30)


class Panel:
    """A time axis with rows of bars under it."""

    def __init__(self, top: int, seconds: int, step: int) -> None:
        self.out: list[str] = []
        self.top, self.seconds, self.step = top, seconds, step

    def x(self, at: float) -> float:
        """Returns the horizontal position of a second."""
        return round(LEFT + (RIGHT - LEFT) * at / self.seconds, 1)

    def title(self, bold: str, rest: str) -> None:
        """Draws the panel's title."""
        self.out.append(
            f'<text x="20" y="{self.top}" font-size="16" font-weight="600">{escape(bold)}'
            f'<tspan font-size="13" font-weight="400" fill="{SOFT}" dx="10">{escape(rest)}</tspan></text>'
        )

    def axis(self, y: int, bottom: int) -> None:
        """Draws ticks, with a thin line down to the last row."""
        for at in range(0, self.seconds + 1, self.step):
            x = self.x(at)
            self.out.append(f'<path d="M{x} {y + 5}V{bottom}" stroke="{LINE}" stroke-width="1"/>')
            self.text(x, y, f"{at} s", fill=SOFT, anchor="middle")

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        fill: str = INK,
        anchor: str = "start",
        bold: bool = False,
        on: str = PAPER,
    ) -> None:
        """Draws text with a halo in the background's colour, so that no line crosses it."""
        weight = 600 if bold else 400
        self.out.append(
            f'<text x="{round(x, 1)}" y="{y}" font-size="12" font-weight="{weight}" text-anchor="{anchor}" '
            f'fill="{fill}" stroke="{on}" stroke-width="4" stroke-linejoin="round" paint-order="stroke">'
            f"{escape(words)}</text>"
        )

    def row(self, y: int, name: str, more: str) -> None:
        """Draws a row's name, left of its bars."""
        self.text(20, y + 9, name, bold=True)
        self.text(20, y + 25, more, fill=SOFT)

    def bar(self, y: int, begin: float, end: float, fill: str, words: str = "", height: int = 26) -> None:
        """Draws a period of time, with text inside."""
        x, width = self.x(begin), round(self.x(end) - self.x(begin), 1)
        self.out.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{fill}"/>')
        if words:
            self.text(x + 8, y + height // 2 + 4, words, on=fill)

    def moment(self, y: int, at: float, fill: str, height: int = 26) -> None:
        """Draws a point in time within a row."""
        x = self.x(at)
        self.out.append(f'<path d="M{x} {y - 4}V{y + height + 4}" stroke="{fill}" stroke-width="2.5"/>')

    def deadline(self, at: float, top: int, bottom: int) -> None:
        """Draws a deadline."""
        x = self.x(at)
        self.out.append(f'<path d="M{x} {top}V{bottom}" stroke="{LAST}" stroke-width="2" stroke-dasharray="5 3"/>')


def spot() -> list[str]:
    """Draws the drain of a spot warning: one pod is evicted, one is blocked, a critical one waits for both."""
    deadline, grace, tiers = 120, 30, 2
    share = deadline // tiers
    deleted = deleted_at(deadline, grace, tried=0)
    panel = Panel(top=36, seconds=125, step=20)
    panel.title("A spot warning", "hard deadline after 120 s; every pod has a grace period of 30 s")
    top, bottom = 66, 330
    panel.axis(top, bottom)
    free = panel.x(deadline - REMOVAL_TIME)
    panel.out.append(
        f'<rect x="{free}" y="{top + 8}" width="{round(panel.x(deadline) - free, 1)}" height="{bottom - top - 8}" '
        f'fill="{LAST}" opacity="0.22"/>'
    )

    panel.row(84, "Node", "one patch")
    panel.bar(84, 0, deadline, WAITS, "cordoned, with its annotations, labels and taints, before anything is evicted")
    panel.moment(84, 0, INK)

    panel.row(136, "Ordinary pod", "no budget forbids it")
    panel.bar(136, 0, grace, ENDS, "evicted, terminating")
    panel.moment(136, 0, INK)
    panel.text(panel.x(grace) + 8, 153, "gone")

    panel.row(188, "Ordinary pod", "a budget forbids it")
    panel.bar(188, 0, deleted, REFUSED, "")
    panel.text(panel.x(5) + 8, 205, "refused; retried every 1 to 5 s; reported after 5 s", on=REFUSED)
    panel.bar(188, deleted, deleted + grace, ENDS, "deleted, terminating")
    panel.moment(188, 5, SOFT)
    panel.moment(188, deleted, LAST)
    sum_of = f"{deleted} s = {deadline} {MINUS} {grace} {MINUS} {REMOVAL_TIME}"
    panel.text(panel.x(deleted), 234, sum_of, anchor="middle", fill=LAST, bold=True)

    panel.row(252, "Critical pod", "goes after the others")
    panel.bar(252, 0, share, WAITS, f"waits for the others, {share} s = 1/{tiers} of the time at most")
    panel.bar(252, share, share + grace, ENDS, "evicted, terminating")
    panel.moment(252, share, INK)
    panel.text(panel.x(share + grace) + 8, 269, "gone")

    panel.deadline(deadline, top + 8, bottom)
    panel.text(free - 8, 306, "deadline: EC2 takes the instance", anchor="end", fill=LAST, bold=True)
    panel.text(free - 8, 323, f"the last {REMOVAL_TIME} s are kept free", anchor="end", fill=LAST)
    return panel.out


def hook() -> list[str]:
    """Draws a lifecycle hook with a timeout much shorter than its drain."""
    timeout, wanted, drained, held = 60, 240, 170, 20
    deadline = wanted - margin(timeout)
    completed = drained + held
    panel = Panel(top=382, seconds=250, step=30)
    panel.title("A lifecycle hook of 60 s", "with --drain-timeout asg-terminate=4m and --complete-after 20s")
    top, bottom = 412, 618
    panel.axis(top, bottom)

    panel.row(430, "Drain", "from cordon to end")
    panel.bar(430, 0, drained, ENDS, "pods go")
    panel.bar(430, drained, completed, HOLDS)
    panel.text(panel.x(completed) + 8, 447, f"held back {held} s")
    panel.moment(430, 0, INK)
    panel.moment(430, drained, INK)

    panel.row(482, "Heartbeats", "each renews the 60 s")
    beats = list(range(timeout // 2, completed, timeout // 2))
    for place, beat in enumerate([0, *beats]):
        y = 482 + 12 * place
        panel.bar(y, beat, beat + timeout, WAITS, height=7)
        if beat:
            panel.out.append(f'<circle cx="{panel.x(beat)}" cy="{y + 3.5}" r="4.5" fill="{INK}"/>')
    panel.text(panel.x(2), 580, "a heartbeat at half-time, until CONTINUE is accepted;", fill=SOFT)
    panel.text(panel.x(2), 596, "without heartbeats the hook would expire after 60 s", fill=SOFT)

    x = panel.x(completed)
    panel.out.append(f'<path d="M{x} 426V{bottom - 26}" stroke="{DONE}" stroke-width="2.5"/>')
    panel.text(x, bottom - 10, "CONTINUE; no heartbeat after it", anchor="middle", fill=DONE, bold=True)
    panel.deadline(deadline, top + 8, bottom)
    sum_of = f"deadline: {wanted} {MINUS} {margin(timeout)} s"
    panel.text(panel.x(deadline), bottom + 18, sum_of, anchor="middle", fill=LAST, bold=True)
    return panel.out


def life() -> list[str]:
    """Draws a node that is replaced, drained and terminated, with every wait."""
    timeout, delay, grace = 300, 120, 30
    released, ready, hooked = 70, 150, 110
    gone = ready + 25
    detached, left, done = gone + 20, ready + delay, gone + 50
    completed = max(detached, left, done)
    deadline = hooked + timeout + grace
    panel = Panel(top=36, seconds=460, step=60)
    panel.title("The whole life of a node", "a rebalance recommendation, a replacement, the lifecycle hook; every wait is optional")
    top, bottom = 66, 486
    panel.axis(top, bottom)
    for begin, end, words in [(0, ready, "before evictions"), (gone, completed, "before the completion")]:
        x, width = panel.x(begin), round(panel.x(end) - panel.x(begin), 1)
        panel.out.append(f'<rect x="{x}" y="78" width="{width}" height="{bottom - 78}" fill="{HOLDS}" opacity="0.2"/>')
        panel.text(x + width / 2, 94, words, anchor="middle", fill=SOFT, bold=True)

    panel.row(104, "Node", "one patch")
    panel.bar(104, 0, completed, WAITS, "cordoned, until its instance is terminated")
    panel.moment(104, 0, INK)

    panel.row(152, "Replacement", "--on rebalance=replace")
    panel.bar(152, 0, ready, HOLDS, "the group launches another instance")
    panel.moment(152, ready, INK)
    panel.text(panel.x(ready) + 8, 169, "a new Node is Ready")

    panel.row(200, "Your controller", "--hold both")
    panel.bar(200, 0, released, HOLDS, "ebbtide/hold")
    panel.text(panel.x(released) + 8, 217, "released")
    panel.bar(200, gone, done, HOLDS, "ebbtide/hold")
    panel.text(panel.x(done) + 8, 217, "released")

    panel.row(248, "Pods", "when all waits are over")
    panel.bar(248, ready, gone, ENDS)
    panel.moment(248, ready, INK)
    panel.text(panel.x(gone) + 8, 265, "evicted, and gone")

    panel.row(296, "Load balancers", "--wait-for-load-balancers")
    panel.bar(296, ready, left, HOLDS, "deregistered, draining")
    panel.text(panel.x(left) + 8, 313, "no target group lists it")

    panel.row(344, "Volumes", "--wait-for-volumes")
    panel.bar(344, gone, detached, HOLDS)
    panel.text(panel.x(detached) + 8, 361, "detached")

    panel.row(392, "Lifecycle hook", "of the group")
    panel.bar(392, hooked, completed, WAITS)
    panel.text(panel.x(hooked) + 8, 409, "heartbeats, if the work may outlast it", on=WAITS)
    panel.moment(392, hooked, INK)
    panel.text(panel.x(hooked) - 8, 409, "the old instance is to go", anchor="end")
    x = panel.x(completed)
    panel.out.append(f'<path d="M{x} 100V{bottom - 26}" stroke="{DONE}" stroke-width="2.5"/>')
    panel.text(x, bottom - 10, "CONTINUE: the instance is terminated", anchor="middle", fill=DONE, bold=True)
    panel.deadline(deadline, top + 8, bottom)
    panel.text(panel.x(deadline), bottom + 18, "the hook's deadline: no wait outlasts it", anchor="end", fill=LAST, bold=True)
    return panel.out


def legend(y: int, *meanings: tuple[str, str]) -> list[str]:
    """Draws the legend of the colours."""
    out, x = [], 20
    for fill, words in meanings:
        out.append(f'<rect x="{x}" y="{y}" width="18" height="12" rx="2" fill="{fill}"/>')
        out.append(f'<text x="{x + 25}" y="{y + 10}" font-size="12" fill="{SOFT}">{words}</text>')
        x += 150
    return out


def pictures() -> dict[Path, str]:
    """Returns the pictures by their files."""
    between = f'<path d="M20 352H{WIDTH - 20}" stroke="{LINE}"/>'
    colours = (WAITS, "waits, or valid"), (REFUSED, "refused"), (ENDS, "pods terminate"), (HOLDS, "held back")
    drains = [*spot(), between, *hook(), *legend(655, *colours)]
    lives = [*life(), *legend(518, (WAITS, "in force"), (ENDS, "pods terminate"), (HOLDS, "waits"))]
    return {
        FOLDER / "timeline.svg": picture(
            "How a drain meets its deadline, and how a lifecycle hook is kept alive", 684, drains
        ),
        FOLDER / "life.svg": picture("The whole life of a node, with all that it waits for", 546, lives),
    }


def picture(title: str, height: int, content: list[str]) -> str:
    """Returns a whole picture, on its own light background for dark pages."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{title}" font-family="{FONT}" fill="{INK}">'
    )
    ground = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="{PAPER}" stroke="{LINE}"/>'
    written = "<!-- Written by docs/timeline.py: change that, not this. -->"
    return "\n".join([head, written, f"<title>{title}</title>", ground, *content, "</svg>", ""])


def main() -> int:
    """Writes or checks the pictures."""
    wanted = pictures()
    if sys.argv[1:] == ["--check"]:
        old = [file for file, text in wanted.items() if not file.exists() or file.read_text(encoding="utf-8") != text]
        for file in old:
            print(f"{file.name} differs from what {Path(__file__).name} writes: run it", file=sys.stderr)
        return 1 if old else 0
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    for file, text in wanted.items():
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
