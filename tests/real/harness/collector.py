"""A receiver of traces, which reads them with the OpenTelemetry Collector's own module."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from .kube import Object


class Collector:
    """What has arrived."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Object] = []

    def roots(self) -> list[Object]:
        """Returns the whole of each trace."""
        return [span for span in self.spans if not span["parent"]]

    def parts(self, root: Object) -> list[str]:
        """Returns the names of a trace's parts, in the order of their begins."""
        parts = [span for span in self.spans if span["parent"] == root["span"]]
        assert {part["trace"] for part in parts} == {root["trace"]}
        return [part["name"] for part in sorted(parts, key=lambda part: (part["begin"], part["end"]))]


@contextmanager
def collecting() -> Iterator[Collector]:
    """Yields a collector that listens."""
    with subprocess.Popen([os.environ["EBBTIDE_COLLECTOR"]], stdout=subprocess.PIPE, text=True) as process:
        output: IO[str] | None = process.stdout
        assert output
        collector = Collector(f"http://{json.loads(output.readline())['address']}")

        def read() -> None:
            for line in output:
                collector.spans.append(json.loads(line))

        threading.Thread(target=read, daemon=True).start()
        try:
            yield collector
        finally:
            process.kill()
