"""A process goes while it drains; another one finishes its work, and nothing is done twice."""

from __future__ import annotations

import pytest

from harness import messages
from harness.hooks import Action
from harness.wait import eventually
from harness.world import Node, World, drained

WEB = 3
"""Pods that may be evicted."""

VISIBILITY = 30
"""Seconds for which a received message is hidden from others, unless its holder extends that or gives it back."""

LEAVE = ("--at-deadline", "leave")
"""The database's pod is to stay for as long as its budget says, however near the hook's end is."""


def half_drained(world: World, stops_after: float) -> tuple[Node, Action]:
    """A node whose drain is stuck half way: the web's pods are evicted, and a budget holds the database's."""
    node = world.node()
    world.run("web", WEB, stops_after)
    world.run("db")
    world.close_budget("db")
    world.service("--log-format", "json", *LEAVE)
    action = world.hold(node.instance, heartbeat_timeout=120)
    world.send(messages.terminate_action(action))
    eventually("the web's pods are evicted", lambda: len(world.audit.evicted(world.name)) == WEB)
    eventually("the budget holds the database's", lambda: world.audit.refused(world.name))
    return node, action


def finished_once(world: World, node: Node, action: Action) -> None:
    """The second process finishes what the first began, once the budget lets it, and nothing was done twice."""
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
def test_kill(world: World) -> None:
    # The evicted pods are still terminating when the second process meets them.
    node, action = half_drained(world, stops_after=VISIBILITY + 15)

    world.services[0].kill()
    world.service(*LEAVE)

    eventually("the second process has the message", lambda: world.deliveries() >= 2)
    finished_once(world, node, action)


def test_terminate(world: World) -> None:
    node, action = half_drained(world, stops_after=15)

    world.services[0].terminate()

    # Its own last poll may have brought the message once more.
    received = world.deliveries()
    assert world.recorder.released(), "it gives its message back, and nobody waits until it is visible by itself"
    eventually("the message is visible again", lambda: world.backlog().visible == 1)
    assert not world.completions(action), "a process that is told to go completes nothing"
    world.service(*LEAVE)
    eventually("the second process has the message", lambda: world.deliveries() > received)
    finished_once(world, node, action)
