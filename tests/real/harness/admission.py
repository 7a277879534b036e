"""An admission webhook, which lets a test act just before the API server deletes an object."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from .kube import Kube, Object

_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@contextmanager
def before_deletion(
    kube: Kube, certificates: Path, rule: Object, namespace: str, name: str, act: Callable[[], None]
) -> Iterator[list[str]]:
    """Calls `act` before each deletion of this object, and allows the deletion; yields the UIDs of the requests."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            uid = asked["request"]["uid"]
            act()
            seen.append(uid)
            answer = {**asked, "request": None, "response": {"uid": uid, "allowed": True}}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    authority = base64.b64encode((certificates / "ca.crt").read_bytes()).decode()
    webhook = {
        "name": "deletion.ebbtide.test",
        "clientConfig": {"url": f"https://127.0.0.1:{server.server_port}/", "caBundle": authority},
        "rules": [{**rule, "operations": ["DELETE"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "matchConditions": [{"name": "this-one", "expression": f"request.name == '{name}'"}],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": 30,
    }
    configuration = kube.create(_PATH, {"metadata": {"generateName": "ebbtide-test-"}, "webhooks": [webhook]})
    try:
        yield seen
    finally:
        kube.delete(f"{_PATH}/{configuration['metadata']['name']}")
        server.shutdown()
        server.server_close()
