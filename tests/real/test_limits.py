"""The limits for who may write to the queue: what AWS confirms is drained, the rest waits untouched."""

from __future__ import annotations

from datetime import timedelta

from harness import messages
from harness.kube import NODES
from harness.recorder import COMPLETE
from harness.service import Service
from harness.wait import eventually
from harness.world import Node, World, cordoned, drained


def unusual(service: Service, reason: str) -> float:
    """Returns the number of notices that were told to be unusual."""
    samples = service.samples("ebbtide_unusual_notices_total")
    return sum(value for labels, value in samples if labels["reason"] == reason)


def untouched(world: World, node: Node) -> bool:
    """Returns whether nothing was written to a Node, and its pods are there."""
    return not cordoned(world.see(node)) and not world.notices(node) and len(world.apps(node)) == 1


def test_beyond_the_limit_only_what_aws_confirms_is_drained(world: World) -> None:
    world.recorder.interrupted = list
    first, forged, confirmed, hinted = nodes = world.several_nodes(4)
    for node in nodes:
        world.run_pod(f"web-{node.name}", node)
    service = world.service("--max-draining=1", "--on=rebalance=drain")
    one = world.hold(first.instance, heartbeat_timeout=300)
    world.send(messages.terminate_action(one))
    eventually("the first node's hook is completed", lambda: world.completions(one) == ["CONTINUE"])

    world.send(messages.spot_warning(forged.instance, ago=timedelta(seconds=100)), messages.rebalance(hinted.instance))
    eventually("both are too many", lambda: unusual(service, "too-many-drains") == 2)
    two = world.hold(confirmed.instance, heartbeat_timeout=300)
    world.send(messages.terminate_action(two))
    eventually("the hook that AWS shows is completed", lambda: world.completions(two) == ["CONTINUE"])
    assert drained(world, confirmed)
    eventually("the warning that EC2 does not show has ended", lambda: service.ended("spot") == {"not-admitted": 1})
    assert all(untouched(world, node) for node in (forged, hinted))

    for node in (first, confirmed):
        world.kube.delete(f"{NODES}/{node.name}")
    eventually("there is room for a hint, which AWS never confirms", lambda: drained(world, hinted))
    assert untouched(world, forged)
    eventually("the messages are deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)


def test_late_warnings_that_aws_denies_touch_nothing(world: World) -> None:
    """Of these the drains would delete pods at once that a budget protects."""
    world.recorder.interrupted = list
    nodes = world.several_nodes(8)
    for node in nodes:
        world.run_pod(f"web-{node.name}", node)
    service = world.service("--max-draining=")
    world.send(*(messages.spot_warning(node.instance, ago=timedelta(seconds=119)) for node in nodes))
    eventually("all are late", lambda: unusual(service, "late") == 8)
    eventually("AWS denies them", lambda: service.ended("spot") == {"not-admitted": 8}, within=180)
    assert all(untouched(world, node) for node in nodes)


def test_a_forged_storm_is_held_by_the_default_limit(world: World) -> None:
    world.recorder.interrupted = list
    nodes = world.several_nodes(8)
    for node in nodes:
        world.run_pod(f"web-{node.name}", node)
    # A drain that ended would make room for another while AWS is asked for the first time.
    service = world.service("--max-draining=", "--hold=spot=before-drain")

    def release(*held: Node) -> None:
        names = [node.name for node in held]
        world.control_plane.kubectl.output("annotate", "node", *names, "--overwrite", "ebbtide/release=before-drain")

    world.send(*(messages.spot_warning(node.instance) for node in nodes))
    eventually("AWS denies what is beyond a quarter", lambda: unusual(service, "not-confirmed") == 6)
    within = [node for node in nodes if not untouched(world, node)]
    assert len(within) == 2

    # The two make room, and the attacker sends again.
    release(*within)
    eventually("they are drained", lambda: service.ended("spot") == {"drained": 2})
    others = [node for node in nodes if node not in within]
    world.send(*(messages.spot_warning(node.instance) for node in others))
    eventually("AWS denies them again", lambda: unusual(service, "not-confirmed") == 12)
    assert all(untouched(world, node) for node in others)

    world.recorder.interrupted = lambda: [node.instance for node in world.nodes]
    eventually("a real storm is cordoned", lambda: all(cordoned(world.see(node)) for node in nodes))
    release(*others)
    eventually("a real storm is drained", lambda: service.ended("spot") == {"drained": 14})
    eventually("the service is at rest", service.at_rest)


def test_with_verify_always_nothing_is_done_before_aws_shows_it(world: World) -> None:
    made_up, stopping = nodes = world.several_nodes(2)
    for node in nodes:
        world.run_pod(f"web-{node.name}", node)
    service = world.service("--verify=always")
    for node in nodes:
        world.send(messages.state_change(node.instance, "stopping"))
    eventually("AWS confirms neither", lambda: unusual(service, "not-confirmed") == 2)
    assert all(untouched(world, node) for node in nodes)

    world.aws.stop_instance(stopping.instance)
    eventually("the one that stops is drained", lambda: drained(world, stopping))
    assert untouched(world, made_up)
    hook = world.hold(made_up.instance, heartbeat_timeout=300)
    hook.result = "CONTINUE"  # another one's: the group no longer waits
    world.send(messages.terminate_action(hook))
    eventually("nor does AWS confirm its hook", lambda: unusual(service, "not-confirmed") == 3)
    assert not world.recorder.calls(COMPLETE)
    assert untouched(world, made_up)
