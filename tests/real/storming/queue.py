"""A queue as fast as SQS.

moto takes tens of milliseconds for a call, on a core that the API server needs: a storm of a thousand notices would
measure the queue. This recorder answers the service's SQS calls itself, after 15 ms like SQS, and forwards all others
to moto.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.recorder import RECEIVE, Answer, Recorder

_TAKES = 0.015
_LONGEST = 0.2
"""Maximum interval in seconds between checks for messages whose visibility timeout has ended."""


@dataclass
class _Message:
    body: str
    sent: float
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    receives: int = 0
    receipt: str = ""
    visible_at: float = 0.0


class QuickQueue(Recorder):
    """A recorder that also serves the queue."""

    def __init__(self, moto: tuple[str, int]) -> None:
        self._changed = threading.Condition()
        self._visible: deque[_Message] = deque()
        self._received: dict[str, _Message] = {}
        super().__init__(moto)

    def send(self, bodies: Sequence[str | dict[str, Any]]) -> None:
        """Puts messages into the queue."""
        now = time.time()
        with self._changed:
            self._visible += [_Message(body if isinstance(body, str) else json.dumps(body), now) for body in bodies]
            self._changed.notify_all()

    def holds(self) -> int:
        """Returns the number of messages, received or not."""
        with self._changed:
            return len(self._visible) + len(self._received)

    def answer(
        self, action: str, asked: dict[str, Any], forward: Callable[[], Answer], caller: str, *, in_json: bool
    ) -> Answer:
        """Answers and records one call."""
        perform = {
            RECEIVE: self._receive,
            "DeleteMessageBatch": self._delete,
            "ChangeMessageVisibilityBatch": self._change,
        }.get(action)
        if perform is None:
            return super().answer(action, asked, forward, caller, in_json=in_json)

        def as_sqs() -> Answer:
            time.sleep(_TAKES)
            return Answer(200, "application/x-amz-json-1.0", json.dumps(perform(asked)).encode())

        return super().answer(action, asked, as_sqs, caller, in_json=in_json)

    def _receive(self, asked: dict[str, Any]) -> dict[str, Any]:
        end = time.monotonic() + asked.get("WaitTimeSeconds", 0)
        with self._changed:
            while True:
                given = self._take(asked.get("MaxNumberOfMessages", 1), asked["VisibilityTimeout"])
                left = end - time.monotonic()
                if given or left <= 0:
                    return {"Messages": [_wire(message) for message in given]} if given else {}
                self._changed.wait(min(left, _LONGEST))

    def _take(self, most: int, visibility: float) -> list[_Message]:
        now = time.time()
        for receipt, message in list(self._received.items()) if not self._visible else ():
            if message.visible_at <= now:
                del self._received[receipt]
                self._visible.append(message)
        given = [self._visible.popleft() for _ in range(min(most, len(self._visible)))]
        for message in given:
            message.receives += 1
            message.receipt = str(uuid.uuid4())
            message.visible_at = now + visibility
            self._received[message.receipt] = message
        return given

    def _delete(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self._changed:
            return _each(asked, lambda entry: self._received.pop(entry["ReceiptHandle"], None))

    def _change(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self._changed:
            return _each(asked, self._hide)

    def _hide(self, entry: dict[str, Any]) -> _Message | None:
        message = self._received.get(entry["ReceiptHandle"])
        if message:
            message.visible_at = time.time() + entry["VisibilityTimeout"]
        return message


def _each(asked: dict[str, Any], perform: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Returns a batch's answer, with one result for each entry."""
    done, failed = [], []
    for entry in asked["Entries"]:
        if perform(entry):
            done.append({"Id": entry["Id"]})
        else:
            failed.append({"Id": entry["Id"], "Code": "ReceiptHandleIsInvalid", "SenderFault": True})
    return {"Successful": done, "Failed": failed}


def _wire(message: _Message) -> dict[str, Any]:
    return {
        "MessageId": message.id,
        "ReceiptHandle": message.receipt,
        "MD5OfBody": hashlib.md5(message.body.encode(), usedforsecurity=False).hexdigest(),
        "Body": message.body,
        "Attributes": {
            "ApproximateReceiveCount": str(message.receives),
            "SentTimestamp": str(int(message.sent * 1000)),
        },
    }
