"""Draws the dashboard's panels from what their queries gave. A drawing: Grafana itself is not involved."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.dates import DateFormatter, date2num

Results = Callable[[dict[str, Any]], list[tuple[dict[str, Any], list[dict[str, Any]]]]]

# Down to which row it is drawn: the rest is for those who look for something.
ROWS = ("What runs", "Queue")
COLOURS = ["#3274d9", "#e0752d", "#299c46", "#8f3bb8", "#c4162a", "#37872d", "#5794f2", "#806eb7", "#b877d9", "#705da0"]
SHADES = {"green": "#299c46", "orange": "#e0752d", "red": "#c4162a"}
INK, SOFT, LINE, PAPER = "#1f2933", "#61707f", "#d5dbe1", "#f4f5f7"
CELL = (0.58, 0.25)
UNITS = {"s": "{:g} s", "percentunit": "{:.1%}", "ops": "{:g}/s"}


def written(value: float, unit: str) -> str:
    """A number with its unit."""
    rounded = value if unit == "percentunit" else float(f"{value:.3g}")
    return UNITS.get(unit, "{:g}").format(rounded)


def named(legend: str, labels: dict[str, str]) -> str:
    """What a legend's pattern says of a series."""
    return re.sub(r"{{(\w+)}}", lambda label: labels.get(label[1], ""), legend)


def colour_of(value: float, thresholds: dict[str, Any]) -> str:
    """The colour that a value has."""
    reached = [step for step in thresholds["steps"] if step["value"] is None or value >= step["value"]]
    return SHADES[reached[-1]["color"]]


def numbers(series: dict[str, Any]) -> list[tuple[float, float]]:
    """Times and values."""
    return [(float(at), float(value)) for at, value in series.get("values") or [series["value"]]]


def draw_stat(axes: Any, panel: dict[str, Any], answers: list[Any]) -> None:
    """One number."""
    axes.set_axis_off()
    defaults = panel["fieldConfig"]["defaults"]
    found = [numbers(series)[-1][1] for _, answer in answers for series in answer]
    large = panel["gridPos"]["h"] > 4
    text, colour = "no data", SOFT
    if found:
        text, colour = written(found[0], defaults["unit"]), colour_of(found[0], defaults["thresholds"])
    axes.text(0.5, 0.45, text, size=30 if large else 19, color=colour, ha="center", va="center", weight="bold")


def draw_lines(axes: Any, panel: dict[str, Any], answers: list[Any]) -> None:
    """Lines over time."""
    defaults = panel["fieldConfig"]["defaults"]
    lines = [(named(target["legendFormat"], one["metric"]), one) for target, answer in answers for one in answer]
    # What never happened has no line worth its place in the legend.
    lines = [(name, one) for name, one in lines if any(value for _, value in numbers(one))] or lines[:1]
    for number, (name, series) in enumerate(lines):
        at, value = zip(*numbers(series), strict=True)
        moments = [date2num(datetime.datetime.fromtimestamp(second, datetime.UTC)) for second in at]
        axes.plot(moments, value, color=COLOURS[number % len(COLOURS)], linewidth=1.1, label=name)
    limits = [step for step in defaults["thresholds"]["steps"] if step["value"] is not None]
    for step in limits:
        axes.axhline(step["value"], color=SHADES["red"], linewidth=0.9, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: written(value, defaults["unit"]))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
    axes.tick_params(labelsize=6.5, colors=SOFT, length=0)
    axes.grid(color=LINE, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    rows = min(len(lines), 8)
    axes.legend(
        *(handles[:rows] for handles in axes.get_legend_handles_labels()),
        fontsize=6,
        frameon=False,
        ncols=2,
        loc="upper left",
        bbox_to_anchor=(-0.1, -0.11),
        labelcolor=INK,
        handlelength=1.2,
        columnspacing=1.2,
    )


def draw(picture: Path, panels: list[dict[str, Any]], results: Results) -> None:
    """Draws the panels above the first row that is not in ROWS."""
    shown: list[dict[str, Any]] = []
    for panel in panels:
        if panel["type"] == "row" and panel["title"] not in ROWS:
            break
        shown.append(panel)
    wide, high = CELL
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown) + 2
    figure = pyplot.figure(figsize=(24 * wide, height * high), facecolor=PAPER)
    figure.text(0.01, 1 - 0.9 / height, "Ebbtide", size=12, color=INK, weight="bold", va="center")
    told = "drawn from the dashboard's queries, as a Prometheus that scraped the sandbox answered them"
    figure.text(0.99, 1 - 0.9 / height, told, size=7, color=SOFT, ha="right", va="center")
    for panel in shown:
        place = panel["gridPos"]
        left, top = place["x"] / 24, 1 - (place["y"] + 1.6) / height
        width, down = place["w"] / 24, place["h"] / height
        if panel["type"] == "row":
            figure.text(0.01, top - down / 2, panel["title"], size=9, color=INK, weight="bold", va="center")
            continue
        gap = 0.003
        frame = figure.add_axes((left + gap, top - down + gap, width - 2 * gap, down - 2 * gap), facecolor="white")
        frame.set_xticks([])
        frame.set_yticks([])
        for side in frame.spines.values():
            side.set_color(LINE)
        inch = 1 / (height * high)
        figure.text(left + 0.008, top - 0.14 * inch, panel["title"], size=7.5, color=INK, weight="bold", va="center")
        answers = results(panel)
        if panel["type"] == "stat":
            draw_stat(figure.add_axes((left, top - down, width, down)), panel, answers)
            continue
        beside, below = 0.55 / (24 * wide), 0.55 * inch
        box = (left + beside, top - down + below, width - beside - 0.012, down - below - 0.32 * inch)
        draw_lines(figure.add_axes(box), panel, answers)
    figure.savefig(picture, dpi=100, facecolor=PAPER)
    # Few colours are in it: a third of the size.
    from PIL import Image

    Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(picture, optimize=True)
