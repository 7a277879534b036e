"""The service as a user starts it: its flags, its environment, and its HTTP endpoints."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import requests

from .process import Process, free_port
from .queues import CREDENTIALS, REGION
from .wait import eventually

LASTING = frozenset({"poller", "node-watch", "undo", "sources", "teller", "notifier", "tracer", "collector", "admin", "status", "batcher"})
"""Kinds of tasks that live as long as the service."""

OURS = frozenset({"admin-connection", "status-connection"})
"""Kinds of tasks that a test's own requests start."""

END_WITHIN = 60.0
"""Seconds until a wait for a process's end fails. The service itself gives up after ten, with an exit code."""

_TIMEOUT = 30.0

_NO_CHECKS = {"EBBTIDE_CHECK_AT_START": "false"}
"""Variables that switch the start-up checks off: tests count calls, and most set up only what they test."""

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def environment(endpoint: str, kubeconfig: Path, folder: Path) -> dict[str, str]:
    """Returns the program's environment: the parts, nothing of the user's. Without an endpoint it calls real AWS."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),  # the user's own AWS and Kubernetes configuration stays out of it
        "AWS_REGION": REGION,
        **({"AWS_ENDPOINT_URL": endpoint} if endpoint else {}),
        "AWS_EC2_METADATA_DISABLED": "true",
        "KUBECONFIG": str(kubeconfig),
        "RUST_BACKTRACE": "1",
        **CREDENTIALS,
    }


class Service:
    """One running process of the service."""

    def __init__(
        self,
        name: str,
        binary: Path,
        queue_url: str,
        endpoint: str,
        kubeconfig: Path,
        folder: Path,
        flags: Sequence[str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`variables` are those of an installation. They name the queue, so the command line does not."""
        self.name = name
        self.address = f"127.0.0.1:{free_port()}"
        """Address of the metrics endpoint."""
        self._url = f"http://{self.address}"
        self.status = f"http://127.0.0.1:{free_port()}"
        """URL of the status page."""
        without_queue = "--source=nodes" in flags
        self._source = "sources" if without_queue else "poller"
        """Kind of task that receives notices."""
        queue = [] if variables or without_queue else ["--queue-url", queue_url]
        addresses = ["--admin-address", self.address]
        if not any(flag.startswith("--status-address") for flag in flags):
            addresses += ["--status-address", self.status.removeprefix("http://")]
        command = [str(binary), "run", *queue, *addresses, *flags]
        log = folder / f"{name}.log"
        # The access key tells the recorder which process called.
        given = environment(endpoint, kubeconfig, folder) | (variables or _NO_CHECKS | {"AWS_ACCESS_KEY_ID": name})
        self.process = Process(f"ebbtide {name}", command, log, given)

    def wait_ready(self) -> None:
        """Waits until the service is ready."""
        eventually(f"{self.name} is ready", self.ready)

    def ready(self) -> bool:
        """Returns whether the service is ready; fails if the process has ended."""
        self.process.must_run()
        return requests.get(f"{self._url}/readyz", timeout=_TIMEOUT).ok

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.process.kill()

    def wait_end(self) -> None:
        """Waits until the process ends by itself, with all work done."""
        self._ended("by itself")

    def terminate(self) -> None:
        """Sends SIGTERM; waits for the process's end, with all work done."""
        self.process.signal(signal.SIGTERM)
        self._ended("after SIGTERM")

    def _ended(self, how: str) -> None:
        code = self.process.wait(END_WITHIN)
        assert code == 0, f"{self.name} ended with {code} {how}: work was cut off"

    def metrics(self) -> list[tuple[str, dict[str, str], float]]:
        """Returns every sample of /metrics: name, labels, value."""
        text = requests.get(f"{self._url}/metrics", timeout=_TIMEOUT).text
        samples = (_SAMPLE.match(line) for line in text.splitlines())
        return [(s["name"], dict(_LABEL.findall(s["labels"] or "")), float(s["value"])) for s in samples if s]

    def samples(self, metric: str) -> list[tuple[dict[str, str], float]]:
        """Returns the samples of one metric: labels, value."""
        return [(labels, value) for name, labels, value in self.metrics() if name == metric]

    def ended(self, kind: str) -> dict[str, float]:
        """Returns the number of ended notices of a kind by outcome."""
        samples = self.samples("ebbtide_notices_total")
        return {labels["outcome"]: value for labels, value in samples if labels["kind"] == kind}

    def checks(self) -> dict[str, float]:
        """Returns the number of start-up checks by result; empty before they have ended."""
        counts = {labels["status"]: value for labels, value in self.samples("ebbtide_checks")}
        return counts if counts.get("ok") else {}

    def tasks(self) -> dict[str, float]:
        """Returns the number of live tasks of each kind."""
        return {labels["kind"]: value for labels, value in self.samples("ebbtide_tasks")}

    def at_rest(self) -> bool:
        """Returns whether only permanent tasks are alive: no task leaked."""
        self.process.must_run()
        tasks = self.tasks()
        assert tasks.get(self._source, 0) > 0, f"no {self._source} among the tasks: {tasks}"
        busy = {kind: count for kind, count in tasks.items() if count and kind not in LASTING | OURS}
        assert not busy, f"tasks still live: {busy}"
        return True
