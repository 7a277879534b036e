"""The pictures of docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt

from .numbers import Run, median
from .verdict import SPOT_DEADLINE

INK, SOFT, LINE, PAPER = "#1f2933", "#52606d", "#cbd2d9", "#fbfcfd"
OURS, THEIRS, LAST = "#2f6fab", "#9aa5b1", "#c0392b"

_POINTS = 250
"""Maximum number of points in a curve: more would not be visible."""

plt.rcParams.update(
    {
        "axes.edgecolor": LINE,
        "axes.facecolor": PAPER,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "figure.facecolor": PAPER,
        "font.size": 9,
        "grid.color": LINE,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "ebbtide",
        "text.color": INK,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
    }
)


def storm(file: Path, ours: Run, roofline: Run | None) -> None:
    """Draws the cordoned nodes and evicted pods over time: on the left the beginning, on the right two minutes."""
    runs = [run for run in (roofline, ours) if run]
    figure, (near, whole) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 2), sharey=True)
    for axes in (near, whole):
        for run in runs:
            colour = OURS if run is ours else THEIRS
            width = 1.8 if run is ours else 3.0
            name = "Ebbtide" if run is ours else "roofline"
            if run.receipts:
                _steps(axes, run.receipts, len(run.receipts), SOFT, 0.8, "-", "messages received")
            _steps(axes, run.cordons, run.notices, colour, width, ":", f"{name}: cordons")
            _steps(axes, run.evictions, run.pods, colour, width, "-", f"{name}: evictions")
        axes.set_ylim(0, 104)
        axes.set_xlabel("seconds since the first message was sent", color=SOFT)
    near.set_xlim(0, 1.1 * max(run.last_eviction for run in runs))
    near.set_ylabel("% done", color=SOFT)
    near.legend(loc="lower right")
    whole.set_xlim(0, 1.06 * max(SPOT_DEADLINE, ours.last_eviction))
    whole.axvline(SPOT_DEADLINE, color=LAST, linestyle="--", linewidth=1.5)
    whole.text(SPOT_DEADLINE - 2, 8, "the instances go", color=LAST, ha="right")
    near.set_title(f"{ours.notices:,} notices, {ours.pods:,} pods", loc="left", fontweight="bold")
    whole.set_title("the same, within the two minutes", loc="left", color=SOFT)
    _write(figure, file)


def scale(file: Path, sizes: Sequence[tuple[int, Sequence[Run]]]) -> None:
    """Draws the cost of a storm by its size."""
    figure, (cpu, memory) = plt.subplots(1, 2, figsize=(10, 3.2))
    notices = [size for size, _ in sizes]
    cpu.plot(notices, [median(run.cpu for run in runs) for _, runs in sizes], "o-", color=OURS)
    cpu.set_title("CPU seconds of a storm", loc="left", fontweight="bold")
    memory.plot(notices, [median(run.rss_peak for run in runs) for _, runs in sizes], "o-", color=OURS, label="peak")
    memory.plot(notices, [median(run.rss_idle for run in runs) for _, runs in sizes], "o-", color=THEIRS, label="idle")
    memory.set_title("resident MiB", loc="left", fontweight="bold")
    memory.legend(loc="upper left")
    for axes in (cpu, memory):
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("nodes, each with a notice", color=SOFT)
    _write(figure, file)


def _steps(axes: plt.Axes, at: Sequence[float], of: int, colour: str, width: float, style: str, name: str) -> None:
    shown = sorted({round(n * (len(at) - 1) / _POINTS) for n in range(_POINTS + 1)}) if at else []
    done = [100 * (n + 1) / max(of, 1) for n in shown]
    axes.step(
        [0, *(at[n] for n in shown)],
        [0, *done],
        where="post",
        color=colour,
        linestyle=style,
        linewidth=width,
        label=name,
    )


def _write(figure: plt.Figure, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
