#!/usr/bin/env python3
"""Writes the Grafana dashboard, deploy/helm/ebbtide/files/dashboard.json.

deploy/dashboard.py           writes it
deploy/dashboard.py --check   exits 1 when the file is not what would be written
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "helm" / "ebbtide" / "files" / "dashboard.json"

# Which service a panel is about. "All" is .*, which also matches a label that is not there, as `cluster` is not in a Prometheus of
# one cluster.
OF = 'cluster=~"$cluster",namespace=~"$namespace",job=~"$job"'

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
# PLAIN is the colour of text. In the first of its colours a panel tells that it has no value.
PLAIN, GREEN, ORANGE, RED = "text", "green", "orange", "red"
# As they are. Of the unit "s" Grafana would make 1.67 mins on one axis with 50 s, and 13.3 mins.
SECONDS, MINUTES = "suffix:s", "suffix:min"
# An axis goes at least this far; one with nothing but zeros would go up to 100. A single event is more than this.
AXIS = {"ops": 0.01, "short": 1}


def steps(*later: tuple[float, str], first: str = GREEN) -> dict[str, Any]:
    """Colours from these values on."""
    return {
        "mode": "absolute",
        "steps": [{"color": first, "value": None}, *({"color": colour, "value": value} for value, colour in later)],
    }


def metric(name: str, *labels: str) -> str:
    """A metric of the service that was chosen."""
    return f"ebbtide_{name}{{{','.join([OF, *labels])}}}"


def rate(name: str, *labels: str) -> str:
    """How fast a counter grows, a second."""
    return f"rate({metric(name, *labels)}[$__rate_interval])"


def grown(name: str, *labels: str) -> str:
    """How much a counter has grown in the time shown."""
    return f"increase({metric(name, *labels)}[$__range])"


def quantile(part: float, name: str, by: str, *labels: str) -> str:
    """A quantile of a histogram, by a label. Of nothing it would be NaN, for which Grafana shows an empty picture."""
    by = ", ".join(filter(None, ["le", by]))
    return f"histogram_quantile({part}, sum by ({by}) ({rate(f'{name}_bucket', *labels)})) >= 0"


class Dashboard:
    """Panels, placed from left to right in rows."""

    def __init__(self) -> None:
        self.panels: list[dict[str, Any]] = []
        self.x = self.y = self.height = 0

    def row(self, title: str) -> None:
        """Begins a row with a heading."""
        self.end_line()
        self.put({"type": "row", "title": title, "collapsed": False, "panels": []}, WIDTH, 1)

    def stat(self, title: str, about: str, query: str, unit: str = "none", width: int = 4, **more: Any) -> None:
        """One number. `thresholds`, `instant`, `legend`, and the words for no value, `none`, may be given."""
        targets = [target("A", query, more.get("legend", ""), instant=more.get("instant", False))]
        options = {
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "textMode": "auto",
        }
        defaults: dict[str, Any] = {"unit": unit, "thresholds": more.get("thresholds", steps())}
        if unit == "short":
            # What increase() makes of a count is no whole number.
            defaults["decimals"] = 0
        if unit == "percentunit":
            defaults |= {"min": 0, "max": 1, "decimals": 1}
        if "none" in more:
            defaults["noValue"] = more["none"]
        panel = {"type": "stat", "title": title, "description": about, "targets": targets, "options": options}
        self.put(panel | {"fieldConfig": {"defaults": defaults, "overrides": []}}, width, more.get("height", 4))

    def lines(self, title: str, about: str, queries: dict[str, str], unit: str, **more: Any) -> None:
        """Lines over time: by legend, a query. `width`, `limit`, a red line, and `none`, as above, may be given."""
        targets = [target(chr(ord("A") + n), query, legend) for n, (legend, query) in enumerate(queries.items())]
        limit = more.get("limit")
        custom: dict[str, Any] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 10,
            # A single value between gaps, as most drains are in hours of time, has no line: only as a point is it seen.
            "showPoints": "auto",
            "pointSize": 4,
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if more.get("stacked") else "none"},
            "thresholdsStyle": {"mode": "line" if limit else "off"},
        }
        # Grafana draws a limit that is above the values outside of the picture.
        axis = limit * 1.1 if limit else AXIS.get(unit)
        if axis and more.get("axis", True):
            custom["axisSoftMax"] = axis
        defaults: dict[str, Any] = {
            "unit": unit,
            "min": 0,
            "custom": custom,
            "thresholds": steps((limit, RED)) if limit else steps(),
        }
        if "none" in more:
            defaults["noValue"] = more["none"]
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        panel = {"type": "timeseries", "title": title, "description": about, "targets": targets, "options": options}
        config = {"defaults": defaults, "overrides": []}
        self.put(panel | {"fieldConfig": config}, more.get("width", 8), more.get("height", 8))

    def put(self, panel: dict[str, Any], width: int, height: int) -> None:
        """Places a panel to the right of the last one, or below."""
        if self.x + width > WIDTH:
            self.end_line()
        place = {"x": self.x, "y": self.y, "w": width, "h": height}
        common = {"id": len(self.panels) + 1, "gridPos": place}
        if panel["type"] != "row":
            common["datasource"] = DATASOURCE
        self.panels.append(common | panel)
        self.x += width
        self.height = max(self.height, height)

    def end_line(self) -> None:
        """Goes on below what has been placed."""
        self.x, self.y, self.height = 0, self.y + self.height, 0


def target(letter: str, query: str, legend: str, instant: bool = False) -> dict[str, Any]:
    """One query of a panel."""
    asked = {"datasource": DATASOURCE, "refId": letter, "expr": query, "legendFormat": legend or "__auto"}
    return asked | ({"instant": True, "range": False} if instant else {"range": True})


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """A label of the service, to choose by."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"Variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "hide": 0,
        "skipUrlSync": False,
    }


