"""Queues of an implementation of SQS: moto's or ElasticMQ's. The tests' own calls, which bypass the recorder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import boto3

REGION = "eu-west-1"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


@dataclass(frozen=True)
class Backlog:
    """Number of messages in a queue."""

    visible: int
    in_flight: int

    @property
    def empty(self) -> bool:
        """Returns whether every message was deleted."""
        return self.visible == 0 and self.in_flight == 0


class Queues:
    """The queues at an address."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._sqs = client("sqs", address)

    def queue(self, name: str) -> str:
        """Creates a queue; returns its URL."""
        url: str = self._sqs.create_queue(QueueName=name)["QueueUrl"]
        return url

    def dead_letters(self, queue: str, name: str, max_receives: int) -> str:
        """Creates the dead-letter queue of a queue, with this maximum of receives; returns its URL."""
        url = self.queue(name)
        policy = {"deadLetterTargetArn": self.queue_arn(url), "maxReceiveCount": max_receives}
        self.set_attribute(queue, "RedrivePolicy", json.dumps(policy))
        return url

    def queue_arn(self, queue: str) -> str:
        """Returns a queue's ARN."""
        answer = self._sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
        arn: str = answer["Attributes"]["QueueArn"]
        return arn

    def set_attribute(self, queue: str, name: str, value: str) -> None:
        """Sets an attribute of a queue."""
        self._sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: value})

    def send(self, queue: str, body: str | dict[str, Any]) -> None:
        """Sends a message: an event, or a raw body."""
        self._sqs.send_message(QueueUrl=queue, MessageBody=body if isinstance(body, str) else json.dumps(body))

    def send_together(self, queue: str, bodies: Sequence[str | dict[str, Any]]) -> None:
        """Sends up to ten messages in one call."""
        entries = [
            {"Id": str(n), "MessageBody": body if isinstance(body, str) else json.dumps(body)}
            for n, body in enumerate(bodies)
        ]
        self._sqs.send_message_batch(QueueUrl=queue, Entries=entries)

    def backlog(self, queue: str) -> Backlog:
        """Returns the number of messages in the queue now."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        numbers = self._sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
        return Backlog(*(int(numbers[name]) for name in names))

    def receive(self, queue: str) -> list[dict[str, Any]]:
        """Receives and deletes a queue's messages."""
        received = []
        # Overrides the queue's own wait time.
        ask = {"QueueUrl": queue, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 0}
        while messages := self._sqs.receive_message(**ask).get("Messages"):
            received += [json.loads(message["Body"]) for message in messages]
        return received

    def attributes(self, queue: str) -> dict[str, str]:
        """Returns all attributes of a queue."""
        attributes: dict[str, str] = self._sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])[
            "Attributes"
        ]
        return attributes

    def queues(self) -> list[str]:
        """Returns the names of all queues."""
        return [url.rsplit("/", 1)[1] for url in self._sqs.list_queues().get("QueueUrls", [])]


def client(service: str, address: tuple[str, int]) -> Any:
    """Returns a client of one of AWS's services at this address."""
    return boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=f"http://{address[0]}:{address[1]}",
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )
