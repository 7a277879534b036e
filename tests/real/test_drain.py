"""The main job: a message on the queue becomes a drained node, a completed hook and a deleted message."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from harness import messages
from harness.messages import Event
from harness.recorder import COMPLETE
from harness.wait import always, eventually
from harness.world import Node, World, drained

pytestmark = pytest.mark.both_queues

PODS = 3


def busy_node(world: World, stops_after: float = 0.2) -> Node:
    """Adds a node with pods to evict and a DaemonSet's pod, and another node for the evicted pods."""
    node = world.node()
    world.run("web", PODS, stops_after)
    world.run_daemons("agent", 1)
    world.node()
    world.wait_running("agent", 2)
    return node


def evicted_once(world: World) -> bool:
    """Returns whether each pod's eviction was accepted exactly once."""
    evicted = world.audit.evicted(world.name)
    return len(evicted) == PODS and set(evicted.values()) == {1}


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda event: event, id="eventbridge"),
        pytest.param(messages.sns, id="sns"),
    ],
)
def test_a_spot_warning_drains_the_node(world: World, wrap: Callable[[Event], Event]) -> None:
    node = busy_node(world)
    service = world.service()

    world.send(wrap(messages.spot_warning(node.instance)))

    eventually("the node is drained", lambda: drained(world, node, stay=["agent"]))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    assert evicted_once(world), world.audit.evicted(world.name)
    world.wait_running("web", PODS)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(messages.terminate_action, id="eventbridge"),
        pytest.param(lambda action: messages.sns(messages.terminate_action(action)), id="sns"),
        pytest.param(messages.bare, id="bare"),
    ],
)
def test_a_drain_completes_the_hook(world: World, message: Callable[..., Event]) -> None:
    node = busy_node(world, stops_after=3)
    service = world.service()
    action = world.hold(node.instance, heartbeat_timeout=120)

    world.send(message(action))

    eventually("the hook is completed", lambda: world.completions(action))
    assert drained(world, node, stay=["agent"]), "the hook was completed before the pods were gone"
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    assert world.completions(action) == ["CONTINUE"]
    assert len(world.recorder.calls(COMPLETE)) == 1
    assert evicted_once(world), world.audit.evicted(world.name)


def test_tiers_of_pods_leave_by_their_priorities(world: World) -> None:
    node = world.node()
    world.run("web", on=node, stops_after=3)
    world.run("queue", on=node, stops_after=1, grace=4, priority_class=world.priority_class(10_000))
    world.run("db", on=node, stops_after=1, priority_class=world.priority_class(1_000_000))
    world.run("dns", on=node, stops_after=1, priority_class="system-cluster-critical")
    world.close_budget("queue")
    left = 30
    service = world.service("--priority-tier", "0,10000,1000000,2000000000")
    warning = messages.spot_warning(node.instance, ago=timedelta(seconds=120 - left))

    world.send(warning)

    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    tried = {each.name.split("-")[0]: each.came_at for each in reversed(world.audit.evictions(world.name))}
    assert sorted(tried, key=lambda app: tried[app]) == ["web", "queue", "db", "dns"], tried
    assert tried["queue"] - tried["web"] > 2.5, "the second tier did not wait for the first"
    share = (messages.spot_deadline(warning) - tried["queue"]) / 3
    assert tried["db"] - tried["queue"] > share - 1.5, f"the third tier did not leave the blocked one its share: {tried}"
    assert tried["dns"] - tried["db"] > share - 1.5, f"the critical pod did not wait for its share: {tried}"
    assert [each.name.split("-")[0] for each in world.audit.deletions(world.name)] == ["queue"]


def test_four_notices_make_one_drain(world: World) -> None:
    node = busy_node(world, stops_after=3)
    service = world.service()
    action = world.hold(node.instance, heartbeat_timeout=120)

    world.send(
        messages.rebalance(node.instance),
        messages.spot_warning(node.instance),
        messages.bare(action),
        messages.state_change(node.instance, "shutting-down"),
    )

    eventually("the node is drained", lambda: drained(world, node, stay=["agent"]))
    eventually("the four messages are deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    assert world.completions(action) == ["CONTINUE"]
    assert evicted_once(world), world.audit.evicted(world.name)


def test_a_health_event_waits_for_its_last_drain(world: World) -> None:
    nodes = [world.node() for _ in range(3)]
    for number, node in enumerate(nodes):
        world.run(f"web-{number}", on=node)
    *quick, slow = nodes
    world.close_budget("web-2")
    service = world.service()

    world.send(messages.scheduled_change([node.instance for node in nodes], begins_in=timedelta(hours=2)))

    eventually("the quick nodes are drained", lambda: all(drained(world, node) for node in quick))
    eventually("the budget holds the slow node's pod", lambda: world.audit.refused(world.name))
    assert world.backlog().in_flight == 1, "the message was not kept while one of its nodes drains"
    assert world.apps(slow) == ["web-2"]
    world.open_budget("web-2")
    eventually("the slow node is drained", lambda: drained(world, slow))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)


@pytest.mark.slow
def test_throttled_completions_are_repeated_until_one_succeeds(world: World) -> None:
    throttled = 10
    node = busy_node(world)
    world.recorder.refuse(COMPLETE, throttled, "Throttling", "Rate exceeded")
    service = world.service()
    action = world.hold(node.instance, heartbeat_timeout=120)

    world.send(messages.terminate_action(action))

    eventually("the hook is completed", lambda: world.completions(action))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    always("no completion follows", lambda: len(world.recorder.calls(COMPLETE)) == throttled + 1, during=3)
    assert world.completions(action) == ["CONTINUE"]
