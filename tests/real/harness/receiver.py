"""A receiver of notifications, which checks their signatures and keeps them."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from .kube import Object

KEY = "a key of this test"


def is_ours(key: bytes, header: str, body: bytes) -> bool:
    """Returns whether the signature is right and fresh, as docs/notifications.md checks it."""
    parts = dict(part.split("=", 1) for part in header.split(","))
    expected = hmac.new(key, parts["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
    is_fresh = abs(time.time() - int(parts["t"])) < 300
    return is_fresh and hmac.compare_digest(expected, parts["v1"])


class Receiver:
    """What has arrived, and how to answer."""

    def __init__(self) -> None:
        self.url = ""
        self.status = 200
        self.told: list[Object] = []
        self.unsigned = 0

    def flags(self, phases: str) -> tuple[str, ...]:
        """Returns the flags with which a service tells this receiver of these phases."""
        return ("--notify-url", self.url, "--notify", phases, "--notify-secret", KEY)

    def phases(self) -> list[str]:
        """Returns the phases in the order of their arrival."""
        return [told["phase"] for told in self.told]


@contextmanager
def listening() -> Iterator[Receiver]:
    """Yields a receiver that listens."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.unsigned += not is_ours(KEY.encode(), self.headers["Ebbtide-Signature"], body)
            if receiver.status == 200:
                receiver.told.append(json.loads(body))
            self.send_response(receiver.status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}/hidden-path"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
