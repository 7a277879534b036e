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
COLOURS = ["#3274d9", "#e0752d", "#299c46", "#8f3bb8", "#c4162a", "#b8860b", "#17a2b8", "#e377c2", "#7f7f7f", "#8c564b"]
SHADES = {"green": "#299c46", "orange": "#e0752d", "red": "#c4162a"}
INK, SOFT, LINE, PAPER = "#1f2933", "#61707f", "#d5dbe1", "#f4f5f7"
CELL = (0.58, 0.25)
UNITS = {"s": "{:g} s", "percentunit": "{:.1%}", "ops": "{:g}/s"}


def written(value: float, unit: str, decimals: int | None = None) -> str:
    """A number with its unit."""
    rounded = value if unit == "percentunit" else float(f"{value:.3g}")
    if decimals == 0:
        rounded = round(value)
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


def moment(second: float) -> float:
    """A time as matplotlib has it."""
    return date2num(datetime.datetime.fromtimestamp(second, datetime.UTC))


def draw_stat(axes: Any, panel: dict[str, Any], answers: list[Any]) -> None:
    """One number."""
    axes.set_axis_off()
    defaults = panel["fieldConfig"]["defaults"]
    found = [numbers(series)[-1][1] for _, answer in answers for series in answer]
    large = panel["gridPos"]["h"] > 4
    text, colour = "no data", SOFT
    if found:
        text, colour = (
            written(found[0], defaults["unit"], defaults.get("decimals")),
            colour_of(found[0], defaults["thresholds"]),
        )
    axes.text(0.5, 0.45, text, size=30 if large else 19, color=colour, ha="center", va="center", weight="bold")


def draw_lines(axes: Any, panel: dict[str, Any], answers: list[Any], span: tuple[float, float]) -> None:
    """Lines over time."""
    defaults = panel["fieldConfig"]["defaults"]
    lines = [(named(target["legendFormat"], one["metric"]), one) for target, answer in answers for one in answer]
    # What never happened has no line worth its place in the legend.
    lines = [(name, one) for name, one in lines if any(value for _, value in numbers(one))] or lines[:1]
    for number, (name, series) in enumerate(lines):
        at, value = zip(*numbers(series), strict=True)
        axes.plot(
            [moment(second) for second in at], value, color=COLOURS[number % len(COLOURS)], linewidth=1.1, label=name
        )
    limits = [step for step in defaults["thresholds"]["steps"] if step["value"] is not None]
    for step in limits:
        axes.axhline(step["value"], color=SHADES["red"], linewidth=0.9, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_xlim(*(moment(second) for second in span))
    axes.yaxis.set_major_formatter(lambda value, _: written(value, defaults["unit"]))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
    axes.tick_params(labelsize=6.5, colors=SOFT, length=0)
    axes.grid(color=LINE, linewidth=0.5)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    columns = panel["gridPos"]["w"] // 3
    axes.legend(
        fontsize=6,
        frameon=False,
        ncols=columns if len(lines) > columns else max(len(lines), 1),
        loc="upper left",
        bbox_to_anchor=(-0.1, -0.1),
        labelcolor=INK,
        handlelength=1.2,
        columnspacing=0.9,
        labelspacing=0.25,
    )


def draw(picture: Path, panels: list[dict[str, Any]], results: Results, span: tuple[float, float]) -> None:
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
        draw_lines(figure.add_axes(box), panel, answers, span)
    figure.savefig(picture, dpi=100, facecolor=PAPER)
    # Few colours are in it: a third of the size.
    from PIL import Image

    Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(picture, optimize=True)
