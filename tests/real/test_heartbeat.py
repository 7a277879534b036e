"""The bug the service was born from: a drain that fails, whose heartbeat goes on, and one more for each redelivery."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness import messages
from harness.wait import always, eventually
from harness.world import World

HEARTBEAT_TIMEOUT = 30
"""The shortest that Auto Scaling allows."""

DRAIN_TIMEOUT = 60
"""Long enough that the hook would expire without heartbeats."""

COPIES = 10
"""How often the message comes again."""


@pytest.mark.slow
def test_failed_drain_leaves_no_heartbeat(world: World) -> None:
    node = world.node()
    world.run("db")
    world.close_budget("db")
    service = world.service("--drain-timeout", f"{DRAIN_TIMEOUT}s")
    action = world.hold(node.instance, HEARTBEAT_TIMEOUT)
    message = messages.bare(action)

    # The message, and ten more copies of it: at once, after each heartbeat, and when all is over.
    world.send(message)
    eventually("the budget refuses the eviction", lambda: world.audit.refused(world.name))
    world.send(*[message] * 4)
    eventually("a first heartbeat", lambda: len(world.heartbeats(action)) >= 1, within=HEARTBEAT_TIMEOUT)
    assert action.active, "the first heartbeat comes before the hook expires"
    world.send(*[message] * 3)
    eventually("a second heartbeat", lambda: len(world.heartbeats(action)) >= 2, within=HEARTBEAT_TIMEOUT)
    world.send(*[message] * (COPIES - 8))
    eventually("the drain ends at its deadline", service.at_rest, within=DRAIN_TIMEOUT)
    eventually("every copy is deleted", world.acknowledged)
    beats = world.heartbeats(action)
    world.send(message)
    eventually("the last copy is received", lambda: world.deliveries() == 1 + COPIES)
    eventually("the last copy is deleted", world.acknowledged)
    eventually("nothing is left going on", service.at_rest)
    probes = world.heartbeats(action)[len(beats) :]
    assert len(probes) <= 1, f"the last copy may find out that the hook is over, but once: {probes}"

    always(
        "no heartbeat follows, and no task is left",
        lambda: world.heartbeats(action) == beats + probes and service.at_rest(),
        during=0.75 * HEARTBEAT_TIMEOUT,
    )
    intervals = [later - earlier for earlier, later in pairwise(beats)]
    assert min(intervals) > HEARTBEAT_TIMEOUT / 4, f"two heartbeats in one interval: {intervals}"
    assert max(intervals) < HEARTBEAT_TIMEOUT, f"the hook expired between two: {intervals}"
    assert len(world.completions(action)) <= 1
