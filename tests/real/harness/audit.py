"""The API server's audit log: what the service asked of the cluster, as the cluster saw it."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request of the service that the API server answered."""

    came: str
    """When the API server received it."""
    at: str
    """When it had answered."""
    user: str
    verb: str
    resource: str
    """With its subresource: pods/eviction."""
    namespace: str
    name: str
    status: int
    dry_run: bool
    grace: int | None
    """The grace period in seconds that a deletion asked for."""
    uid: str | None
    """The UID that a deletion meant."""

    @property
    def time(self) -> float:
        """When it was answered, in seconds of the clock."""
        return datetime.fromisoformat(self.at).timestamp()

    @property
    def came_at(self) -> float:
        """When it was received, in seconds of the clock: what its answer took does not count."""
        return datetime.fromisoformat(self.came).timestamp()

    def __str__(self) -> str:
        return f"{self.at} {self.status} {self.verb} {self.resource} {self.namespace}/{self.name}"


class Audit:
    """One test's part of the log: from where it ended when the test began.

    What was asked before that, and ended later, is another test's: the watches of its service.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._begin = log.stat().st_size if log.exists() else 0
        self._began = time.time()

    def requests(self) -> list[Request]:
        """The requests so far."""
        with self._log.open("rb") as log:
            log.seek(self._begin)
            requests = [_request(json.loads(line)) for line in log if line.endswith(b"\n")]
        return [request for request in requests if request.came_at >= self._began]

    def evictions(self, namespace: str) -> list[Request]:
        """The evictions asked for in a namespace, with their answers: 201, or 429 where a budget refused."""
        return [
            request
            for request in self.requests()
            if request.resource == "pods/eviction" and request.namespace == namespace
        ]

    def evicted(self, namespace: str) -> Counter[str]:
        """How often each pod's eviction was accepted."""
        return Counter(request.name for request in self.evictions(namespace) if request.status == 201)

    def refused(self, namespace: str) -> Counter[str]:
        """How often each pod's eviction was refused by a budget."""
        return Counter(request.name for request in self.evictions(namespace) if request.status == 429)

    def deletions(self, namespace: str) -> list[Request]:
        """The pods in a namespace that were deleted without an eviction, or were to be."""
        return [
            request
            for request in self.requests()
            if (request.verb, request.resource, request.namespace) == ("delete", "pods", namespace)
        ]

    def forbidden(self) -> list[Request]:
        """What the service has no right to."""
        return [request for request in self.requests() if request.status == 403]


def _request(line: dict[str, Any]) -> Request:
    subject = line.get("objectRef", {})
    resource = "/".join(filter(None, [subject.get("resource"), subject.get("subresource")]))
    options = line.get("requestObject") or {}
    return Request(
        came=line["requestReceivedTimestamp"],
        at=line["stageTimestamp"],
        user=line["user"]["username"],
        verb=line["verb"],
        resource=resource or line["requestURI"],
        namespace=subject.get("namespace", ""),
        name=subject.get("name", ""),
        status=line.get("responseStatus", {}).get("code", 0),
        dry_run="dryRun=All" in line["requestURI"] or bool(options.get("dryRun")),
        grace=options.get("gracePeriodSeconds"),
        uid=options.get("preconditions", {}).get("uid"),
    )
