"""A process ends during a drain; another process finishes the drain and repeats nothing."""

from __future__ import annotations

import pytest

from harness import messages
from harness.hooks import Action
from harness.wait import eventually
from harness.world import Node, World, drained

pytestmark = pytest.mark.both_queues

WEB = 3
"""Number of pods that may be evicted."""

VISIBILITY = 30
"""Visibility timeout in seconds of a received message."""

LEAVE = ("--at-deadline", "leave")
"""Flags with which the database's pod stays while its budget is closed, even at the deadline."""


def half_drained(world: World, stops_after: float) -> tuple[Node, Action]:
    """Starts a drain that gets stuck: the web's pods are evicted, and a budget holds the database's pod."""
    node = world.node()
    world.run("web", WEB, stops_after)
    world.run("db")
    world.close_budget("db")
    world.service("--log-format", "json", *LEAVE)
    action = world.hold(node.instance, heartbeat_timeout=120)
    world.send(messages.terminate_action(action))
    eventually("the web's pods are evicted", lambda: len(world.audit.evicted(world.name)) == WEB)
    eventually("the budget holds the database's pod", lambda: world.audit.refused(world.name))
    return node, action


def finished_once(world: World, node: Node, action: Action) -> None:
    """Opens the budget, and checks that the second process finishes the drain and repeats nothing."""
    second = world.services[-1]
    world.open_budget("db")
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", second.at_rest)
    assert world.completions(action) == ["CONTINUE"]
    evicted = world.audit.evicted(world.name)
    assert len(evicted) == WEB + 1
    assert set(evicted.values()) == {1}, f"evicted twice: {evicted}"


@pytest.mark.slow
def test_another_process_finishes_after_a_kill(world: World) -> None:
    # The evicted pods are still terminating when the second process meets them.
    node, action = half_drained(world, stops_after=VISIBILITY + 15)

    world.services[0].kill()
    world.service(*LEAVE)

    eventually("the second process has the message", lambda: world.deliveries() >= 2)
    finished_once(world, node, action)


def test_another_process_finishes_after_sigterm(world: World) -> None:
    node, action = half_drained(world, stops_after=15)

    world.services[0].terminate()

    # Its own last poll may have received the message once more.
    received = world.deliveries()
    assert world.recorder.released(), "the service did not release its message"
    eventually("the message is visible again", lambda: world.backlog().visible == 1)
    assert not world.completions(action), "the terminated process completed the hook"
    world.service(*LEAVE)
    eventually("the second process has the message", lambda: world.deliveries() > received)
    finished_once(world, node, action)
