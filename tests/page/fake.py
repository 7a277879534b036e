"""Serves the page with reports and events, as the service would. `fake.py [REPORT]` serves one until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import reports
from reports import Report

PAGE = Path(__file__).resolve().parents[2] / "src" / "telemetry" / "page"
FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    **{script.name: (script.name, "text/javascript; charset=utf-8") for script in PAGE.glob("*.js")},
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

# How the API server's proxy reaches a Service.
PROXY = "/api/v1/namespaces/ebbtide/services/ebbtide:status/proxy"


class Fake:
    """A service of one report, whose streams and answers a test commands."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/"
        self.report: Report = reports.calm()
        self.refuses_streams = False
        self.refuses_all = False
        self.is_mute = False
        self.asked: list[str] = []
        self.below_proxy: list[bool] = []
        self._streams: list[queue.SimpleQueue[str | None]] = []
        self._lock = threading.Condition()

    def update(self, *changed: Report, removed: tuple[str, ...] = (), **header: object) -> None:
        """Sends an update with these interruptions, and with these changes of the rest."""
        self.report = self.report | header
        self.send("update", self.report | {"interruptions": [*changed], "storms": [], "removed": [*removed]})

    def send(self, event: str, data: Report | str) -> None:
        """Sends an event to all streams."""
        with self._lock:
            for stream in self._streams:
                stream.put(frame(event, data))

    def end_streams(self) -> None:
        """Ends all streams, as a service does that ends or has too many readers."""
        with self._lock:
            for stream in self._streams:
                stream.put(None)
            self._streams.clear()

    def wait_for_streams(self, count: int) -> None:
        """Waits until this many streams are open."""
        with self._lock:
            assert self._lock.wait_for(lambda: len(self._streams) >= count, timeout=30), f"{count} streams did not open"

    def count(self, path: str) -> int:
        """Returns how many times a path was requested."""
        return self.asked.count(path)

    def frames(self) -> Iterator[str]:
        """Yields the frames of a new stream."""
        stream: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with self._lock:
            self._streams.append(stream)
            self._lock.notify_all()
        if not self.is_mute:
            yield frame("full", self.report)
        while (text := stream.get()) is not None:
            yield text


def frame(event: str, data: Report | str) -> str:
    """Returns an event of a stream."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"event: {event}\ndata: {text}\n\n"


class Handler(BaseHTTPRequestHandler):
    """Answers as the service does, at the root and below the API server's proxy."""

    fake: Fake

    def do_GET(self) -> None:
        """Answers a request."""
        path = self.path.partition("?")[0].removeprefix(PROXY).removeprefix("/")
        fake = self.fake
        fake.asked.append(path)
        fake.below_proxy.append(self.path.startswith(PROXY))
        with suppress(BrokenPipeError, ConnectionResetError):
            if fake.refuses_all or (path == "api/events" and fake.refuses_streams):
                self.answer(503, "text/plain", b"")
            elif path in FILES:
                name, kind = FILES[path]
                self.answer(200, kind, (PAGE / name).read_bytes())
            elif path == "api/status":
                self.answer(200, "application/json", json.dumps(fake.report).encode())
            elif path == "api/events":
                self.head(200, "text/event-stream")
                self.wfile.flush()
                for text in fake.frames():
                    self.wfile.write(text.encode())
            else:
                self.answer(404, "text/plain", b"")

    def head(self, status: int, kind: str) -> None:
        """Writes the head of an answer."""
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def answer(self, status: int, kind: str, body: bytes) -> None:
        """Writes an answer."""
        self.head(status, kind)
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextmanager
def serving(port: int = 0) -> Iterator[Fake]:
    """Runs a fake service on loopback."""
    handler = type("Handler", (Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    handler.fake = Fake(server.server_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield handler.fake
    finally:
        handler.fake.end_streams()
        server.shutdown()
        server.server_close()


def main() -> None:
    """Serves a report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", nargs="?", default="calm", choices=reports.ALL)
    parser.add_argument("--port", type=int, default=8081)
    arguments = parser.parse_args()
    with serving(arguments.port) as fake, suppress(KeyboardInterrupt):
        fake.report = reports.ALL[arguments.report]()
        print(fake.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
