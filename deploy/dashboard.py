#!/usr/bin/env python3
"""Writes the Grafana dashboard, deploy/helm/ebbtide/files/dashboard.json.

deploy/dashboard.py           writes it
deploy/dashboard.py --check   exits 1 if the file differs
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "helm" / "ebbtide" / "files" / "dashboard.json"
REPOSITORY = tomllib.loads((Path(__file__).parents[1] / "Cargo.toml").read_text())["package"]["repository"]

# Selector of the service. "All" is .*, which also matches a missing label, such as `cluster` in a Prometheus of one cluster.
OF = 'cluster=~"$cluster",namespace=~"$namespace",job=~"$job"'
# Selector of the agents, which are scraped as another job.
AGENTS = 'cluster=~"$cluster",namespace=~"$namespace"'

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
# PLAIN is the colour of text. A panel without a value uses the first of its colours.
PLAIN, GREEN, ORANGE, RED = "text", "green", "orange", "red"
# A unit without conversion. With the unit "s" Grafana mixes 50 s and 1.67 mins on one axis.
SECONDS = "suffix:s"
# Minimum upper end of an axis: Grafana extends an axis of zeros to 100. A single event exceeds these values.
AXIS = {"ops": 0.01, "short": 1}


def steps(*later: tuple[float, str], first: str = GREEN) -> dict[str, Any]:
    """Returns thresholds: each colour from its value on."""
    return {
        "mode": "absolute",
        "steps": [{"color": first, "value": None}, *({"color": colour, "value": value} for value, colour in later)],
    }


def metric(name: str, *labels: str) -> str:
    """Returns a metric of the selected service."""
    return f"ebbtide_{name}{{{','.join([OF, *labels])}}}"


def rate(name: str, *labels: str) -> str:
    """Returns a counter's rate per second."""
    return f"rate({metric(name, *labels)}[$__rate_interval])"


def agent_failures(what: str) -> str:
    """Returns the rate per second at which something failed for an agent."""
    return f"rate(ebbtide_agent_{what}_failures_total{{{AGENTS}}}[$__rate_interval])"


def grown(name: str, *labels: str) -> str:
    """Returns a counter's increase in the time range."""
    return f"increase({metric(name, *labels)}[$__range])"


def quantile(part: float, name: str, by: str, *labels: str) -> str:
    """Returns a quantile of a histogram by a label. `>= 0` drops NaN, for which Grafana would show an empty panel."""
    by = ", ".join(filter(None, ["le", by]))
    return f"histogram_quantile({part}, sum by ({by}) ({rate(f'{name}_bucket', *labels)})) >= 0"


class Dashboard:
    """Panels, placed from left to right in rows."""

    def __init__(self) -> None:
        self.panels: list[dict[str, Any]] = []
        self.x = self.y = self.height = 0

    def row(self, title: str) -> None:
        """Starts a row with a heading."""
        self.end_line()
        self.put({"type": "row", "title": title, "collapsed": False, "panels": []}, WIDTH, 1)

    def stat(self, title: str, about: str, query: str, unit: str = "none", width: int = 4, **more: Any) -> None:
        """Adds a single number. Options: `thresholds`, `instant`, `legend`, and `none`, the text for no value."""
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
            # increase() of a count is not a whole number.
            defaults["decimals"] = 0
        if unit == "percentunit":
            defaults |= {"min": 0, "max": 1, "decimals": 1}
        if "none" in more:
            defaults["noValue"] = more["none"]
        panel = {"type": "stat", "title": title, "description": about, "targets": targets, "options": options}
        self.put(panel | {"fieldConfig": {"defaults": defaults, "overrides": []}}, width, more.get("height", 4))

    def lines(self, title: str, about: str, queries: dict[str, str], unit: str, **more: Any) -> None:
        """Adds lines over time, a query by legend. Options: `width`, `limit` (a red line), and `none`, as above."""
        targets = [target(chr(ord("A") + n), query, legend) for n, (legend, query) in enumerate(queries.items())]
        limit = more.get("limit")
        custom: dict[str, Any] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 10,
            # A single value between gaps, such as one drain in hours, is visible only as a point.
            "showPoints": "auto",
            "pointSize": 4,
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if more.get("stacked") else "none"},
            "thresholdsStyle": {"mode": "line" if limit else "off"},
        }
        # Grafana would draw a limit above all values outside the panel.
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

    def bars(self, title: str, about: str, query: str, legend: str, none: str, width: int = 16) -> None:
        """Adds a bar for each series, the longest first; `none` is the text without any."""
        options = {
            "displayMode": "basic",
            "orientation": "horizontal",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "showUnfilled": False,
            "valueMode": "text",
        }
        defaults = {"unit": "short", "decimals": 0, "min": 0, "noValue": none, "thresholds": steps()}
        targets = [target("A", query, legend, instant=True)]
        panel = {"type": "bargauge", "title": title, "description": about, "targets": targets, "options": options}
        self.put(panel | {"fieldConfig": {"defaults": defaults, "overrides": []}}, width, 8)

    def put(self, panel: dict[str, Any], width: int, height: int) -> None:
        """Places a panel to the right of the last one, or in the next line."""
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
        """Starts a new line of panels."""
        self.x, self.y, self.height = 0, self.y + self.height, 0


