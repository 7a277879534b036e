"""AWS as a test's user sets it up, on moto: a queue, instances with their tags, groups with their hooks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import requests

from .hooks import Hook
from .process import Process, free_port
from .wait import eventually

REGION = "eu-west-1"
ZONE = "eu-west-1a"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
MANAGED_TAG = "aws-node-termination-handler/managed"

_IMAGE = "ami-12c6146b"


@dataclass(frozen=True)
class Backlog:
    """How many messages a queue has."""

    visible: int
    in_flight: int

    @property
    def empty(self) -> bool:
        """Whether every message was deleted."""
        return self.visible == 0 and self.in_flight == 0


class Aws:
    """moto's server, and the calls that the tests themselves make: past the recorder, straight to it."""

    def __init__(self, folder: Path) -> None:
        self.address = ("127.0.0.1", free_port())
        host, port = self.address
        command = [sys.executable, "-m", "moto.server", "--host", host, "--port", str(port)]
        self.process = Process("moto", command, folder / "moto.log")
        try:
            eventually("moto answers", self._answers, within=60)
        except BaseException:
            self.process.stop()
            raise
        self._sqs = self._client("sqs")
        self._ec2 = self._client("ec2")
        self._groups = self._client("autoscaling")
        self._groups.create_launch_configuration(
            LaunchConfigurationName="nodes", ImageId=_IMAGE, InstanceType="t3.small"
        )

    def stop(self) -> None:
        """Ends moto's server."""
        self.process.stop()

    def queue(self, name: str) -> str:
        """Makes a queue; returns its URL at moto."""
        url: str = self._sqs.create_queue(QueueName=name)["QueueUrl"]
        return url

    def dead_letters(self, queue: str, name: str, max_receives: int) -> str:
        """Makes a queue for what another received so often in vain; returns its URL."""
        url = self.queue(name)
        arn = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        policy = {"deadLetterTargetArn": arn, "maxReceiveCount": max_receives}
        self._sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": json.dumps(policy)})
        return url

    def send(self, queue: str, body: str | dict[str, Any]) -> None:
        """Sends a message: an event, or a body as it is."""
        self._sqs.send_message(QueueUrl=queue, MessageBody=body if isinstance(body, str) else json.dumps(body))

    def send_together(self, queue: str, bodies: Sequence[str | dict[str, Any]]) -> None:
        """Sends up to ten messages in one call."""
        entries = [
            {"Id": str(n), "MessageBody": body if isinstance(body, str) else json.dumps(body)}
            for n, body in enumerate(bodies)
        ]
        self._sqs.send_message_batch(QueueUrl=queue, Entries=entries)

    def backlog(self, queue: str) -> Backlog:
        """What the queue holds now."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        numbers = self._sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
        return Backlog(*(int(numbers[name]) for name in names))

    def instance(self, *, managed: bool = True) -> str:
        """Runs an instance; returns its id."""
        tags = [{"Key": MANAGED_TAG, "Value": "true"}] if managed else [{"Key": "Name", "Value": "another cluster's"}]
        answer = self._ec2.run_instances(
            ImageId=_IMAGE,
            InstanceType="t3.small",
            MinCount=1,
            MaxCount=1,
            Placement={"AvailabilityZone": ZONE},
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        instance: str = answer["Instances"][0]["InstanceId"]
        return instance

    def hook(self, group: str, name: str, heartbeat_timeout: int, transition: str) -> Hook:
        """Makes a group with a hook."""
        self._groups.create_auto_scaling_group(
            AutoScalingGroupName=group,
            LaunchConfigurationName="nodes",
            AvailabilityZones=[ZONE],
            MinSize=0,
            MaxSize=0,
        )
        self._groups.put_lifecycle_hook(
            AutoScalingGroupName=group,
            LifecycleHookName=name,
            LifecycleTransition=transition,
            HeartbeatTimeout=heartbeat_timeout,
        )
        return Hook(group, name, heartbeat_timeout, transition)

    def _answers(self) -> bool:
        self.process.must_run()
        return requests.get(f"http://{self.address[0]}:{self.address[1]}/moto-api/", timeout=5).ok

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=f"http://{self.address[0]}:{self.address[1]}",
            region_name=REGION,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )
