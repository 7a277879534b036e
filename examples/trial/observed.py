"""What the trial observes: copies of AWS's messages, EC2's states, a drain, Ebbtide's metrics."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import dataclass, field

from calls import CallError, Json, aws, epoch

PODS = 6
"""Number of pods in workload.yaml. Its budget lets one leave at a time."""

KINDS = {
    "EC2 Instance-terminate Lifecycle Action": "asg-terminate",
    "EC2 Spot Instance Interruption Warning": "spot",
    "EC2 Instance Rebalance Recommendation": "rebalance",
    "EC2 Spot Instance Rebalance Recommended": "rebalance",
    "AWS Health Event": "health",
}

CLOCK = "clock"
"""Kind of the trial's own message."""


@dataclass
class Copy:
    """A copy of a message that Ebbtide's queue may get, too."""

    way: str
    """How it came: `EventBridge`, `hook` (directly), `SNS`, or `trial`, whose own message compares the clocks."""
    kind: str
    at: float
    """AWS's time of the event, mostly in whole seconds."""
    sent: float
    """Time of its arrival in the queue, by SQS."""
    sender: str
    instance: str
    body: Json


def read(message: Json) -> Copy:
    """Returns a message of the queue with the copies."""
    body = json.loads(message["Body"])
    way = "trial" if body.get("Event") == CLOCK else "hook"
    if body.get("Type") == "Notification":
        body, way = json.loads(body["Message"]), "SNS"
    detail = body
    if "detail-type" in body:
        detail, way = body["detail"], way if way == "SNS" else "EventBridge"
    kind = KINDS.get(body.get("detail-type", ""), body.get("LifecycleTransition", body.get("Event", "unknown")))
    attributes = message["Attributes"]
    at, sent = body.get("time") or body.get("Time"), int(attributes["SentTimestamp"]) / 1000
    return Copy(
        way=way,
        kind=kind,
        at=epoch(at) if at else sent,
        sent=sent,
        sender=attributes.get("SenderId", ""),
        instance=detail.get("instance-id") or detail.get("EC2InstanceId") or "",
        body=body,
    )


@dataclass
class Victim:
    """The node that a step interrupts."""

    name: str
    instance: str
    pods: int


@dataclass
class Observation:
    """What was seen of a drain. Times are seconds since the epoch, and late by up to the pause between two polls."""

    cordoned: float | None = None
    kind: str = ""
    """Kind of the notice for which Ebbtide has cordoned the node."""
    drained: float | None = None
    evicted: float | None = None
    """The first time with fewer pods."""
    least: int = PODS
    """Minimum number of ready pods."""
    blocked: float = 0.0
    """Longest time for which the budget allowed no eviction while pods were to leave."""
    over: float | None = None


class Ec2States(threading.Thread):
    """Asks EC2 about an instance and its spot request without a pause, and keeps each change."""

    def __init__(self, instance: str, request: str, ahead: float) -> None:
        super().__init__(daemon=True)
        self.instance, self.request, self.ahead = instance, request, ahead
        self.changes: list[tuple[float, str, str, float | None]] = []
        """Time of the question, status of the request, state of the instance, EC2's time of the status."""
        self.ended = threading.Event()

    def run(self) -> None:
        """Asks until `ended` is set."""
        while not self.ended.wait(0.2):
            asked = time.time() - self.ahead
            try:
                requests = aws("ec2", "describe-spot-instance-requests", "--spot-instance-request-ids", self.request)
                status = requests["SpotInstanceRequests"][0].get("Status", {})
                state = describe(self.instance)["State"]["Name"]
            except (CallError, LookupError):
                continue
            updated = epoch(status["UpdateTime"]) if status.get("UpdateTime") else None
            if not self.changes or self.changes[-1][1:3] != (status.get("Code", ""), state):
                self.changes.append((asked, status.get("Code", ""), state, updated))


def describe(instance: str) -> Json:
    """Returns EC2's description of an instance."""
    found = aws("ec2", "describe-instances", "--instance-ids", instance)["Reservations"]
    return found[0]["Instances"][0]


@dataclass
class Metrics:
    """The sums of Ebbtide's samples over its replicas."""

    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Adds a replica's answer."""
        for line in text.splitlines():
            found = re.match(r"([a-z_]+)(?:\{(.*)\})? (\S+)$", line)
            if found:
                labels = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
                self.samples.append((found[1], labels, float(found[3])))

    def sum(self, metric: str, **labels: str) -> float:
        """Returns the sum of a metric's samples with these labels."""
        return sum(value for name, has, value in self.samples if name == metric and labels.items() <= has.items())


def is_running(pod: Json) -> bool:
    """Returns whether a pod is ready and is not to leave."""
    conditions = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]
