"""Compares the results of a run with the targets of docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from .numbers import Run, median, percentile
from .options import SPOT, Options

SPOT_DEADLINE = 120.0

_LIFECYCLE = {"DescribeLifecycleHooks", "CompleteLifecycleAction", "RecordLifecycleActionHeartbeat"}
_HEARTBEAT = "RecordLifecycleActionHeartbeat"

_LEFT_OVER = 6
"""Number of SQS calls for batches that are not full, in a storm of any size."""
_LANES = 8
"""Number of concurrent receives during a backlog. An empty receive takes one second."""
_LINGER = 0.75
"""Maximum age in seconds of a batch that is not full. The spread of the last drains differs between machines."""
_WATCHES = 8
"""Number of lines of the audit log about a replica's watches in one storm: two for each watch. The watch of pods
restarts after a pause between drains."""
_ENOUGH_FOR_ALL = 100
"""Minimum number of notices that all replicas share. One replica may receive all of fewer."""


@dataclass(frozen=True)
class Finding:
    """The result for one target, and whether a miss fails the run."""

    what: str
    found: float
    at_most: float
    counts: bool
    """Whether this is a count. A count is the same on every machine and fails the run; a time is only shown."""

    @property
    def met(self) -> bool:
        """Returns whether the result meets the target."""
        return self.found <= self.at_most

    def __str__(self) -> str:
        word = "ok    " if self.met else ("MISSED" if self.counts else "missed")
        return f"{word}  {self.what:<58} {self.found:>9.3f}   at most {self.at_most:g}"


def findings(options: Options, ours: Sequence[Run], rooflines: Sequence[Run]) -> list[Finding]:
    """Returns the findings for runs of one size."""
    found = [*_promises(options, ours), *_costs(options, ours)]
    if options.one_by_one:
        late = [latency for run in ours for latency in run.from_receipt]
        found.append(Finding("receipt to cordon on an idle service, p99, s", percentile(late, 99), 0.05, counts=False))
        return found
    if options.hang:
        tail = max(run.last_eviction - (run.hung_at - run.began) for run in ours)
        found.append(Finding("from the stop to the last eviction, s", tail, options.hang + 20, counts=False))
    if rooflines and not options.hang:
        for what, of, at_most in (
            ("last cordon", lambda run: run.last_cordon, 1.5),
            ("last eviction without the quiet time", lambda run: run.evictions_took, 1.3),
        ):
            theirs = median(map(of, rooflines))
            ratio = median(map(of, ours)) / theirs if theirs else 0.0
            found.append(Finding(f"{what}, relative to the roofline", ratio, at_most, counts=False))
    found.append(Finding("last eviction, s", max(run.last_eviction for run in ours), SPOT_DEADLINE, counts=False))
    found.append(Finding("start to ready, s", median(run.ready for run in ours), 1.0, counts=False))
    found.append(Finding("resident before, MiB", median(run.rss_idle for run in ours), _idle(ours[0]), counts=False))
    found.append(Finding("resident at the peak, MiB", median(run.rss_peak for run in ours), 60.0, counts=False))
    return found


def _idle(run: Run) -> float:
    return 20.0 if run.nodes <= 1000 else 60.0


def _promises(options: Options, ours: Sequence[Run]) -> list[Finding]:
    missing = sum(run.notices - len(run.cordons) + run.pods - len(run.evictions) for run in ours)
    found = [
        Finding("nodes not cordoned, pods not evicted", missing, 0, counts=True),
        Finding("repeated evictions", sum(run.twice for run in ours), 0, counts=True),
        Finding("messages left in the queue", sum(run.left for run in ours), 0, counts=True),
    ]
    if options.moving:
        again = sum(run.moved_again for run in ours)
        found.append(Finding("pods moved to a node that goes, and evicted again", again, 0, counts=True))
    if options.replicas > 1 and ours[0].notices >= _ENOUGH_FOR_ALL:
        without = sum(share == 0 for run in ours for share in run.shares)
        found.append(Finding("replicas without work", without, 0, counts=True))
    return found


def _costs(options: Options, ours: Sequence[Run]) -> list[Finding]:
    """Returns the findings about a notice's cost; none if the API server was stopped, which changes the cost."""
    if options.hang:
        return []
    notices = max(ours[0].notices, 1)
    each = max((sum(run.asked.values()) - run.pods - run.relisted) / notices for run in ours)
    messages = options.copies + options.poison / notices
    held = options.copies * max(run.drains_took for run in ours)
    batches = max(run.deletes_took for run in ours) / _LINGER
    allowed = 0.25 * messages + 0.1 * held / 20 + (_LEFT_OVER + batches) * options.replicas / notices
    found = [
        Finding("API calls for each notice, without evictions", each, 3.0, counts=True),
        Finding("repeated lists, % of the notices", 100 * max(run.relisted for run in ours) / notices, 10, counts=True),
        Finding("refused calls", max(sum(run.refused.values()) for run in ours), 0, counts=True),
    ]
    # Notices sent one by one share no watches and no batches of SQS calls.
    if not options.one_by_one:
        watches = max(run.watches for run in ours)
        found.append(Finding("audit log lines about watches", watches, _WATCHES * options.replicas, counts=True))
        sqs = max(run.per_notice({op: n for op, n in run.aws.items() if op not in _LIFECYCLE}) for run in ours)
        found.append(Finding("SQS calls for each notice", sqs, round(allowed, 3), counts=True))
        empty = max(run.empty_receives for run in ours)
        # Receives may last a second longer than the backlog.
        backlog = max(run.receipts[-1] - run.receipts[0] if run.receipts else 0.0 for run in ours) + 2
        most = _LANES * options.replicas * ceil(backlog)
        found.append(Finding("empty concurrent receives", empty, most, counts=True))
    if options.kind != SPOT:
        hooks = {op for op in _LIFECYCLE if op != _HEARTBEAT}
        lifecycle = max(run.per_notice({op: n for op, n in run.aws.items() if op in hooks}) for run in ours)
        # Each replica reads the hook's times once, in storms of any size.
        most = round(max(1.1, 1 + options.replicas / notices), 3)
        found.append(Finding("lifecycle calls for each notice, without heartbeats", lifecycle, most, counts=True))
    return found
