"""Heartbeats go on for as long as a drain takes, and no longer: the bug that the service was born from."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness import messages
from harness.hooks import Action
from harness.recorder import COMPLETE, HEARTBEAT
from harness.wait import always, eventually
from harness.world import World, drained

HEARTBEAT_TIMEOUT = 30
"""The shortest that Auto Scaling allows."""

DRAIN_TIMEOUT = 60
"""Long enough that the hook would expire without heartbeats."""

COPIES = 10
"""How often the message comes again."""

LONG = 100
"""Seconds that a pod takes to stop: more than three of the hook's timeouts."""


def none_late(world: World, action: Action, beats: list[float]) -> bool:
    """Whether each of the first beats came while the hook was held: Auto Scaling refuses one that does not."""
    calls = world.recorder.of_token(HEARTBEAT, action.token)[: len(beats)]
    return {call.status for call in calls} == {200}


@pytest.mark.slow
def test_failed_drain_leaves_no_heartbeat(world: World) -> None:
    node = world.node()
    world.run("db")
    world.close_budget("db")
    service = world.service("--drain-timeout", f"{DRAIN_TIMEOUT}s", "--at-deadline", "leave")
    action = world.hold(node.instance, HEARTBEAT_TIMEOUT)
    message = messages.bare(action)

    # The message, and ten more copies of it: at once, after each heartbeat, and when all is over.
    world.send(message)
    eventually("the budget refuses the eviction", lambda: world.audit.refused(world.name))
    world.send(*[message] * 4)
    eventually("a first heartbeat", lambda: len(world.heartbeats(action)) >= 1)
    assert action.active, "the first heartbeat comes before the hook expires"
    world.send(*[message] * 3)
    eventually("a second heartbeat", lambda: len(world.heartbeats(action)) >= 2)
    world.send(*[message] * (COPIES - 8))
    eventually("the drain ends at its deadline", service.at_rest)
    eventually("every copy is deleted", world.acknowledged)
    beats = world.heartbeats(action)
    world.send(message)
    eventually("the last copy is received", lambda: world.deliveries() == 1 + COPIES)
    eventually("the last copy is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    probes = world.heartbeats(action)[len(beats) :]
    assert len(probes) <= 1, f"the last copy may find out that the hook is over, but once: {probes}"

    always(
        "no heartbeat follows, and no task is left",
        lambda: world.heartbeats(action) == beats + probes and service.at_rest(),
        during=0.75 * HEARTBEAT_TIMEOUT,
    )
    intervals = [later - earlier for earlier, later in pairwise(beats)]
    assert min(intervals) > HEARTBEAT_TIMEOUT / 4, f"two heartbeats in one interval: {intervals}"
    assert none_late(world, action, beats), f"the hook expired between two: {intervals}"
    assert len(world.completions(action)) <= 1
    assert not world.audit.deletions(world.name), "what is to be left at the deadline is left"


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [pytest.param(False, id="one process"), pytest.param(True, id="killed")])
def test_long_drain_keeps_its_hook(world: World, replaced: bool) -> None:
    node = world.node()
    world.run("db", stops_after=LONG, grace=2 * LONG)
    service = world.service("--drain-timeout", f"asg-terminate={4 * LONG}s")
    action = world.hold(node.instance, HEARTBEAT_TIMEOUT)

    world.send(messages.bare(action))

    eventually("a second heartbeat", lambda: len(world.heartbeats(action)) >= 2)
    if replaced:
        # Some time after it, so that the next process has less than a timeout to take over.
        always("the hook is held", lambda: action.active, during=HEARTBEAT_TIMEOUT / 3)
        service.kill()
        service = world.service("--drain-timeout", f"asg-terminate={4 * LONG}s")
    eventually("the hook is completed", lambda: world.completions(action))
    assert drained(world, node), "a hook is completed only when the pods are gone"
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)

    (completion,) = world.recorder.of_token(COMPLETE, action.token)
    beats = world.heartbeats(action)
    always(
        "neither a heartbeat nor a completion follows",
        lambda: world.heartbeats(action) == beats and len(world.recorder.of_token(COMPLETE, action.token)) == 1,
        during=0.75 * HEARTBEAT_TIMEOUT,
    )
    assert world.completions(action) == ["CONTINUE"]
    assert completion.at - action.began > LONG, "the drain was to be a long one"
    assert max(beats) < completion.at, "no heartbeat comes after the completion"
    assert none_late(world, action, beats), f"the hook expired between two: {beats}"
    assert len(beats) <= 4 * LONG / HEARTBEAT_TIMEOUT + replaced, f"more heartbeats than one for each interval: {beats}"
    assert set(world.audit.evicted(world.name).values()) == {1}, world.audit.evicted(world.name)
