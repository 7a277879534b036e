"""The command line of a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SPOT = "spot"
ASG = "asg"

QUICK = "quick"
MOTO = "moto"


@dataclass(frozen=True)
class Options:
    """Options of one command."""

    nodes: tuple[int, ...]
    pods: int
    kind: str
    replicas: int
    rounds: int
    notices: int | None
    copies: int
    poison: int
    hang: float
    queue: str
    stops_after: float
    moving: bool
    one_by_one: bool
    idle: float
    roofline: bool
    flags: tuple[str, ...]
    out: Path


def read() -> Options:
    """Reads the command line; ends the program if it is invalid."""
    parser = argparse.ArgumentParser(
        prog="tests/real/storm",
        description="Sends a storm of notices to the service on a real control plane, and compares it with a bare "
        "client that knows the nodes already and only patches, lists and evicts.",
    )
    parser.add_argument(
        "--nodes", type=_sizes, default=(100,), help="number of nodes; several sizes with commas: 100,300 (100)"
    )
    parser.add_argument("--pods", type=_whole, default=5, help="pods on each node (5)")
    parser.add_argument("--kind", choices=(SPOT, ASG), default=SPOT, help="kind of the notices (spot)")
    parser.add_argument("--replicas", type=_positive, default=1, help="processes that share the queue (1)")
    parser.add_argument("--rounds", type=_positive, default=1, help="runs of each, alternating; medians count (1)")
    parser.add_argument("--notices", type=_whole, help="number of nodes that get a notice (all)")
    parser.add_argument("--copies", type=_positive, default=1, help="messages for each notice (1)")
    parser.add_argument("--poison", type=_whole, default=0, help="number of unreadable messages in between (0)")
    parser.add_argument(
        "--hang", type=float, default=0.0, help="seconds for which the API server is stopped in the middle (0)"
    )
    parser.add_argument(
        "--queue",
        choices=(QUICK, MOTO),
        default=QUICK,
        help="a queue as fast as SQS, or moto's, which is slower than the API server (quick)",
    )
    parser.add_argument("--stops-after", type=float, default=20.0, help="seconds that a pod takes to stop (20)")
    parser.add_argument(
        "--moving",
        action="store_true",
        help="half of the nodes get a notice, and a ReplicaSet moves their pods; without a roofline",
    )
    parser.add_argument(
        "--one-by-one", action="store_true", help="send a notice when the last one is handled: measures an idle service"
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=0.0,
        help="with --one-by-one: idle seconds before each notice; after 90 no connection is open (0)",
    )
    parser.add_argument("--no-roofline", action="store_true", help="run only the service, in half of the time")
    parser.add_argument("--flag", action="append", default=[], help="flag for the service, such as --flag=--log=debug")
    parser.add_argument("--out", type=Path, required=True, help="folder for the numbers and the picture")
    asked = parser.parse_args()
    return Options(
        nodes=asked.nodes,
        pods=asked.pods,
        kind=asked.kind,
        replicas=asked.replicas,
        rounds=asked.rounds,
        notices=asked.notices,
        copies=asked.copies,
        poison=asked.poison,
        hang=asked.hang,
        queue=asked.queue,
        stops_after=asked.stops_after,
        moving=asked.moving,
        one_by_one=asked.one_by_one,
        idle=asked.idle,
        roofline=not (asked.one_by_one or asked.no_roofline or asked.moving),
        flags=tuple(asked.flag),
        out=asked.out,
    )


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number


_whole, _positive = _at_least(0), _at_least(1)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_positive(size) for size in text.split(","))
