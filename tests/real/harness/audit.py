"""The API server's audit log: the service's requests as the cluster saw them."""

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
    """Time at which the API server received the request."""
    at: str
    """Time at which the API server had answered."""
    user: str
    verb: str
    resource: str
    """Resource with its subresource, such as pods/eviction."""
    namespace: str
    name: str
    status: int
    said: str
    """Message of a refusal."""
    dry_run: bool
    grace: int | None
    """Grace period in seconds in a deletion's options."""
    uid: str | None
    """UID precondition of a deletion."""
    uri: str
    """Path with its query, such as a list's selectors."""

    @property
    def time(self) -> float:
        """Returns the time of the answer, in seconds since the epoch."""
        return datetime.fromisoformat(self.at).timestamp()

    @property
    def came_at(self) -> float:
        """Returns the time at which the API server received the request, in seconds since the epoch."""
        return datetime.fromisoformat(self.came).timestamp()

    def __str__(self) -> str:
        return f"{self.at} {self.status} {self.verb} {self.resource} {self.namespace}/{self.name}"


class Audit:
    """One test's part of the log, from the log's end at the start of the test.

    Requests that began earlier and ended later, such as watches, belong to the service of another test.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._begin = log.stat().st_size if log.exists() else 0
        self._began = time.time()
        self._followed = self._begin

    def requests(self) -> list[Request]:
        """Returns the requests so far."""
        with self._log.open("rb") as log:
            log.seek(self._begin)
            requests = [_request(json.loads(line)) for line in log if line.endswith(b"\n")]
        return [request for request in requests if request.came_at >= self._began]

    def more(self) -> list[Request]:
        """Returns the requests since the last call of this method."""
        with self._log.open("rb") as log:
            log.seek(self._followed)
            lines = log.readlines()
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # half-written
        self._followed += sum(map(len, lines))
        return [request for request in map(_request, map(json.loads, lines)) if request.came_at >= self._began]

    def evictions(self, namespace: str) -> list[Request]:
        """Returns the evictions in a namespace, with their status: 201, or 429 if a budget refused."""
        return [
            request
            for request in self.requests()
            if request.resource == "pods/eviction" and request.namespace == namespace
        ]

    def evicted(self, namespace: str) -> Counter[str]:
        """Returns the number of accepted evictions of each pod."""
        return Counter(request.name for request in self.evictions(namespace) if request.status == 201)

    def refused(self, namespace: str) -> Counter[str]:
        """Returns the number of evictions of each pod that a budget refused."""
        return Counter(request.name for request in self.evictions(namespace) if request.status == 429)

    def deletions(self, namespace: str) -> list[Request]:
        """Returns the requests to delete pods of a namespace without an eviction, accepted or not."""
        return [
            request
            for request in self.requests()
            if (request.verb, request.resource, request.namespace) == ("delete", "pods", namespace)
        ]

    def forbidden(self) -> list[Request]:
        """Returns the requests that the API server forbade, other than by an admission webhook of the test."""
        forbidden = [request for request in self.requests() if request.status == 403]
        return [request for request in forbidden if not request.said.startswith("admission webhook ")]


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
        said=line.get("responseStatus", {}).get("message", ""),
        dry_run="dryRun=All" in line["requestURI"] or bool(options.get("dryRun")),
        grace=options.get("gracePeriodSeconds"),
        uid=options.get("preconditions", {}).get("uid"),
        uri=line["requestURI"],
    )
