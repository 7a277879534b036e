"""Runs the storms that the command line asks for, prints the results, and writes the numbers and the pictures."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from harness import control_plane
from harness.aws import Aws

from . import options, picture
from .fleet import Fleet
from .numbers import Run, median, percentile
from .options import Options
from .runs import Parts, ServiceRun, bare_client
from .verdict import Finding, findings

_WARM = 50
_LEASE = 3600
"""Duration in seconds of a node's Lease: with a short one, kwok's renewals for all nodes would load the API server."""


def main() -> int:
    """Returns 0 only if every count is as expected."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    asked = options.read()
    asked.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="ebbtide-storm-"))
    missed = True
    sizes: list[tuple[int, list[Run]]] = []
    try:
        for nodes in asked.nodes:
            ours, rooflines = _size(folder / str(nodes), asked, nodes)
            sizes.append((nodes, ours))
            found = findings(asked, ours, rooflines)
            _print(asked, ours, rooflines, found)
            _save(asked, nodes, ours, rooflines, found)
            missed = any(each.counts and not each.met for each in found)
            if len(sizes) > 1:
                picture.scale(asked.out / f"scale-{asked.kind}.svg", sizes)
            if missed:
                break
    finally:
        if missed:
            print(f"logs are kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
    return int(missed)


def _size(folder: Path, asked: Options, nodes: int) -> tuple[list[Run], list[Run]]:
    """Runs all rounds for one size on a new control plane."""
    folder.mkdir()
    paths = {name: Path(os.environ[f"EBBTIDE_{name}"]) for name in ("CONTROL_PLANE", "KUBECTL", "BIN", "ROOFLINE")}
    running = control_plane.start(paths["CONTROL_PLANE"], paths["KUBECTL"], folder, _LEASE)
    ours, rooflines = [], []
    try:
        aws = Aws(folder)
        try:
            parts = Parts(running, aws, paths["BIN"], paths["ROOFLINE"], folder)
            if asked.roofline:
                # Warm-up on a fleet whose results are discarded: first calls take longer.
                _say("warming the API server up")
                with Fleet(running, 0, min(nodes, _WARM), asked.pods, asked.stops_after) as fleet:
                    bare_client(parts, fleet, asked)
            fleets = (Fleet(running, n, nodes, asked.pods, asked.stops_after, asked.moving) for n in itertools.count(1))
            for n in range(asked.rounds):
                # Alternates the order, because each run affects the API server's state for the next one.
                for roofline in (True, False) if n % 2 == 0 else (False, True):
                    if roofline and not asked.roofline:
                        continue
                    _say(f"round {n + 1}: {'the roofline' if roofline else 'the service'}, {nodes} nodes")
                    with next(fleets) as fleet:
                        if roofline:
                            rooflines.append(bare_client(parts, fleet, asked))
                        else:
                            ours.append(ServiceRun(parts, fleet, asked, f"storm-{nodes}-{n + 1}").measure())
        finally:
            aws.stop()
    finally:
        running.stop()
    return ours, rooflines


def _print(asked: Options, ours: Sequence[Run], rooflines: Sequence[Run], found: Sequence[Finding]) -> None:
    first = ours[0]
    print(
        f"\n{first.notices:,} {asked.kind} notices, {first.nodes:,} nodes, {first.pods:,} pods; medians of {len(ours)}"
    )
    print(f"{'':<34} {'roofline':>10} {'ebbtide':>10} {'ratio':>8}")
    rows = [
        ("send to cordon, p50, s", lambda run: percentile(run.to_cordon, 50)),
        ("send to cordon, p95, s", lambda run: percentile(run.to_cordon, 95)),
        ("send to cordon, max, s", lambda run: percentile(run.to_cordon, 100)),
        ("send to eviction, p50, s", lambda run: percentile(run.to_eviction, 50)),
        ("send to eviction, p95, s", lambda run: percentile(run.to_eviction, 95)),
        ("send to eviction, max, s", lambda run: percentile(run.to_eviction, 100)),
        ("last cordon, s", lambda run: run.last_cordon),
        ("last eviction, s", lambda run: run.last_eviction),
        ("all pods gone, s", lambda run: run.gone),
        ("CPU for each notice, ms", lambda run: 1000 * run.cpu / max(run.notices, 1)),
    ]
    for name, of in rows:
        _row(name, [of(run) for run in rooflines], [of(run) for run in ours])
    for name, of in [
        ("last message received, s", lambda run: max(run.receipts)),
        ("queue empty, s", lambda run: run.queue_empty),
        ("start to ready, s", lambda run: run.ready),
        ("resident before the storm, MiB", lambda run: run.rss_idle),
        ("resident at the peak, MiB", lambda run: run.rss_peak),
        ("empty long polls", lambda run: run.idle_receives),
    ]:
        _row(name, [], [of(run) for run in ours])
    for title, of in [
        ("API calls for each notice", lambda run: run.asked),
        ("refused", lambda run: run.refused),
        ("AWS calls for each notice", lambda run: run.aws),
    ]:
        calls = {name: median(of(run).get(name, 0) for run in ours) / max(first.notices, 1) for name in of(first)}
        print(f"{title}: " + (", ".join(f"{calls[name]:.3f} {name}" for name in sorted(calls)) or "none"))
    if len(first.shares) > 1:
        print(f"messages received by each replica: {first.shares}")
    for run in [*rooflines[:1], first]:
        others = ", ".join(f"{seconds:.1f} {name}" for name, seconds in run.others.items())
        print(f"CPU seconds: {run.who} {run.cpu:.1f}, {others}")
    for each in found:
        print(each)
    sys.stdout.flush()


def _row(name: str, theirs: Sequence[float], ours: Sequence[float]) -> None:
    mine = median(ours)
    if not theirs:
        print(f"{name:<34} {'':>10} {mine:>10.3f}")
        return
    least = median(theirs)
    ratio = f"{mine / least:8.2f}" if least else ""
    print(f"{name:<34} {least:>10.3f} {mine:>10.3f} {ratio}")


def _save(asked: Options, nodes: int, ours: Sequence[Run], rooflines: Sequence[Run], found: Sequence[Finding]) -> None:
    name = f"storm-{asked.kind}-{nodes}x{asked.pods}" + (f"-{asked.replicas}-replicas" if asked.replicas > 1 else "")
    name += "-moving" if asked.moving else ""
    numbers = {
        "asked": {key: str(value) for key, value in asdict(asked).items() if key != "out"},
        "findings": [asdict(each) | {"met": each.met} for each in found],
        "ebbtide": [asdict(run) for run in ours],
        "roofline": [asdict(run) for run in rooflines],
    }
    (asked.out / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    if not asked.one_by_one:
        picture.storm(asked.out / f"{name}.svg", ours[-1], rooflines[-1] if rooflines else None)


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
