"""Heartbeats last as long as their drain and end with it. Ebbtide was written because of this bug elsewhere."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harness import messages
from harness.hooks import Action
from harness.recorder import COMPLETE, HEARTBEAT
from harness.wait import always, eventually
from harness.world import World, drained

HEARTBEAT_TIMEOUT = 30
"""Heartbeat timeout in seconds, Auto Scaling's minimum."""

DRAIN_TIMEOUT = 60
"""Drain timeout in seconds: without heartbeats the hook would expire before it."""

COPIES = 10
"""Number of additional copies of the message."""

LONG = 100
"""Seconds until a pod stops: more than three of the hook's timeouts."""


def none_late(world: World, action: Action, beats: list[float]) -> bool:
    """Returns whether each of these heartbeats came before the hook expired: Auto Scaling refuses later ones."""
    calls = world.recorder.of_token(HEARTBEAT, action.token)[: len(beats)]
    return {call.status for call in calls} == {200}


@pytest.mark.slow
def test_no_heartbeat_follows_a_failed_drain(world: World) -> None:
    node = world.node()
    world.run("db")
    world.close_budget("db")
    service = world.service("--drain-timeout", f"{DRAIN_TIMEOUT}s", "--at-deadline", "leave")
    action = world.hold(node.instance, HEARTBEAT_TIMEOUT)
    message = messages.bare(action)

    # Ten copies follow the message: at once, after each heartbeat, and after the drain.
    world.send(message)
    eventually("the budget refuses the eviction", lambda: world.audit.refused(world.name))
    world.send(*[message] * 4)
    eventually("a first heartbeat", lambda: len(world.heartbeats(action)) >= 1)
    assert action.active, "the first heartbeat came after the hook expired"
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
    assert len(probes) <= 1, f"the last copy made more than the one heartbeat that is refused: {probes}"

    always(
        "no heartbeat follows, and the service is at rest",
        lambda: world.heartbeats(action) == beats + probes and service.at_rest(),
        during=0.75 * HEARTBEAT_TIMEOUT,
    )
    intervals = [later - earlier for earlier, later in pairwise(beats)]
    assert min(intervals) > HEARTBEAT_TIMEOUT / 4, f"two heartbeats in one interval: {intervals}"
    assert none_late(world, action, beats), f"the hook expired between two heartbeats: {intervals}"
    assert len(world.completions(action)) <= 1
    assert not world.audit.deletions(world.name), "a pod was deleted despite --at-deadline leave"


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [pytest.param(False, id="one process"), pytest.param(True, id="killed")])
def test_a_long_drain_keeps_its_hook(world: World, replaced: bool) -> None:
    node = world.node()
    world.run("db", stops_after=LONG, grace=2 * LONG)
    service = world.service("--drain-timeout", f"asg-terminate={4 * LONG}s")
    action = world.hold(node.instance, HEARTBEAT_TIMEOUT)

    world.send(messages.bare(action))

    eventually("a second heartbeat", lambda: len(world.heartbeats(action)) >= 2)
    if replaced:
        # Less than a timeout remains for the next process.
        always("the hook is held", lambda: action.active, during=HEARTBEAT_TIMEOUT / 3)
        service.kill()
        service = world.service("--drain-timeout", f"asg-terminate={4 * LONG}s")
    eventually("the hook is completed", lambda: world.completions(action))
    assert drained(world, node), "the hook was completed before the pods were gone"
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
    assert completion.at - action.began > LONG, "the drain was too short"
    assert max(beats) < completion.at, "a heartbeat followed the completion"
    assert none_late(world, action, beats), f"the hook expired between two heartbeats: {beats}"
    assert len(beats) <= 4 * LONG / HEARTBEAT_TIMEOUT + replaced, f"more than one heartbeat in an interval: {beats}"
    assert set(world.audit.evicted(world.name).values()) == {1}, world.audit.evicted(world.name)
