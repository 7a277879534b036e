"""Every cluster's queue gets all events of the account: the service acts only on those of its own cluster."""

from __future__ import annotations

from harness import messages
from harness.hooks import Action
from harness.recorder import COMPLETE, HEARTBEAT
from harness.wait import eventually
from harness.world import World, drained


def left_alone(world: World, action: Action) -> bool:
    """Returns whether the service made no heartbeat and no completion for an action."""
    return not any(world.recorder.of_token(call, action.token) for call in (HEARTBEAT, COMPLETE))


def test_the_hook_of_another_cluster_is_left_alone(world: World) -> None:
    node = world.node()
    world.run("web", stops_after=7)
    service = world.service("--heartbeat", "5s")
    theirs = world.hold(world.aws.instance(managed=False), heartbeat_timeout=30)
    ours = world.hold(node.instance, heartbeat_timeout=30)

    world.send(messages.terminate_action(theirs), messages.terminate_action(ours))

    eventually("our hook is completed", lambda: world.completions(ours))
    eventually("both messages are deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    assert left_alone(world, theirs)


def test_of_two_clusters_in_an_account_each_completes_its_own_hooks(world: World) -> None:
    world.join(world.aws.instance(cluster="blue"))
    blue = world.service("--registration-grace", "5s")
    theirs = world.hold(world.aws.instance(cluster="green"), heartbeat_timeout=120)
    ours = world.hold(world.aws.instance(cluster="blue"), heartbeat_timeout=120)

    # Both carry the managed tag, which has no value, and have no Node here: every cluster gets both messages.
    world.send(messages.terminate_action(theirs), messages.terminate_action(ours))

    eventually("our hook is completed", lambda: world.completions(ours))
    eventually("both messages are deleted", world.acknowledged)
    eventually("the service is at rest", blue.at_rest)
    assert left_alone(world, theirs)
    blue.terminate()

    green = world.service("--registration-grace", "5s", "--cluster-name", "green")
    world.send(messages.terminate_action(theirs))

    eventually("their hook is completed", lambda: world.completions(theirs))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", green.at_rest)


def test_a_hook_that_eks_completes_is_left_alone(world: World) -> None:
    node = world.node()
    world.run("web", stops_after=7)
    service = world.service("--heartbeat", "5s")
    action = world.hold(node.instance, heartbeat_timeout=30, hook="Terminate-LC-Hook")

    world.send(messages.terminate_action(action))

    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    assert left_alone(world, action)


def test_the_hook_of_an_instance_without_a_node_is_completed(world: World) -> None:
    service = world.service("--registration-grace", "5s")
    action = world.hold(world.aws.instance(), heartbeat_timeout=120)

    world.send(messages.terminate_action(action))

    eventually("the hook is completed", lambda: world.completions(action))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    assert world.completions(action) == ["CONTINUE"]
    waited = world.recorder.of_token(COMPLETE, action.token)[0].at - action.began
    assert waited > 4, f"the service waited {waited:.1f} s for the Node, not 5 s"


def test_a_node_that_registers_late_is_drained(world: World) -> None:
    instance = world.aws.instance()
    service = world.service()
    action = world.hold(instance, heartbeat_timeout=120)
    world.send(messages.terminate_action(action))
    eventually("the message is held", lambda: world.deliveries() == 1)

    node = world.join(instance)

    eventually("the hook is completed", lambda: world.completions(action))
    assert drained(world, node), "the node was not drained"
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
