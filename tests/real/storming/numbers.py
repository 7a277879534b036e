"""The results of a run, as JSON can hold them."""

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
    """Time of the first message, in seconds since the epoch."""
    receipts: list[float] = field(default_factory=list)
    """Times at which the queue had delivered each message, in order: the lower bound for any receiver."""
    cordons: list[float] = field(default_factory=list)
    """Times of the nodes' cordons, in order."""
    evictions: list[float] = field(default_factory=list)
    """Times at which the pods' evictions were accepted, in order."""
    to_cordon: list[float] = field(default_factory=list)
    """Durations from the send of each notice to its node's cordon."""
    to_eviction: list[float] = field(default_factory=list)
    """Durations from the send of each notice to the acceptance of each of its pods' evictions."""
    from_receipt: list[float] = field(default_factory=list)
    """Durations from a message's receipt to its node's cordon, if notices were sent one by one."""
    twice: int = 0
    """Number of repeated evictions: accepted for a pod whose eviction had already been accepted."""
    moved_again: int = 0
    """Number of evictions of pods that had been moved to a node that goes."""
    gone: float = 0.0
    """Time at which all pods were gone."""
    queue_empty: float = 0.0
    """Time at which the last message was deleted."""
    deletes_took: float = 0.0
    """Duration from the first deletion of messages to the last."""
    drains_took: float = 0.0
    """Duration from the first cordon to the end of the last pod."""
    asked: dict[str, int] = field(default_factory=dict)
    """Successful calls to the API server, by verb and resource."""
    watches: int = 0
    """Number of lines about watches in the audit log."""
    refused: dict[str, int] = field(default_factory=dict)
    """Other calls to the API server, by verb, resource and status."""
    aws: dict[str, int] = field(default_factory=dict)
    """Calls to AWS, by operation; empty receives are counted separately."""
    idle_receives: int = 0
    """Number of empty long polls: an idle service makes one every 20 s, too."""
    empty_receives: int = 0
    """Number of empty receives while several receives ran at once."""
    left: int = 0
    """Number of messages left in the queue at the end."""
    hung_at: float = 0.0
    """Time at which the API server was stopped, in seconds since the epoch."""
    relisted: int = 0
    """Number of lists beyond two per node: a list that is older than the start of the watch is repeated."""
    ready: float = 0.0
    """Seconds from the process's start to its readiness, for the slowest replica."""
    rss_idle: float = 0.0
    """Memory of the largest replica before the storm, in MiB."""
    rss_peak: float = 0.0
    """Peak memory of the largest replica, in MiB."""
    cpu: float = 0.0
    """CPU seconds of all replicas together, or of the client."""
    others: dict[str, float] = field(default_factory=dict)
    """CPU seconds of all other programs during the run, by program."""
    shares: list[int] = field(default_factory=list)
    """Number of messages that each replica received."""

    @property
    def last_cordon(self) -> float:
        """Time at which the last node was cordoned."""
        return max(self.cordons, default=0.0)

    @property
    def last_eviction(self) -> float:
        """Time at which the last eviction was accepted."""
        return max(self.evictions, default=0.0)

    @property
    def evictions_took(self) -> float:
        """Time at which the last eviction was accepted, without the quiet time between the last cordon and the first eviction."""
        quiet = min(self.evictions, default=0.0) - self.last_cordon
        return self.last_eviction - max(quiet, 0.0)

    def per_notice(self, calls: Mapping[str, int]) -> float:
        """Number of some calls per notice."""
        return sum(calls.values()) / max(self.notices, 1)


def look(
    run: Run, requests: Sequence[Request], sent: Mapping[str, float], nodes: Mapping[str, str], began: float
) -> None:
    """Reads times and counts from the audit log.

    `sent` maps each node to the time at which its notice was sent, and `nodes` the pods on these to their node.
    """
    run.began = began
    accepted: Counter[str] = Counter()
    after_hang = run.hung_at + 1 if run.hung_at else float("inf")
    cordoned: set[str] = set()
    for request in requests:
        call = f"{request.verb} {request.resource}"
        if request.verb == "watch":
            # One watch for the Nodes and one for all pods, whatever the number of drains.
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
                # A stopped server later completes the calls in flight; by then the service has repeated them.
                run.twice += request.time < after_hang
                continue
            if request.name not in nodes:
                run.moved_again += 1
                continue
            run.evictions.append(request.time - began)
            run.to_eviction.append(request.time - sent[nodes[request.name]])
    if run.who != "roofline":
        run.relisted = max(run.asked.get("list pods", 0) - 2 * len(sent), 0)
    run.cordons.sort()
    run.evictions.sort()


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the percentile of the values; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Iterable[float]) -> float:
    """Returns the median of some runs."""
    return statistics.median(values)


@dataclass(frozen=True)
class Cost:
    """Resources that a process has used so far."""

    cpu: float
    """CPU time in seconds."""
    rss: float
    """Memory now, in MiB."""
    peak: float
    """Peak memory, in MiB."""


def cost(pid: int) -> Cost:
    """Reads a process's use of resources from the kernel."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Vm")
    )
    rss, peak = (int(status[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return Cost((int(times[11]) + int(times[12])) / TICKS_PER_SECOND, rss, peak)