IN_TIME = 'outcome=~"drained|node-gone"'
COUNTED = 'outcome!="uncordoned"'
MISSED = 'outcome=~"blocked|timed-out|failed"'
HARD = 'deadline="hard"'
RECEIVES = 'operation="ReceiveMessage"'
FAILED = 'outcome!~"ok|refused"'
THROTTLED = 'outcome="throttled"'


def two_minutes(board: Dashboard) -> None:
    """The question that the dashboard is for."""
    drains = "drain_duration_seconds_count"
    board.stat(
        "Did we make the two minutes?",
        "The share of drains with a hard deadline (spot, capacity reservation, the end of a hook) that ended in time. "
        "Nodes that somebody uncordoned don't count. No drain: there was none such in the time shown.",
        f"sum({grown(drains, HARD, IN_TIME)}) / (sum({grown(drains, HARD, COUNTED)}) > 0)",
        "percentunit",
        width=6,
        height=8,
        instant=True,
        legend="in time",
        none="no drain",
        thresholds=steps((0, RED), (0.95, ORANGE), (0.9999, GREEN), first=PLAIN),
    )
    board.lines(
        "From notice to cordon",
        "How old a spot warning was when its node was cordoned: the queue's time counts. The line is the two minutes.",
        {
            "median": quantile(0.5, "cordon_delay_seconds", "", 'kind="spot"'),
            "99th percentile": quantile(0.99, "cordon_delay_seconds", "", 'kind="spot"'),
        },
        SECONDS,
        limit=120,
        width=5,
        none="no drain",
    )
    board.lines(
        "Length of hard drains",
        "Of drains with a hard deadline. Spot gives 120 s, the line; hooks may give more. By the buckets of a "
        "histogram, so not to the second.",
        {
            "median": quantile(0.5, "drain_duration_seconds", "", HARD),
            "99th percentile": quantile(0.99, "drain_duration_seconds", "", HARD),
        },
        SECONDS,
        limit=120,
        width=5,
        none="no drain",
    )
    board.stat(
        "Ended in time",
        "Drains of nodes that AWS takes, in the time shown.",
        f"sum({grown(drains, HARD, IN_TIME)})",
        "short",
        width=4,
        instant=True,
        legend="in time",
        none="none",
    )
    board.stat(
        "Missed",
        "Drains that left pods on a node that AWS takes, in the time shown.",
        f"sum({grown(drains, HARD, MISSED)})",
        "short",
        width=4,
        instant=True,
        legend="missed",
        none="none",
        thresholds=steps((0.5, RED)),
    )
    # Under the two above.
    x, y = 16, board.y + 4
    left = "drain_time_left_seconds"
    board.stat(
        "Least time to spare",
        "One drain of twenty with a hard deadline had less than this left at its end, in the time shown.",
        # Of no drain the quantile is NaN, for which Grafana would show an empty panel.
        f"histogram_quantile(0.05, sum by (le) ({grown(f'{left}_bucket', HARD)})) "
        f"and sum({grown(f'{left}_count', HARD)}) > 0",
        SECONDS,
        width=8,
        instant=True,
        legend="left",
        none="no drain",
        thresholds=steps((0, RED), (2, ORANGE), (10, GREEN), first=PLAIN),
    )
    board.panels[-1]["gridPos"] |= {"x": x, "y": y}
    board.x, board.y, board.height = WIDTH, y - 4, 8


