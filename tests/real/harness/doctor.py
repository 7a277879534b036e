"""A set-up on moto as the docs describe it, and `ebbtide doctor` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .queues import CREDENTIALS, REGION
from .wait import WITHIN

if TYPE_CHECKING:
    from .world import Node, World

PATTERNS: dict[str, dict[str, Any]] = {
    "asg": {"source": ["aws.autoscaling"], "detail-type": ["EC2 Instance-terminate Lifecycle Action"]},
    "spot": {
        "source": ["aws.ec2", "aws.ec2fleet", "aws.ec2spotfleet"],
        "detail-type": [
            "EC2 Spot Instance Interruption Warning",
            "EC2 Fleet Instance Change",
            "EC2 Spot Fleet Instance Change",
        ],
    },
    "rebalance": {
        "source": ["aws.ec2"],
        "detail-type": ["EC2 Instance Rebalance Recommendation", "EC2 Spot Instance Rebalance Recommended"],
    },
    "state-change": {"source": ["aws.ec2"], "detail-type": ["EC2 Instance State-change Notification"]},
    "reservation": {
        "source": ["aws.ec2"],
        "detail-type": [
            "EC2 Capacity Reservation Instance Interruption Warning",
            "EC2 Interruptible Capacity Reservation Instance Interruption Warning",
            "Capacity Block Expiration Warning",
            "Capacity Block Reservation Expiration Warning",
        ],
    },
    "health": {
        "source": ["aws.health"],
        "detail-type": ["AWS Health Event"],
        "detail": {"service": ["EC2"], "eventTypeCategory": ["scheduledChange"]},
    },
}

REVIEWS = {"selfsubjectaccessreviews", "selfsubjectreviews"}
"""Resources whose creation stores nothing."""

ALWAYS_SKIPPED = {("queue", "region"), ("calls", "receive")}
"""Checks that are always skipped on these parts: moto's URL names no region."""


@dataclass(frozen=True)
class Report:
    """Result of the doctor."""

    code: int
    checks: list[dict[str, Any]]

    @property
    def faults(self) -> list[str]:
        """Returns area, check and status of each check that is not ok, except those that are always skipped."""
        return [
            f"{check['area']} {check['check']} {check['status']}"
            for check in self.checks
            if check["status"] not in ("ok", "skipped" if (check["area"], check["check"]) in ALWAYS_SKIPPED else "ok")
        ]

    @property
    def skipped(self) -> list[str]:
        """Returns area and check of the skipped checks."""
        return [f"{check['area']} {check['check']}" for check in self.checks if check["status"] == "skipped"]

    def found(self, area: str, check: str) -> str:
        """Returns the text of a check's only finding."""
        (found,) = [one["found"] for one in self.checks if (one["area"], one["check"]) == (area, check)]
        assert isinstance(found, str)
        return found

    def said(self, area: str, check: str) -> str:
        """Returns the text and the advice of a check's first finding that is not ok."""
        found = next(one for one in self.checks if (one["area"], one["check"]) == (area, check) and one["remedy"])
        return f"{found['found']}\n{found['remedy']}"


class SetUp:
    """The queue's policy and dead-letter queue, the rules, and one group with a hook."""

    def __init__(self, world: World, node: Node, heartbeat_timeout: int = 300) -> None:
        self.world = world
        aws, url = world.aws, world.queue
        self.arn = aws.queue_arn(url)
        world.dead_letters(10)
        account = self.arn.split(":")[4]
        statement = {
            "Effect": "Allow",
            "Principal": {"Service": "events.amazonaws.com"},
            "Action": "sqs:SendMessage",
            "Resource": self.arn,
            "Condition": {"ArnLike": {"aws:SourceArn": f"arn:aws:events:{REGION}:{account}:rule/*"}},
        }
        deny = statement | {
            "Effect": "Deny",
            "Principal": "*",
            "Condition": {"ArnNotLike": statement["Condition"]["ArnLike"]},
        }
        aws.set_attribute(url, "Policy", json.dumps({"Version": "2012-10-17", "Statement": [statement, deny]}))
        for name, pattern in PATTERNS.items():
            aws.rule(self.rule(name), pattern, self.arn)
        self.group = f"{world.name}-workers"
        aws.group_of(self.group, node.instance, "drain", heartbeat_timeout)

    def rule(self, name: str) -> str:
        """Returns the name of this set-up's rule for an event."""
        return f"{self.world.name}-{name}"


def examine(world: World, *flags: str, queue_url: str | None = None) -> Report:
    """Runs the doctor on a world; returns its report."""
    done = run(world, "--output", "json", *flags, queue_url=queue_url)
    return Report(done.returncode, json.loads(done.stdout)["checks"])


def run(
    world: World, *flags: str, queue_url: str | None = None, kubeconfig: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the doctor with these flags; returns the finished process."""
    world.allow_doctor()
    url = queue_url or world.queue_url
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(world.folder),
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": world.recorder.url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "KUBECONFIG": str(kubeconfig or world.control_plane.kubeconfig),
        **CREDENTIALS,
    }
    command = [str(world.binary), "doctor", "--queue-url", url, *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WITHIN, check=False)