def target(letter: str, query: str, legend: str, instant: bool = False) -> dict[str, Any]:
    """Returns one query of a panel."""
    asked = {"datasource": DATASOURCE, "refId": letter, "expr": query, "legendFormat": legend or "__auto"}
    return asked | ({"instant": True, "range": False} if instant else {"range": True})


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    """Returns a variable that selects the service by a label."""
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


IN_TIME = 'outcome=~"drained|node-dead|node-gone"'
COUNTED = 'outcome!="uncordoned"'
MISSED = 'outcome=~"blocked|timed-out|stuck|failed"'
HARD = 'deadline="hard"'
RECEIVES = 'operation="ReceiveMessage"'
FAILED = 'outcome!~"ok|refused"'
THROTTLED = 'outcome="throttled"'


def two_minutes(board: Dashboard) -> None:
    """Adds the panels on deadlines, the dashboard's main question."""
    drains = "drain_duration_seconds_count"
    board.stat(
        "Drained in time",
        "Share of the drains with a hard deadline (spot, capacity reservation, lifecycle hook) that ended in time, without "
        "nodes that a user uncordoned. No drain: none in the time range.",
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
        "Age of a spot warning at the cordon of its node, including its time on the queue. The slowest is rounded up to the end of "
        "its histogram bucket: no cordon took longer. The line is at two minutes.",
        {
            "median": quantile(0.5, "cordon_delay_seconds", "", 'kind="spot"'),
            # A high quantile of a few notices would be an invented place within the slowest one's bucket.
            "slowest, at most": quantile(1, "cordon_delay_seconds", "", 'kind="spot"'),
        },
        SECONDS,
        limit=120,
        width=5,
        none="no drain",
    )
    board.lines(
        "Length of hard drains",
        "Drains with a hard deadline. Spot gives 120 s (the line), hooks may give more. Estimated from histogram buckets.",
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
        "Drains with a hard deadline that ended in time, in the time range.",
        f"sum({grown(drains, HARD, IN_TIME)})",
        "short",
        width=4,
        instant=True,
        legend="in time",
        none="none",
    )
    board.stat(
        "Missed",
        "Drains with a hard deadline that left pods on the node, in the time range.",
        f"sum({grown(drains, HARD, MISSED)})",
        "short",
        width=4,
        instant=True,
        legend="missed",
        none="none",
        thresholds=steps((0.5, RED)),
    )
    # Below the two above.
    x, y = 16, board.y + 4
    left = "drain_time_left_seconds"
    board.stat(
        "Least time to spare",
        "5% of the drains with a hard deadline had less time left at their end, in the time range.",
        # Without drains the quantile is NaN, for which Grafana would show an empty panel.
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
    """Adds the panels on current work."""
    board.row("Current work")
    numbers = [
        ("Replicas ready", "Normally two.", f"sum({metric('ready')})", steps((1, GREEN), first=RED)),
        ("Nodes known", "Nodes that are EC2 instances.", f"max({metric('nodes')})", steps()),
        ("Messages held", "Received and not finished.", f"sum({task('message')})", steps()),
        ("Drains", "At most one per node.", f"sum({task('drain')})", steps()),
        ("Hooks kept alive", "Running heartbeats.", f"sum({task('heartbeat')})", steps()),
        ("Pods held back", "By a budget or an annotation.", f"sum({metric('pods_blocked')})", steps((1, ORANGE))),
    ]
    for title, about, query, thresholds in numbers:
        board.stat(title, about, query, thresholds=thresholds, legend=title)
    kinds = 'kind=~"message|interruption|drain|heartbeat|pod-watch|batch"'
    tasks = {"{{kind}}": f"sum by (kind) ({metric('tasks', kinds)})"}
    board.lines("Tasks", "Tasks of the current work; all 0 when idle.", tasks, "short")
    notices = {"{{kind}}: {{outcome}}": f"sum by (kind, outcome) ({rate('notices_total')}) > 0"}
    board.lines("Notices by outcome", "Outcomes: docs/metrics.md.", notices, "ops", none="none")
    drains = {"{{deadline}}: {{outcome}}": f"sum by (deadline, outcome) ({rate('drain_duration_seconds_count')}) > 0"}
    about = "hard: the node's capacity is lost at the deadline. soft: only the drain's time limit ends."
    board.lines("Drains by deadline and outcome", about, drains, "ops", none="none")


def task(kind: str) -> str:
    """Returns the gauge of one kind of task."""
    return metric("tasks", f'kind="{kind}"')


def queue(board: Dashboard) -> None:
    """Adds the panels on SQS."""
    board.row("Queue")
    board.lines(
        "Messages",
        "Received messages and their outcome.",
        {"{{outcome}}": f"sum by (outcome) ({rate('messages_total')})"},
        "ops",
        width=6,
    )
    board.lines(
        "Age of messages at their receipt",
        "99th percentile. first: time that a notice waited on the queue. again, often: after a hand-over.",
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
        "Ignored and malformed messages",
        "By reason, see docs/events.md.",
        {
            "unreadable: {{reason}}": f"sum by (reason) ({rate('messages_malformed_total')}) > 0",
            "ignored: {{reason}}": f"sum by (reason) ({rate('messages_ignored_total')})",
        },
        "ops",
        width=6,
    )


def calls(board: Dashboard) -> None:
    """Adds the panels on calls to AWS and the API server."""
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
            "By operation and category, without budgets' refusals.",
            {f"{legend}: {{{{outcome}}}}": f"sum by ({by}, outcome) ({rate(total, FAILED)}) > 0"},
            "ops",
            width=6,
            none="none",
        )
        without_polls = ['operation!="ReceiveMessage"'] if which == "aws" else []
        board.lines(
            f"{name}: duration of calls",
            "99th percentile, without the wait for its turn" + (" and long polls." if without_polls else "."),
            {legend: quantile(0.99, f"{which}_call_duration_seconds", by, *without_polls)},
            "s",
            width=6,
            none="none",
        )
        board.lines(
            f"{name}: share throttled",
            "Above 10% for minutes an alert fires.",
            {"throttled": f"sum({rate(total, THROTTLED)}) / sum({rate(total)}) or 0 * sum({rate(total)})"},
            "percentunit",
            limit=0.1,
            width=6,
        )