def running(board: Dashboard) -> None:
    """What goes on now."""
    board.row("What runs")
    numbers = [
        ("Replicas ready", "Two are usual.", f"sum({metric('ready')})", steps((1, GREEN), first=RED)),
        ("Nodes known", "Nodes that are EC2 instances.", f"max({metric('nodes')})", steps()),
        ("Messages held", "Received, and not finished.", f"sum({task('message')})", steps()),
        ("Drains", "At most one for each node.", f"sum({task('drain')})", steps()),
        ("Hooks kept alive", "Heartbeats that run.", f"sum({task('heartbeat')})", steps()),
        ("Pods held back", "By a budget or an annotation.", f"sum({metric('pods_blocked')})", steps((1, ORANGE))),
    ]
    for title, about, query, thresholds in numbers:
        board.stat(title, about, query, thresholds=thresholds, legend=title)
    kinds = 'kind=~"message|interruption|drain|heartbeat|pod-watch|batch"'
    tasks = {"{{kind}}": f"sum by (kind) ({metric('tasks', kinds)})"}
    board.lines("Tasks", "What comes and goes with work. All are 0 when nothing is going on.", tasks, "short")
    notices = {"{{kind}}: {{outcome}}": f"sum by (kind, outcome) ({rate('notices_total')}) > 0"}
    board.lines("Notices by how they ended", "See docs/metrics.md for the outcomes.", notices, "ops", none="none")
    drains = {"{{deadline}}: {{outcome}}": f"sum by (deadline, outcome) ({rate('drain_duration_seconds_count')}) > 0"}
    about = "hard: AWS takes the node. soft: only patience ends."
    board.lines("Drains by how they ended", about, drains, "ops", none="none")


def task(kind: str) -> str:
    """The gauge of one kind of task."""
    return metric("tasks", f'kind="{kind}"')


def queue(board: Dashboard) -> None:
    """SQS."""
    board.row("Queue")
    board.lines(
        "Messages",
        "Received, and what became of them.",
        {"{{outcome}}": f"sum by (outcome) ({rate('messages_total')})"},
        "ops",
        width=6,
    )
    board.lines(
        "Age of messages at their receipt",
        "99th percentile. first: what a notice lost on the queue. again, often: after a hand-over.",
        {"{{receipt}}": quantile(0.99, "message_age_seconds", "receipt")},
        SECONDS,
        limit=60,
        width=6,
        none="none",
    )
    board.lines(
        "Receives",
        "An empty queue answers every 20 s.",
        {"{{outcome}}": f"sum by (outcome) ({rate('aws_calls_total', RECEIVES)})"},
        "ops",
        width=6,
    )
    board.lines(
        "Messages that name nothing to do",
        "Unreadable ones, and those that ask for nothing, by reason.",
        {
            "unreadable: {{reason}}": f"sum by (reason) ({rate('messages_malformed_total')}) > 0",
            "ignored: {{reason}}": f"sum by (reason) ({rate('messages_ignored_total')})",
        },
        "ops",
        width=6,
    )


def calls(board: Dashboard) -> None:
    """AWS and the API server."""
    board.row("Calls and throttling")
    for name, which, by in [("AWS", "aws", "operation"), ("The API server", "kube", "verb, resource")]:
        legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
        total = f"{which}_calls_total"
        board.lines(
            f"{name}: calls",
            "By operation.",
            {legend: f"sum by ({by}) ({rate(total)}) > 0"},
            "ops",
            width=6,
        )
        board.lines(
            f"{name}: throttled and failed",
            "By operation and category. A budget's refusal is no failure.",
            {f"{legend}: {{{{outcome}}}}": f"sum by ({by}, outcome) ({rate(total, FAILED)}) > 0"},
            "ops",
            width=6,
            none="none",
        )
        without_polls = ['operation!="ReceiveMessage"'] if which == "aws" else []
        board.lines(
            f"{name}: time a call takes",
            "99th percentile, without the wait for its turn" + (", and without long polls." if without_polls else "."),
            {legend: quantile(0.99, f"{which}_call_duration_seconds", by, *without_polls)},
            "s",
            width=6,
            none="none",
        )
        board.lines(
            f"{name}: share throttled",
            "Above a tenth for long, an alert fires.",
            {"throttled": f"sum({rate(total, THROTTLED)}) / sum({rate(total)}) or 0 * sum({rate(total)})"},
            "percentunit",
            limit=0.1,
            width=6,
        )


def hooks(board: Dashboard) -> None:
    """Lifecycle hooks."""
    board.row("Lifecycle hooks")
    heartbeats = {"{{result}}": f"sum by (result) ({rate('heartbeats_total')}) > 0"}
    board.lines("Heartbeats", "sent and over are well.", heartbeats, "ops", width=12, none="none")
    completions = {"{{result}}": f"sum by (result) ({rate('completions_total')}) > 0"}
    board.lines("Completions", "failed: the hook ran into its own timeout.", completions, "ops", width=12, none="none")


