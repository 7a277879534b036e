"""Runs Grafana with the dashboard, and with a Prometheus that scraped the sandbox, for tests/deploy/grafana."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
import yaml

from watching import DASHBOARD, EMPTY, Problems, Prometheus, eventually, free_port, panels, running, storm

SOURCE = "sandbox"

# Disables Grafana's requests for news, updates and plugins, and its usage reports.
SILENT = {
    "GF_ANALYTICS_REPORTING_ENABLED": "false",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    "GF_NEWS_NEWS_FEED_ENABLED": "false",
    "GF_PLUGINS_PLUGIN_ADMIN_ENABLED": "false",
    "GF_PLUGINS_PREINSTALL_DISABLED": "true",
    "GF_PLUGINS_PUBLIC_KEY_RETRIEVAL_DISABLED": "true",
    "GF_SECURITY_DISABLE_GRAVATAR": "true",
    "GF_SNAPSHOTS_EXTERNAL_ENABLED": "false",
}


class Grafana:
    """A Grafana with the dashboard and without a login."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str) -> Any:
        """Returns the data of an answer."""
        answer = requests.get(f"{self.url}/api/{path}", timeout=60)
        answer.raise_for_status()
        return answer.json()

    def ready(self) -> bool:
        """Returns whether Grafana answers and has read the dashboard."""
        try:
            return requests.get(f"{self.url}/api/dashboards/uid/ebbtide", timeout=30).ok
        except requests.RequestException:
            return False

    def ask(self, target: dict[str, Any], prometheus: Prometheus) -> dict[str, Any]:
        """Returns the result of a panel's query. This method fills in the dashboard's variables, as a browser does."""
        expression = target["expr"]
        for name in ("cluster", "namespace", "job"):
            expression = expression.replace(f"${name}", ".*")
        query = target | {
            "expr": expression,
            "datasource": {"type": "prometheus", "uid": SOURCE},
            "intervalMs": 1000,
            "maxDataPoints": 500,
        }
        asked = {"queries": [query], "from": f"{1000 * prometheus.begin:.0f}", "to": f"{1000 * prometheus.end:.0f}"}
        answer = requests.post(f"{self.url}/api/ds/query", json=asked, timeout=60).json()
        return answer["results"][target["refId"]] if "results" in answer else {"error": str(answer)}


@contextmanager
def showing(home: Path, prometheus: Prometheus, folder: str) -> Iterator[Grafana]:
    """Runs a Grafana with the dashboard and this Prometheus, with its state in this folder."""
    port = free_port()
    state = Path(folder, "grafana")
    for name in ("datasources", "dashboards", "plugins", "alerting", "shown"):
        (state / "provisioning" / name).mkdir(parents=True)
    shown = state / "provisioning" / "shown"
    shutil.copy(DASHBOARD, shown)
    source = {
        "name": "Sandbox",
        "uid": SOURCE,
        "type": "prometheus",
        "access": "proxy",
        "url": prometheus.url,
        "isDefault": True,
        # $__rate_interval is four of these.
        "jsonData": {"timeInterval": "1s"},
    }
    provider = {"name": "ebbtide", "type": "file", "options": {"path": str(shown)}}
    for name, content in {"datasources": {"datasources": [source]}, "dashboards": {"providers": [provider]}}.items():
        text = yaml.safe_dump({"apiVersion": 1, **content})
        (state / "provisioning" / name / "ebbtide.yaml").write_text(text)
    settings = SILENT | {
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_DATA": str(state / "data"),
        "GF_PATHS_LOGS": str(state / "logs"),
        "GF_PATHS_PLUGINS": str(state / "plugins"),
        "GF_PATHS_PROVISIONING": str(state / "provisioning"),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_LOG_LEVEL": "warn",
    }
    grafana = Grafana(f"http://127.0.0.1:{port}")
    command = [str(home / "bin" / "grafana"), "server", "--homepath", str(home)]
    log = state / "log"
    with log.open("w") as output, running(command, env=os.environ | settings, stdout=output, stderr=output) as process:
        eventually("Grafana has the dashboard", lambda: grafana.ready() or process.poll() is not None, within=180)
        if process.poll() is not None:
            raise SystemExit(f"Grafana ended:\n{log.read_text()[-4000:]}")
        yield grafana


def check(grafana: Grafana, prometheus: Prometheus, problems: Problems) -> None:
    """Checks that Grafana loaded the dashboard unchanged, and that every query of every panel has data."""
    ours = json.loads(DASHBOARD.read_text())
    loaded = grafana.get("dashboards/uid/ebbtide")["dashboard"]
    for key in ours.keys() - {"version"}:
        problems.unless(loaded.get(key) == ours[key], f"{key}: Grafana changed it to {loaded.get(key)}")
    queries = 0
    for panel in panels():
        for target in panel["targets"]:
            queries += 1
            answer = grafana.ask(target, prometheus)
            problems.unless("error" not in answer, f"{panel['title']}: {answer.get('error')}")
            data = any(column for frame in answer.get("frames", []) for column in frame["data"]["values"])
            if panel["title"] in EMPTY:
                problems.unless(not data, f"{panel['title']}: gives data; remove it from the list of empty panels")
            else:
                problems.unless(data, f"{panel['title']}: no data: {target['expr']}")
    version = grafana.get("health").get("version", "of unknown version")
    print(f"Grafana {version}: {len(panels())} panels, {queries} queries")


def times(prometheus: Prometheus) -> str:
    """Returns the time range for the dashboard's URL."""
    return f"from={1000 * prometheus.begin:.0f}&to={1000 * prometheus.end:.0f}"


def photograph(grafana: Grafana, prometheus: Prometheus, picture: Path, size: tuple[int, int], theme: str) -> None:
    """Takes a picture of the dashboard in a browser. A low window would not load the lower panels."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("tests/deploy/grafana: put chromium on the PATH for a picture")
    with tempfile.TemporaryDirectory(prefix="ebbtide-chromium-") as profile:
        command = [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}",
            "--virtual-time-budget=30000",
            f"--screenshot={picture}",
            f"{grafana.url}/d/ebbtide?orgId=1&{times(prometheus)}&refresh=&theme={theme}&kiosk",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=180)


def main() -> int:
    """Runs Prometheus, the sandbox and Grafana, and the checks or modes of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grafana", required=True, type=Path)
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--sandbox", required=True)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--size", default="1500x1230", help="size of the picture")
    parser.add_argument("--theme", default="light", help="theme of the picture: light or dark")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    problems = Problems()
    with (
        tempfile.TemporaryDirectory(prefix="ebbtide-grafana-") as folder,
        storm(arguments.prometheus, arguments.sandbox, folder, problems) as prometheus,
        showing(arguments.grafana, prometheus, folder) as grafana,
    ):
        check(grafana, prometheus, problems)
        if arguments.picture:
            width, height = map(int, arguments.size.split("x"))
            photograph(grafana, prometheus, arguments.picture, (width, height), arguments.theme)
        if arguments.keep:
            print(f"{grafana.url}/d/ebbtide?{times(prometheus)}", flush=True)
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    return problems.end("grafana")


if __name__ == "__main__":
    sys.exit(main())
