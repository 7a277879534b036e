"""A proxy before moto: records every call with its time, serves what moto lacks, and refuses calls for tests.

It splits a long poll into short ones and stops when the caller hangs up. moto itself would go on polling for a caller
that has gone, and its poll would take a message that another process should receive.
"""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from moto.events.models import EventPattern

from .hooks import Action, Actions, Refused

COMPLETE = "CompleteLifecycleAction"
HEARTBEAT = "RecordLifecycleActionHeartbeat"
RECEIVE = "ReceiveMessage"
ATTRIBUTES = "GetQueueAttributes"
PATTERNS = "TestEventPattern"
REBOOT = "RebootInstances"
GROUPS = "DescribeAutoScalingGroups"
HEALTH = "SetInstanceHealth"
HOOKS = "DescribeLifecycleHooks"
MEMBERS = "DescribeAutoScalingInstances"
RESERVATIONS = "DescribeCapacityReservations"
SPOT_REQUESTS = "DescribeSpotInstanceRequests"

_MEMBER = b"<DesiredCapacity>"
_POLICY = (
    b"<InstanceMaintenancePolicy><MinHealthyPercentage>100</MinHealthyPercentage>"
    b"<MaxHealthyPercentage>110</MaxHealthyPercentage></InstanceMaintenancePolicy>"
)

_POLL = 0.2
"""Interval in seconds between the short polls of a long one."""


@dataclass(frozen=True)
class Call:
    """One call of the service, with its answer."""

    at: float
    action: str
    asked: dict[str, Any]
    status: int
    error: str | None
    messages: int
    """Number of messages that a receive returned."""
    caller: str
    """Access key of the signature, which is the name of the process."""

    @property
    def clock(self) -> str:
        """Returns the time for a reader."""
        return time.strftime("%H:%M:%S", time.localtime(self.at)) + f"{self.at % 1:.3f}"[1:]

    def __str__(self) -> str:
        asked = ", ".join(f"{key}={_brief(value)}" for key, value in self.asked.items() if key != "QueueUrl")
        brought = f" brought {self.messages}" if self.messages else ""
        return f"{self.clock} {self.status} {self.error or ''} {self.action} {asked}{brought}"


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    status: int
    content_type: str
    body: bytes