def hooks(board: Dashboard) -> None:
    """Adds the panels on lifecycle hooks."""
    board.row("Lifecycle hooks")
    heartbeats = {"{{result}}": f"sum by (result) ({rate('heartbeats_total')}) > 0"}
    board.lines("Heartbeats", "sent and over are normal.", heartbeats, "ops", width=12, none="none")
    completions = {"{{result}}": f"sum by (result) ({rate('completions_total')}) > 0"}
    board.lines("Completions", "failed: the hook reached its timeout.", completions, "ops", width=12, none="none")
    waits = {"{{wait}} {{outcome}}": f"sum by (wait, outcome) ({rate('waits_seconds_count')})"}
    board.lines("Waits", "Before evictions, and before completions. time-over: timed out.", waits, "ops", width=12, none="none")
    lasted = {"{{wait}}": quantile(0.95, "waits_seconds", "wait", 'outcome!="not-needed"')}
    board.lines("Duration of waits", "95 % end within this time.", lasted, SECONDS, width=12, none="none")


def budgets(board: Dashboard) -> None:
    """Adds the panels on blocked drains."""
    board.row("Evictions and blocked pods")
    board.lines(
        "Evictions and deletions",
        "refused: by a budget. deleted: before a hard deadline.",
        {
            "eviction: {{result}}": f"sum by (result) ({rate('evictions_total')})",
            "deletion: {{result}}": f"sum by (result) ({rate('deletions_total')})",
        },
        "ops",
    )
    blocked = {"{{instance}}": metric("pods_blocked")}
    board.lines("Pods held back, by replica", "By a budget or an annotation.", blocked, "short")
    at_risk = {"{{deadline}}": f"sum by (deadline) ({metric('drains_at_risk')})"}
    board.lines("Drains at risk", "Blocked, with at most half of their time left: an alert fires.", at_risk, "short")


