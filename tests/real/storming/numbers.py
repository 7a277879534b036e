"""What a run was, in numbers that JSON can hold."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.audit import Request

TICKS_PER_SECOND = 100


@dataclass
class Run:
    """One run over one fleet: the service's, or the bare client's. Times are seconds since the first message."""

    who: str
    nodes: int
    notices: int
    pods: int
    began: float = 0.0
    """When the first message was sent, in seconds of the clock."""
    receipts: list[float] = field(default_factory=list)
    """When the queue had given each message, in order: what no receiver can be faster than."""
    cordons: list[float] = field(default_factory=list)
    """When each node was cordoned, in order."""
    evictions: list[float] = field(default_factory=list)
    """When each pod's eviction was accepted, in order."""
    to_cordon: list[float] = field(default_factory=list)
    """From the send of each notice to its node's cordon."""
    to_eviction: list[float] = field(default_factory=list)
    """From the send of each notice to the acceptance of each of its pods' evictions."""
    from_receipt: list[float] = field(default_factory=list)
    """From a message's receipt to its node's cordon, where notices came one by one."""
    twice: int = 0
    """Evictions accepted once more for a pod whose eviction had been accepted."""
    gone: float = 0.0
    """When all pods were gone."""
    queue_empty: float = 0.0
    """When the last message was deleted."""
    deletes_took: float = 0.0
    """From the first deletion of messages to the last."""
    drains_took: float = 0.0
    """From the first cordon to the end of the last pod."""
    asked: dict[str, int] = field(default_factory=dict)
    """Calls that the API server answered well, by verb and resource."""
    watches: int = 0
    """Lines about watches in the audit log."""
    refused: dict[str, int] = field(default_factory=dict)
    """Calls that it answered otherwise, by verb, resource and status."""
    aws: dict[str, int] = field(default_factory=dict)
    """Calls to AWS, by operation; receives that brought nothing are one of their own."""
    idle_receives: int = 0
    """Long polls that brought nothing: an idle service makes one in 20 s, too."""
    vain_receives: int = 0
    """Receives of several at once that brought nothing."""
    left: int = 0
    """Messages that the queue still holds in the end."""
    hung_at: float = 0.0
    """When the API server was stopped, in seconds of the clock."""
    relisted: int = 0
    """Lists beyond two for a node: one whose answer is older than what the watch begins from is made again."""
    ready: float = 0.0
    """From the process's start to its readiness, the slowest of the replicas."""
    rss_idle: float = 0.0
    """MiB before the storm, of the largest replica."""
    rss_peak: float = 0.0
    """MiB at the most, of the largest replica."""
    cpu: float = 0.0
    """Seconds of all replicas together, or of the client."""
    others: dict[str, float] = field(default_factory=dict)
    """Seconds of everything else that ran meanwhile, by program."""
    shares: list[int] = field(default_factory=list)
    """How many messages each replica received."""

    @property
    def last_cordon(self) -> float:
        """When no node took pods any more."""
        return max(self.cordons, default=0.0)

    @property
    def last_eviction(self) -> float:
        """When the last pod knew that it had to go."""
        return max(self.evictions, default=0.0)

    def per_notice(self, calls: Mapping[str, int]) -> float:
        """How many of some calls a notice cost."""
        return sum(calls.values()) / max(self.notices, 1)


def look(run: Run, requests: Sequence[Request], sent: Mapping[str, float], began: float) -> None:
    """Reads from the audit log what happened when. `sent` says when each node's notice was sent."""
    run.began = began
    accepted: Counter[str] = Counter()
    after_hang = run.hung_at + 1 if run.hung_at else float("inf")
    cordoned: set[str] = set()
    for request in requests:
        call = f"{request.verb} {request.resource}"
        if request.verb == "watch":
            # One for the Nodes and one for all pods, however many drains there are.
            run.watches += 1
            continue
        if request.status >= 400 or request.status == 0:
            run.refused[f"{call} {request.status}"] = run.refused.get(f"{call} {request.status}", 0) + 1
            continue
        run.asked[call] = run.asked.get(call, 0) + 1
        if call == "patch nodes" and request.name in sent and request.name not in cordoned:
            cordoned.add(request.name)
            run.cordons.append(request.time - began)
            run.to_cordon.append(request.time - sent[request.name])
        elif call == "create pods/eviction":
            accepted[request.name] += 1
            if accepted[request.name] > 1:
                # What was on its way when the server stood still is done when it goes on, and tried again by then.
                run.twice += request.time < after_hang
                continue
            run.evictions.append(request.time - began)
            run.to_eviction.append(request.time - sent[node_of(request.name)])
    if run.who != "roofline":
        run.relisted = max(run.asked.get("list pods", 0) - 2 * len(sent), 0)
    run.cordons.sort()
    run.evictions.sort()


def node_of(pod: str) -> str:
    """The node that a pod of the fleet is on, by its name."""
    return pod.rpartition("-")[0]


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile of the values; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Iterable[float]) -> float:
    """The middle of some runs."""
    return statistics.median(values)


@dataclass(frozen=True)
class Cost:
    """What a process has used so far."""

    cpu: float
    """Seconds."""
    rss: float
    """MiB now."""
    peak: float
    """MiB at the most."""


def cost(pid: int) -> Cost:
    """What the kernel says of a process."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Vm")
    )
    rss, peak = (int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return Cost((int(times[11]) + int(times[12])) / TICKS_PER_SECOND, rss, peak)