class Recorder:
    """One test's AWS endpoint."""

    def __init__(self, moto: tuple[str, int], queues: tuple[str, int] | None = None) -> None:
        """`queues` is the address for SQS if that is not moto, which has all other services."""
        self.moto = moto
        self.queues = queues or moto
        self.actions = Actions()
        self._lock = threading.Lock()
        self._calls: list[Call] = []
        self._refusals: list[tuple[str, Refused]] = []
        self.before: Callable[[str, str, dict[str, Any]], None] = lambda caller, action, asked: None
        """Called before a call has its effect. Like `after` it may raise ConnectionError: the caller gets no answer."""
        self.after: Callable[[Call], None] = lambda call: None
        """Called after the effect of each call, before its answer."""
        self.interrupted: Callable[[], list[str]] = list
        """Returns the spot instances that EC2 shows as interrupted: moto marks no spot requests."""
        self.launches_first = False
        """Whether groups have an instance maintenance policy that launches first, which moto lacks."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.recorder = self
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Returns the value of AWS_ENDPOINT_URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def serve(self, connection: socket.socket) -> None:
        """Answers the requests of a connection until it ends."""
        _Handler(connection, connection.getpeername(), self._server)

    def stop(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()

    def calls(self, *actions: str) -> list[Call]:
        """Returns the calls so far, in the order of their answers; with arguments, only those of these actions."""
        with self._lock:
            return [call for call in self._calls if not actions or call.action in actions]

    def released(self) -> int:
        """Returns the number of messages that were made visible again early."""
        calls = [call for call in self.calls("ChangeMessageVisibilityBatch") if call.status == 200]
        return sum(entry["VisibilityTimeout"] == 0 for call in calls for entry in call.asked["Entries"])

    def of_token(self, action: str, token: str) -> list[Call]:
        """Returns the calls of an action with a lifecycle action token."""
        return [call for call in self.calls(action) if call.asked.get("LifecycleActionToken") == token]

    def refuse(self, action: str, times: int, code: str, message: str) -> None:
        """Answers the next calls of an action with an error; they have no effect."""
        with self._lock:
            self._refusals += [(action, Refused(code, message))] * times

    def answer(
        self, action: str, asked: dict[str, Any], forward: Callable[[], Answer], caller: str, *, in_json: bool
    ) -> Answer:
        """Answers a call and records it. A refusal is JSON if the call is."""
        error = None
        self.before(caller, action, asked)
        try:
            self._refuse_if_wished(action)
            if action == HEARTBEAT:
                self.actions.heartbeat(asked)
                answer = _done(action)
            elif action == COMPLETE:
                self.actions.complete(asked)
                answer = _done(action)
            elif action == MEMBERS and (held := self.actions.held(asked)):
                answer = _members(held)
            else:
                answer = forward()
                if action == SPOT_REQUESTS and answer.status == 200:
                    answer = _spot_requests(self.interrupted())
                if action == PATTERNS and answer.status == 200:
                    answer = _matched(asked)
                if action == ATTRIBUTES and answer.status == 200:
                    answer = replace(answer, body=_with_redrive_allow_policy(answer.body))
                # moto fails once it has checked the permission.
                if action == RESERVATIONS and answer.status == 500:
                    answer = _no_reservations(dry="DryRun" in asked)
                if action == GROUPS and self.launches_first:
                    answer = replace(answer, body=answer.body.replace(_MEMBER, _POLICY + _MEMBER))
        except Refused as refused:
            error = refused.code
            answer = _refusal(refused, in_json)
        messages = _messages(answer) if action == RECEIVE else 0
        call = Call(time.time(), action, asked, answer.status, error, messages, caller)
        with self._lock:
            self._calls.append(call)
        self.after(call)
        return answer

    def _refuse_if_wished(self, action: str) -> None:
        with self._lock:
            for place, (refused_action, refused) in enumerate(self._refusals):
                if refused_action == action:
                    del self._refusals[place]
                    raise refused


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    recorder: Recorder


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Avoids 40 ms: the body is a second write, which would wait for the caller's delayed acknowledgement."""
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        action, asked = self._parse(body)
        forward = self._long_poll if action == RECEIVE else self._forward
        try:
            in_json = bool(self._target)
            answer = self.server.recorder.answer(action, asked, lambda: forward(body), self._caller(), in_json=in_json)
        except ConnectionError:
            self.close_connection = True  # a server that restarts hangs up, too
        else:
            self._send(answer)

    do_GET = do_POST

    def _caller(self) -> str:
        named = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        return named[1] if named else ""

    @property
    def _target(self) -> str:
        return str(self.headers.get("X-Amz-Target", ""))

    def _parse(self, body: bytes) -> tuple[str, dict[str, Any]]:
        """Returns the action and its parameters. SQS and EventBridge name it in a header; the others send forms."""
        if self._target:
            return self._target.rpartition(".")[2], json.loads(body or b"{}")
        form = dict(parse_qsl(body.decode()))
        form.pop("Version", None)
        return form.pop("Action", self.path), form

    def _long_poll(self, body: bytes) -> Answer:
        if self.server.recorder.queues != self.server.recorder.moto:
            return self._forward(body)  # ElasticMQ's own long poll
        asked = json.loads(body)
        end = time.monotonic() + float(asked.pop("WaitTimeSeconds", 0))
        short = json.dumps(asked | {"WaitTimeSeconds": 0}).encode()
        while True:
            answer = self._forward(short)
            if answer.status != 200 or _messages(answer):
                return answer
            if time.monotonic() >= end or self._caller_left(_POLL):
                return answer

    def _caller_left(self, within: float) -> bool:
        """Waits for the caller to hang up. A caller that awaits an answer can send nothing else."""
        readable, _, _ = select.select([self.connection], [], [], within)
        if isinstance(self.connection, ssl.SSLSocket):  # whose data can't be peeked at
            return bool(readable)
        try:
            return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except ConnectionError:
            return True

    def _forward(self, body: bytes) -> Answer:
        of_queue = self.headers.get("X-Amz-Target", "").startswith("AmazonSQS.")
        address = self.server.recorder.queues if of_queue else self.server.recorder.moto
        server = http.client.HTTPConnection(*address, timeout=60)
        try:
            headers = {key: value for key, value in self.headers.items() if key.lower() != "content-length"}
            server.request(self.command, self.path, body, headers)
            response = server.getresponse()
            content_type = response.getheader("Content-Type", "")
            return Answer(response.status, content_type, response.read())
        finally:
            server.close()

    def _send(self, answer: Answer) -> None:
        try:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)
        except ConnectionError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing: the recorded calls are the log."""


def _brief(value: object) -> str:
    """Returns a value for a reader, without the end of a receipt handle."""
    return re.sub(r"\b(\w{8})\w{32,}", r"\1…", str(value))[:240]


def _messages(received: Answer) -> int:
    return len(json.loads(received.body).get("Messages", [])) if received.status == 200 else 0


_NAMESPACE = "http://autoscaling.amazonaws.com/doc/2011-01-01/"
_METADATA = "<RequestId>7c6e177f-f082-11e1-ac58-3714bEXAMPLE</RequestId>"


def _with_redrive_allow_policy(body: bytes) -> bytes:
    """Adds the attribute that the templates set, and moto forgets."""
    answer = json.loads(body)
    answer.setdefault("Attributes", {})["RedriveAllowPolicy"] = '{"redrivePermission":"denyAll"}'
    return json.dumps(answer).encode()


def _matched(asked: dict[str, Any]) -> Answer:
    """Answers whether an event matches a pattern, by the code with which moto delivers events; for the call itself it answers nothing."""
    matches = EventPattern.load(asked["EventPattern"]).matches_event(json.loads(asked["Event"]))
    return Answer(200, "application/x-amz-json-1.1", json.dumps({"Result": matches}).encode())


def _done(action: str) -> Answer:
    return _xml(f"{action}Response", 200, f"<{action}Result/><ResponseMetadata>{_METADATA}</ResponseMetadata>")


def _members(held: list[Action]) -> Answer:
    instances = "".join(
        f"<member><InstanceId>{each.instance}</InstanceId><AutoScalingGroupName>{each.hook.group}</AutoScalingGroupName>"
        f"<LifecycleState>Terminating:Wait</LifecycleState></member>"
        for each in held
    )
    content = f"<{MEMBERS}Result><AutoScalingInstances>{instances}</AutoScalingInstances></{MEMBERS}Result>"
    return _xml(f"{MEMBERS}Response", 200, f"{content}<ResponseMetadata>{_METADATA}</ResponseMetadata>")


def _spot_requests(instances: list[str]) -> Answer:
    items = "".join(
        f"<item><spotInstanceRequestId>sir-{id[2:]}</spotInstanceRequestId><instanceId>{id}</instanceId>"
        f"<status><code>instance-terminated-no-capacity</code></status></item>"
        for id in instances
    )
    return _xml(f"{SPOT_REQUESTS}Response", 200, f"<spotInstanceRequestSet>{items}</spotInstanceRequestSet>")


def _no_reservations(*, dry: bool) -> Answer:
    if dry:
        error = "<Error><Code>DryRunOperation</Code><Message>Request would have succeeded.</Message></Error>"
        return Answer(412, "text/xml", f"<Response><Errors>{error}</Errors></Response>".encode())
    return _xml(f"{RESERVATIONS}Response", 200, "<capacityReservationSet/>")


def _refusal(refused: Refused, in_json: bool) -> Answer:
    if in_json:
        error = json.dumps({"__type": refused.code, "message": refused.message})
        return Answer(400, "application/x-amz-json-1.0", error.encode())
    error = f"<Error><Type>Sender</Type><Code>{refused.code}</Code><Message>{refused.message}</Message></Error>"
    return _xml("ErrorResponse", 400, error + _METADATA)


def _xml(root: str, status: int, content: str) -> Answer:
    return Answer(status, "text/xml", f'<{root} xmlns="{_NAMESPACE}">{content}</{root}>'.encode())