def pools(board: Dashboard) -> None:
    """Adds the panels on interrupted capacity."""
    board.row("Interrupted capacity")
    labels = "kind, instance_type, zone, group"
    board.bars(
        "Most interrupted pools",
        "Since the replicas started. Parts that no label of the Node names are unknown.",
        f"sort_desc(topk(10, sum by ({labels}) ({metric('interruptions_total')})))",
        "{{instance_type}} · {{zone}} · {{group}} · {{kind}}",
        none="none",
    )
    kinds = {"{{kind}}": f"sum by (kind) ({grown('interruptions_total')})"}
    board.lines("Interruptions", "By kind, in the time range before.", kinds, "short", none="none")


def repair(board: Dashboard) -> None:
    """Adds the panels on node repair, and on the agents."""
    board.row("Repair and agents")
    held = {"{{kind}}: {{reason}}": f"max by (kind, reason) ({metric('repairs_held')})"}
    about = "Too many are unhealthy for the nodes to be the cause: of one group, of the cluster, or in most zones."
    board.lines("Unhealthy nodes left alone", about, held, "short", none="none")
    notices = {"{{kind}}": f"sum by (kind) (ebbtide_agent_says{{{AGENTS}}})"}
    board.lines("Agent notices", "Announcements in the metadata.", notices, "short", none="no agent")
    failures = {
        "metadata: {{reason}}": f"sum by (reason) ({agent_failures('metadata')}) > 0",
        "the Node can't be patched": f"sum({agent_failures('write')}) > 0",
    }
    board.lines("Failures of agents", "Reasons: docs/metrics.md.", failures, "ops", none="none")


def errors(board: Dashboard) -> None:
    """Adds the panels on errors."""
    board.row("Errors")
    retries = {"{{step}}: {{category}}": f"sum by (step, category) ({rate('retries_total')})"}
    board.lines("Retried failures", "Until the deadline.", retries, "ops", width=6, none="none")
    watches = {"{{resource}}": f"sum by (resource) ({rate('watch_failures_total')})"}
    board.lines("Failed watches", "Occasional ones are normal.", watches, "ops", width=6)
    crashes = {"{{instance}}": f"increase({metric('panics_total')}[$__rate_interval])"}
    board.lines("Panics", "Each is a bug.", crashes, "short", width=6)
    events = {"{{result}}": f"sum by (result) ({rate('events_total')})"}
    board.lines("Kubernetes Events", "written, dropped, or the failure.", events, "ops", width=6)


def process(board: Dashboard) -> None:
    """Adds the panels on the process."""
    board.row("Process")
    # Prometheus' process metrics name no program: a metric of Ebbtide selects the replica.
    ours = f"and on (cluster, namespace, job, instance) {metric('build_info')}"
    memory = {"{{instance}}": f"process_resident_memory_bytes{{{OF}}} {ours}"}
    board.lines("Memory", "Resident memory.", memory, "bytes", width=6)
    cpu = {"{{instance}}": f"rate(process_cpu_seconds_total{{{OF}}}[$__rate_interval]) {ours}"}
    board.lines("CPU", "In cores.", cpu, "short", width=6, axis=False)
    alive = {"{{instance}}": metric("runtime_alive_tasks")}
    board.lines("Tasks of the runtime", "Including those of libraries.", alive, "short", width=6)
    busy = {"{{instance}}": f"max by (instance) ({rate('runtime_busy_seconds_total')})"}
    board.lines("Busiest thread", "1: the thread is always busy.", busy, "percentunit", width=6)


def dashboard() -> dict[str, Any]:
    """Returns the dashboard."""
    board = Dashboard()
    for part in (two_minutes, running, queue, calls, hooks, budgets, pools, repair, errors, process):
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
        "description": "Node drains before AWS takes the nodes away. Runbook: docs/operating.md.",
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
                "url": f"{REPOSITORY}/blob/main/docs/operating.md",
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
    """Writes or compares the file."""
    text = json.dumps(dashboard(), indent=2) + "\n"
    if "--check" not in sys.argv:
        FILE.write_text(text)
    elif FILE.read_text() != text:
        print(f"{FILE.name} differs from what deploy/dashboard.py writes: run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
