"""Checks the alerts' files, and the queries in a Prometheus that scraped the sandbox, for tests/deploy/watching."""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
import yaml

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "helm" / "ebbtide" / "files" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "helm" / "ebbtide" / "files" / "dashboard.json"
TESTS = ROOT / "tests" / "deploy" / "alerts"
RUNBOOK = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["repository"] + "/blob/main/docs/operating.md#"
NODES = 120

# Panels without data in the sandbox, and the reasons.
EMPTY = {
    "The API server: throttled and failed": "the simulated API server fails nothing",
    "AWS: throttled and failed": "the simulated AWS fails nothing",
    "Unhealthy nodes left alone": "no node is unhealthy",
    "Agent notices": "its Node has a notice without an agent",
    "Failures of agents": "no agent runs",
    "Retried failures": "without failures nothing is retried",
}

# The sandbox plans an unreadable message, a late spot warning, and a drain that is blocked until it fails.
PLANNED = {"EbbtideMessagesUnreadable", "EbbtideUnusual", "EbbtideDrainBlocked", "EbbtideDrainUnfinished"}


class Problems(list[str]):
    """Collects all problems."""

    def unless(self, holds: object, problem: str) -> None:
        """Records a problem unless the condition holds."""
        if not holds:
            self.append(problem)

    def end(self, what: str) -> int:
        """Prints the problems; returns the exit code."""
        for problem in self:
            print(f"WRONG: {problem}")
        print(f"{what}: {'ok' if not self else f'{len(self)} problems'}")
        return 1 if self else 0


def alerts() -> list[dict[str, Any]]:
    """Returns all alerting rules."""
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metrics_of(expression: str) -> set[str]:
    """Returns the metrics in an expression."""
    return set(re.findall(r"\b(?:ebbtide|process)_[a-z_]+", expression))


def rules() -> int:
    """Checks that every alert is complete, and has tests in which it fires and is silent; returns the exit code."""
    problems = Problems()
    files = {path.name: yaml.safe_load(path.read_text()) for path in sorted(TESTS.glob("*.yaml"))}
    fires: set[str] = set()
    silent: set[str] = set()
    for content in files.values():
        for check in (check for test in content["tests"] for check in test["promql_expr_test"]):
            named = re.search(r'ALERTS\{alertname="(\w+)", alertstate="firing"[,}]', check["expr"])
            if named:
                (fires if check["exp_samples"] else silent).add(named[1])
    names = [rule["alert"] for rule in alerts()]
    problems.unless(len(names) == len(set(names)), "two alerts have the same name")
    for rule in alerts():
        name, annotations = rule["alert"], rule["annotations"]
        problems.unless(name.startswith("Ebbtide"), f"{name}: the name does not begin with Ebbtide")
        problems.unless(rule["labels"].get("severity") in {"critical", "warning"}, f"{name}: no valid severity")
        problems.unless({"summary", "description"} <= annotations.keys(), f"{name}: no summary, or no description")
        wanted = RUNBOOK + name.lower()
        problems.unless(annotations.get("runbook_url") == wanted, f"{name}: the runbook is not {wanted}")
        problems.unless(name in fires, f"{name}: no test in tests/deploy/alerts in which it fires")
        problems.unless(name in silent, f"{name}: no test in tests/deploy/alerts in which it is silent")
        used = set(re.findall(r"\$labels\.(\w+)", annotations["description"]))
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))
        if kept:
            problems.unless(used <= kept, f"{name}: its expression does not keep {used - kept}")
    for name in (fires | silent) - set(names):
        problems.append(f"{name}: has a test but no rule")
    wanted_metrics = set.union(*(metrics_of(rule["expr"]) for rule in alerts()))
    ordinary = files["ordinary.yaml"]["tests"]
    problems.unless(len(ordinary) >= 3, "ordinary.yaml: needs an idle service, a storm and a restart")
    for test in ordinary:
        given = set.union(*(metrics_of(series["series"]) for series in test["input_series"]))
        problems.unless(wanted_metrics <= given, f"{test['name']}: lacks {sorted(wanted_metrics - given)}")
        asked = [check["expr"] for check in test["promql_expr_test"] if check["exp_samples"] == []]
        problems.unless(any("ALERTS{alertstate=" in expr for expr in asked), f"{test['name']}: must query all")
    return problems.end(f"{len(names)} alerts")


