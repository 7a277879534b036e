"""Admission webhooks and policies: a test acts just before the API server deletes an object, or denies evictions."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from .kube import Kube, Object

_API = "/apis/admissionregistration.k8s.io/v1"
_EVICTIONS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}


@contextmanager
def before_deletion(
    kube: Kube, certificates: Path, rule: Object, namespace: str, name: str, act: Callable[[], None]
) -> Iterator[list[str]]:
    """Calls `act` before each deletion of this object, and allows the deletion; yields the UIDs of the requests."""
    seen: list[str] = []

    def answer(asked: Object) -> Object:
        act()
        seen.append(asked["uid"])
        return {"allowed": True}

    with _listening(certificates, answer) as client:
        webhook = {
            "name": "deletion.ebbtide.test",
            "clientConfig": client,
            "rules": [{**rule, "operations": ["DELETE"]}],
            "matchConditions": [{"name": "this-one", "expression": f"request.name == '{name}'"}],
            "sideEffects": "NoneOnDryRun",
        }
        with _webhook(kube, namespace, webhook):
            yield seen


@contextmanager
def denied_evictions(
    kube: Kube, certificates: Path, namespace: str, prefix: str, name: str, code: Callable[[str], int]
) -> Iterator[None]:
    """Denies evictions of pods with this prefix by a webhook of this name, with the status code of the pod's name."""

    def answer(asked: Object) -> Object:
        return {"allowed": False, "status": {"code": code(asked["name"]), "message": "not while a test runs"}}

    with _listening(certificates, answer) as client, _webhook(kube, namespace, _of_evictions(prefix, name, client)):
        yield


@contextmanager
def silent_webhook(kube: Kube, certificates: Path, namespace: str, prefix: str, name: str) -> Iterator[None]:
    """Lets the API server ask a webhook that refuses connections before evictions of pods with this prefix."""
    with socket.socket() as bound:  # bound, so that nobody else gets the port, but not listening
        bound.bind(("127.0.0.1", 0))
        client = _client(certificates, bound.getsockname()[1])
        with _webhook(kube, namespace, _of_evictions(prefix, name, client)):
            yield


@contextmanager
def denying_policy(kube: Kube, namespace: str, prefix: str, name: str) -> Iterator[None]:
    """Denies evictions of pods with this prefix by an admission policy of this name."""
    policy = {
        "matchConstraints": {"resourceRules": [_EVICTIONS], "namespaceSelector": _namespace(namespace)},
        "matchConditions": _begins_with(prefix),
        "validations": [{"expression": "false", "message": "not while a test runs"}],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    with (
        _created(kube, "validatingadmissionpolicies", {"metadata": {"name": name}, "spec": policy}),
        _created(kube, "validatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": binding}),
    ):
        yield


@contextmanager
def policies(kube: Kube, objects: list[Object]) -> Iterator[list[Object]]:
    """Creates the admission policies among these objects, with their bindings; yields them as the API server has made them."""
    resources = {
        "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
        "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    }
    with ExitStack() as stack:
        ours = [each for each in objects if each["kind"] in resources]
        yield [stack.enter_context(_created(kube, resources[each["kind"]], each)) for each in ours]


def _of_evictions(prefix: str, name: str, client: Object) -> Object:
    return {
        "name": name,
        "clientConfig": client,
        "rules": [_EVICTIONS],
        "matchConditions": _begins_with(prefix),
        "sideEffects": "None",
    }


def _begins_with(prefix: str) -> list[Object]:
    return [{"name": "these", "expression": f"request.name.startsWith('{prefix}')"}]


def _namespace(name: str) -> Object:
    return {"matchLabels": {"kubernetes.io/metadata.name": name}}


@contextmanager
def _webhook(kube: Kube, namespace: str, webhook: Object) -> Iterator[None]:
    webhook |= {
        "namespaceSelector": _namespace(namespace),
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
        "failurePolicy": "Fail",
    }
    made = {"metadata": {"generateName": "ebbtide-test-"}, "webhooks": [webhook]}
    with _created(kube, "validatingwebhookconfigurations", made):
        yield


@contextmanager
def _created(kube: Kube, resource: str, body: Object) -> Iterator[Object]:
    made = kube.create(f"{_API}/{resource}", body)
    try:
        yield made
    finally:
        kube.delete(f"{_API}/{resource}/{made['metadata']['name']}")


def _client(certificates: Path, port: int) -> Object:
    authority = base64.b64encode((certificates / "ca.crt").read_bytes()).decode()
    return {"url": f"https://127.0.0.1:{port}/", "caBundle": authority}


@contextmanager
def _listening(certificates: Path, answer: Callable[[Object], Object]) -> Iterator[Object]:
    """Yields how the API server reaches a server that answers each request for admission."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            response = {"uid": asked["request"]["uid"], **answer(asked["request"])}
            body = json.dumps({**asked, "request": None, "response": response}).encode()
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
    try:
        yield _client(certificates, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