def budgets(board: Dashboard) -> None:
    """What holds drains up."""
    board.row("Evictions, and what holds them back")
    board.lines(
        "Evictions and deletions",
        "refused: by a budget. deleted: before a hard deadline, because the node goes.",
        {
            "eviction: {{result}}": f"sum by (result) ({rate('evictions_total')})",
            "deletion: {{result}}": f"sum by (result) ({rate('deletions_total')})",
        },
        "ops",
    )
    blocked = {"{{instance}}": metric("pods_blocked")}
    board.lines("Pods held back, by replica", "By a budget, or an annotation of their own.", blocked, "short")
    longest = {"{{instance}}": f"{metric('pods_blocked_longest_seconds')} / 60"}
    board.lines("Held back for longest", "Above 15 minutes an alert fires.", longest, MINUTES, limit=15)


def errors(board: Dashboard) -> None:
    """What went wrong."""
    board.row("Errors")
    retries = {"{{step}}: {{category}}": f"sum by (step, category) ({rate('retries_total')})"}
    board.lines("Failures that were retried", "Until the deadline.", retries, "ops", width=6, none="none")
    watches = {"{{resource}}": f"sum by (resource) ({rate('watch_failures_total')})"}
    board.lines("Watches that broke", "One now and then is usual.", watches, "ops", width=6)
    crashes = {"{{instance}}": f"increase({metric('panics_total')}[$__rate_interval])"}
    board.lines("Panics", "Each is a bug.", crashes, "short", width=6)
    events = {"{{result}}": f"sum by (result) ({rate('events_total')})"}
    board.lines("Kubernetes Events", "written, dropped, or why not.", events, "ops", width=6)


def process(board: Dashboard) -> None:
    """The process."""
    board.row("The process")
    # Prometheus' usual figures of a process name no program: the replica is found by a metric of ours.
    ours = f"and on (cluster, namespace, job, instance) {metric('build_info')}"
    memory = {"{{instance}}": f"process_resident_memory_bytes{{{OF}}} {ours}"}
    board.lines("Memory", "Resident.", memory, "bytes", width=6)
    cpu = {"{{instance}}": f"rate(process_cpu_seconds_total{{{OF}}}[$__rate_interval]) {ours}"}
    board.lines("CPU", "Cores.", cpu, "short", width=6, axis=False)
    alive = {"{{instance}}": metric("runtime_alive_tasks")}
    board.lines("Tasks of the runtime", "Those of libraries, too.", alive, "short", width=6)
    busy = {"{{instance}}": f"max by (instance) ({rate('runtime_busy_seconds_total')})"}
    board.lines("Busiest thread", "1: it never sleeps.", busy, "percentunit", width=6)


def dashboard() -> dict[str, Any]:
    """All of it."""
    board = Dashboard()
    for part in (two_minutes, running, queue, calls, hooks, budgets, errors, process):
        part(board)
    source = {
        "type": "datasource",
        "name": "datasource",
        "label": "Prometheus",
        "query": "prometheus",
        "refresh": 1,
        "current": {},
        "options": [],
        "hide": 0,
        "regex": "",
        "multi": False,
        "includeAll": False,
        "skipUrlSync": False,
    }
    return {
        "uid": "ebbtide",
        "title": "Ebbtide",
        "description": "Drains of nodes that AWS takes away. Alerts and what to do about them: docs/operating.md.",
        "tags": ["ebbtide", "kubernetes", "aws"],
        "schemaVersion": 41,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "preload": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "weekStart": "",
        "annotations": {"list": []},
        "links": [
            {
                "type": "link",
                "title": "Runbook",
                "url": "https://github.com/ebbtide/ebbtide/blob/main/docs/operating.md",
                "icon": "doc",
                "targetBlank": True,
                "tags": [],
                "tooltip": "",
            }
        ],
        "templating": {
            "list": [
                source,
                variable("cluster", "Cluster", "label_values(ebbtide_build_info, cluster)"),
                variable("namespace", "Namespace", 'label_values(ebbtide_build_info{cluster=~"$cluster"}, namespace)'),
                variable(
                    "job", "Job", 'label_values(ebbtide_build_info{cluster=~"$cluster",namespace=~"$namespace"}, job)'
                ),
            ]
        },
        "panels": board.panels,
    }


def main() -> int:
    """Writes, or compares."""
    text = json.dumps(dashboard(), indent=2) + "\n"
    if "--check" not in sys.argv:
        FILE.write_text(text)
    elif FILE.read_text() != text:
        print(f"{FILE.name} is not what deploy/dashboard.py writes: run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