def free_port() -> int:
    """Returns a free port outside the range of outgoing connections, so that the port stays free until its use."""
    while True:
        port = random.randrange(10_000, 20_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


@contextmanager
def running(command: list[str], **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Runs a program, and stops it at the end."""
    process = subprocess.Popen(command, text=True, **more)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def eventually(what: str, holds: Callable[[], bool], within: float = 120) -> None:
    """Waits until a condition holds. A refused connection or a timeout counts as "not yet"."""
    by = time.monotonic() + within
    while True:
        with suppress(requests.RequestException):
            if holds():
                return
        if time.monotonic() > by:
            raise SystemExit(f"not within {within:.0f} s: {what}")
        time.sleep(0.2)


class Prometheus:
    """A Prometheus that scrapes a service every second, with the alerts as its rules."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.begin = self.end = 0.0

    def ask(self, path: str, **parameters: Any) -> Any:
        """Returns the data of an answer."""
        answer = requests.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=60).json()
        if answer["status"] != "success":
            raise ValueError(f"{answer['error']} in {parameters}")
        return answer["data"]

    def ready(self) -> bool:
        """Returns whether Prometheus answers."""
        return requests.get(f"{self.url}/-/ready", timeout=30).ok

    def scraped(self, expression: str) -> bool:
        """Returns whether an expression has a result now."""
        return bool(self.ask("query", query=expression)["result"])

    def at_end(self, expression: str) -> list[dict[str, Any]]:
        """Returns an expression's result at the end."""
        return self.ask("query", query=expression, time=self.end)["result"]

    def over_time(self, expression: str) -> list[dict[str, Any]]:
        """Returns an expression's results for each second."""
        return self.ask("query_range", query=expression, start=self.begin, end=self.end, step=1)["result"]

    def see_it_over(self) -> None:
        """Waits for a scrape of the current state, which ends the time range of later queries.

        The end is the time of this scrape, because series become stale if the next scrape is late.
        """
        now = time.time()

        def scraped() -> bool:
            times = self.ask("query", query="timestamp(ebbtide_ready)")["result"]
            self.end = max((float(series["value"][1]) for series in times), default=0.0)
            return self.end > now + 1

        eventually("a new scrape", scraped)


@contextmanager
def scraping(
    program: str, admin: str, folder: str, rules: Path = ALERTS, namespace: str = "ebbtide", job: str = "ebbtide"
) -> Iterator[Prometheus]:
    """Runs a Prometheus that scrapes this address, with its state in this folder."""
    port = free_port()
    target = {"targets": [admin], "labels": {"namespace": namespace}}
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": job, "static_configs": [target]}],
    }
    Path(folder, "prometheus.yaml").write_text(yaml.safe_dump(config))
    prometheus = Prometheus(f"http://127.0.0.1:{port}")
    command = [
        program,
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with running(command):
        eventually("Prometheus is ready", prometheus.ready)
        # Prometheus begins to scrape some seconds later, and would miss earlier changes.
        eventually("Prometheus scrapes", lambda: prometheus.scraped("up"))
        prometheus.begin = math.ceil(time.time())
        yield prometheus


def values(series: dict[str, Any]) -> list[tuple[float, float]]:
    """Returns the times and numbers of a result, without NaN."""
    samples = series.get("values") or [series["value"]]
    numbers = ((float(at), float(value)) for at, value in samples)
    return [(at, value) for at, value in numbers if math.isfinite(value)]


def filled_in(expression: str, length: float) -> str:
    """Returns an expression as Grafana sends it."""
    labels = dict.fromkeys(("cluster", "namespace", "job"), ".*")
    told = {**labels, "__rate_interval": "4s", "__range": f"{math.ceil(length)}s"}
    for name, value in told.items():
        expression = expression.replace(f"${name}", value)
    if "$" in expression:
        raise ValueError(f"a variable is left in {expression}")
    return expression


def panels() -> list[dict[str, Any]]:
    """Returns the dashboard's panels, without headings."""
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def results(prometheus: Prometheus, panel: dict[str, Any]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Returns each query of a panel with its results, without series that have no number."""
    answers = []
    for target in panel["targets"]:
        expression = filled_in(target["expr"], prometheus.end - prometheus.begin)
        ask = prometheus.at_end if target.get("instant") else prometheus.over_time
        answers.append((target, [series for series in ask(expression) if values(series)]))
    return answers


def check_first_panel(prometheus: Prometheus, problems: Problems) -> None:
    """Checks that the first panel shows that every hard deadline was met."""
    first = results(prometheus, panels()[0])[0][1]
    shares = [value for series in first for _, value in values(series)]
    problems.unless(panels()[0]["title"] == "Drained in time", "the first panel has changed")
    problems.unless(shares == [1.0], f"every hard deadline was met, but the first panel shows {shares}")


def check_dashboard(prometheus: Prometheus, problems: Problems) -> None:
    """Checks that every query of every panel parses and has data."""
    titles = [panel["title"] for panel in panels()]
    problems.unless(len(set(titles)) == len(titles), "two panels have the same title")
    for title in EMPTY.keys() - set(titles):
        problems.append(f"{title}: in the list of empty panels, but not in the dashboard")
    queries = 0
    for panel in panels():
        title = panel["title"]
        for target, answer in results(prometheus, panel):
            queries += 1
            if title in EMPTY:
                problems.unless(not answer, f"{title}: gives data; remove it from the list of empty panels")
            else:
                problems.unless(answer, f"{title}: no data: {target['expr']}")
    check_first_panel(prometheus, problems)
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            match, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
            known = prometheus.ask(f"label/{label}/values", **{"match[]": filled_in(match, 60)})
            # A Prometheus of one cluster has no such label, and the panels' "All" must work without it.
            wanted = [] if label == "cluster" else ["ebbtide"]
            problems.unless(known == wanted, f"${variable['name']}: {known}")
    print(f"dashboard: {len(titles)} panels, {queries} queries, {len(EMPTY)} panels empty as expected")


def check_alerts(prometheus: Prometheus, problems: Problems, planned: set[str]) -> None:
    """Checks that every alert is evaluated, and that exactly the planned ones fire."""
    evaluated = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    problems.unless(len(evaluated) == len(alerts()), f"{len(evaluated)} of {len(alerts())} alerts are evaluated")
    for rule in evaluated:
        problems.unless(rule["health"] == "ok", f"{rule['name']}: {rule.get('lastError')}")
    true_at_end = {rule["name"] for rule in evaluated if prometheus.at_end(rule["query"])}
    problems.unless(true_at_end == planned, f"at the end {true_at_end} would fire, not {planned}")
    fired = {series["metric"]["alertname"] for series in prometheus.over_time('ALERTS{alertstate="firing"}')}
    problems.unless(fired == planned, f"{fired} fired, not {planned}")
    for alert in prometheus.ask("alerts")["alerts"]:
        for text in alert["annotations"].values():
            problems.unless(not re.search(r"no value|<error|%!", text), f"{alert['labels']['alertname']}: {text}")


@contextmanager
def storm(prometheus_program: str, sandbox_program: str, folder: str, problems: Problems) -> Iterator[Prometheus]:
    """Runs the sandbox under a Prometheus; yields the Prometheus after the storm, while the sandbox still runs."""
    admin = f"127.0.0.1:{free_port()}"
    with scraping(prometheus_program, admin, folder) as prometheus:
        flags = ["--nodes", str(NODES), "--calm", "4", "--hold", "--admin-address", admin]
        told = Path(folder, "sandbox.txt")
        with told.open("w") as output, running([sandbox_program, *flags], stdout=output) as sandbox:
            held = "The sandbox keeps running"
            eventually(
                "the sandbox's storm has ended",
                lambda: held in told.read_text() or sandbox.poll() is not None,
                within=600,
            )
            prometheus.see_it_over()
            yield prometheus
        code = sandbox.returncode
        problems.unless(code == 0, f"the sandbox ended with {code}:\n{told.read_text()}")


def live(prometheus_program: str, sandbox_program: str) -> int:
    """Runs the sandbox under a Prometheus and checks the dashboard and the alerts; returns the exit code."""
    problems = Problems()
    with (
        tempfile.TemporaryDirectory(prefix="ebbtide-watching-") as folder,
        storm(prometheus_program, sandbox_program, folder, problems) as prometheus,
    ):
        check_dashboard(prometheus, problems)
        check_alerts(prometheus, problems, PLANNED)
    return problems.end("live")


def main() -> int:
    """Runs the checks of the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("rules")
    asked = commands.add_parser("live")
    asked.add_argument("--prometheus", required=True)
    asked.add_argument("--sandbox", required=True)
    arguments = parser.parse_args()
    if arguments.command == "rules":
        return rules()
    return live(arguments.prometheus, arguments.sandbox)


if __name__ == "__main__":
    sys.exit(main())
