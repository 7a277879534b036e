"""A corporate HTTP proxy: clients ask for a tunnel to AWS, and every tunnel ends at the recorder."""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509

from . import certificates
from .queues import REGION
from .recorder import Recorder

USER, WORD = "ebbtide", "open-sesame"
_CREDENTIALS = "/credentials"


class Proxy:
    """A proxy with a certificate for AWS's host names."""

    def __init__(self, recorder: Recorder, folder: Path) -> None:
        self.tunnels: list[str] = []
        """Targets of the requested tunnels."""
        self.plain: list[str] = []
        """Requests without a tunnel."""
        folder.mkdir()
        files = certificates.make(folder, [x509.DNSName(f"*.{REGION}.amazonaws.com")])
        self.authority = files.authority
        """Authority that signed the certificate at the tunnels' end. Only tests trust it."""
        self._server = _Server(("127.0.0.1", 0), _Tunnel)
        self._server.proxy, self._server.recorder = self, recorder
        self._server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.tls.load_cert_chain(files.server, files.server_key)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Returns the value of HTTPS_PROXY. It has a host name, so that NO_PROXY=127.0.0.1 does not cover the proxy."""
        return f"http://{USER}:{WORD}@localhost:{self._server.server_port}"

    @property
    def credentials_url(self) -> str:
        """Returns the URL of a credentials endpoint for direct requests, like that of an agent on the node."""
        return f"http://127.0.0.1:{self._server.server_port}{_CREDENTIALS}"

    def stop(self) -> None:
        """Stops accepting connections."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: Proxy
    recorder: Recorder
    tls: ssl.SSLContext


class _Tunnel(BaseHTTPRequestHandler):
    """Serves CONNECT and credentials, and no other plain HTTP."""

    server: _Server

    def do_CONNECT(self) -> None:
        if self.headers.get("Proxy-Authorization") != f"Basic {b64encode(f'{USER}:{WORD}'.encode()).decode()}":
            self.send_error(407)
            return
        self.server.proxy.tunnels.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.close_connection = True
        if not self.path.endswith(".amazonaws.com:443"):
            host, _, port = self.path.rpartition(":")
            with socket.create_connection((host, int(port))) as there:
                splice(self.connection, there)
            return
        with self.server.tls.wrap_socket(self.connection, server_side=True) as tunnel:
            self.server.recorder.serve(tunnel)

    def do_GET(self) -> None:
        self.server.proxy.plain.append(self.path)
        if self.path != _CREDENTIALS:  # a proxied request would name a whole URL
            self.send_error(405)
            return
        keys = dict.fromkeys(("AccessKeyId", "SecretAccessKey", "Token"), "node")
        body = json.dumps(keys | {"Expiration": "2099-01-01T00:00:00Z"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The list of tunnels is the log."""


def splice(one: socket.socket, other: socket.socket) -> None:
    """Copies data both ways, until one side ends."""
    ends = {one: other, other: one}
    while True:
        heard, _, _ = select.select(list(ends), [], [])
        for end in heard:
            try:
                said = end.recv(65536)
                ends[end].sendall(said)
            except OSError:
                return
            if not said:
                return
