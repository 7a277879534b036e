"""Issues and identifies credentials: Identity Center's portal, and an STS that names callers by their access key."""

from __future__ import annotations

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

ACCOUNT = "123456789012"
_KEY = re.compile(r"Credential=([^/]+)/")


class Signer:
    """The portal and STS, on one port."""

    def __init__(self, access_token: str) -> None:
        """Starts the server. The portal issues credentials for this token."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.access_token = access_token
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def variables(self) -> dict[str, str]:
        """Returns the settings that lead to this server."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {"AWS_ENDPOINT_URL_SSO": url, "AWS_ENDPOINT_URL_STS": url}

    def forget(self) -> None:
        """Invalidates the token, as at the end of a session."""
        self._server.access_token = ""

    def stop(self) -> None:
        """Stops accepting connections."""
        self._server.shutdown()
        self._server.server_close()


def arn(key: str) -> str:
    """Returns the identity of an access key."""
    return f"arn:aws:sts::{ACCOUNT}:assumed-role/of-{key}/test"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    access_token: str


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(asked.query).items()}
        token = self.headers.get("x-amz-sso_bearer_token")
        if asked.path != "/federation/credentials" or token != self.server.access_token:
            self._answer(401, "application/json", '{"message": "Session token not found or invalid"}')
            return
        key = f"portal-{query['account_id']}-{query['role_name']}"
        keys = {"accessKeyId": key, "secretAccessKey": "secret", "sessionToken": "session"}
        # The year 2100, in milliseconds.
        self._answer(200, "application/json", json.dumps({"roleCredentials": keys | {"expiration": 4102444800000}}))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        key = _KEY.search(self.headers.get("Authorization", ""))
        who = arn(key[1]) if key else "nobody"
        result = f"<Arn>{who}</Arn><UserId>id</UserId><Account>{ACCOUNT}</Account>"
        space = "https://sts.amazonaws.com/doc/2011-06-15/"
        self._answer(
            200,
            "text/xml",
            f'<GetCallerIdentityResponse xmlns="{space}"><GetCallerIdentityResult>{result}</GetCallerIdentityResult>'
            "</GetCallerIdentityResponse>",
        )

    def _answer(self, status: int, content_type: str, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing: tests read the program's output instead."""
