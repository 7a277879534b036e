"""The service undoes a rebalance recommendation's cordon in time, but not a cordon that others need, too."""

from __future__ import annotations

import time
from datetime import datetime
from itertools import groupby

import pytest

from harness import messages
from harness.kube import NODES, Object
from harness.wait import always, eventually
from harness.world import Node, World, cordoned, marks, notices

SOON = 5
"""Seconds until a cordon is undone."""

LATER = 20
"""Seconds until a cordon is undone, in a test that needs time before."""


def after(seconds: int) -> tuple[str, str]:
    """Returns the flag --uncordon-after with its value."""
    return "--uncordon-after", f"{seconds}s"


def cordon_by_hand(world: World, node: Node) -> None:
    """Cordons a node as a user does."""
    world.kube.patch(f"{NODES}/{node.name}", {"spec": {"unschedulable": True}})


def free(world: World, node: Node) -> bool:
    """Returns whether a node accepts pods and has no marks of the service."""
    seen = world.see(node)
    assert not cordoned(seen), f"{node.name} is cordoned"
    return unmarked(world, node)


def unmarked(world: World, node: Node) -> bool:
    """Returns whether a node has no marks of the service."""
    left = marks(world.see(node))
    assert not left, f"{node.name} has marks: {left}"
    return True


def kinds(node: Object) -> list[str]:
    """Returns the kinds of the notices in a Node's annotations."""
    return sorted(notice["kind"] for notice in notices(node))


def passed(states: list[Object], taken: bool) -> list[tuple[bool, list[str]]]:
    """Returns the sequence of a Node's cordon and notices: the initial state, and the state after each change."""
    return [each for each, _ in groupby([(taken, []), *((cordoned(each), kinds(each)) for each in states)])]


def over_at(states: list[Object]) -> float:
    """Returns the end time in the annotation of the recommendation, in seconds since the epoch."""
    (until,) = {notice["until"] for each in states for notice in notices(each) if notice["kind"] == "rebalance"}
    return datetime.fromisoformat(until).timestamp()


def last_write(world: World, node: Node) -> float:
    """Returns the time of the service's last write to a Node, in seconds since the epoch."""
    writes = [each for each in world.audit.requests() if (each.verb, each.resource) == ("patch", "nodes")]
    return max(each.came_at for each in writes if each.name == node.name)


@pytest.mark.versions
def test_a_cordon_is_undone(world: World) -> None:
    # Hints take a fifth of the nodes at most.
    spare, kept_by_hand, leaving = nodes = world.several_nodes(12)[:3]
    world.run("web", on=spare)
    cordon_by_hand(world, kept_by_hand)
    service = world.service(*after(SOON))
    begin, sent = world.kube.version(NODES), time.time()

    world.send(*[messages.rebalance(node.instance) for node in nodes], messages.spot_warning(leaving.instance))

    eventually("every message is deleted", world.acknowledged)
    eventually("the spare node accepts pods again", lambda: free(world, spare))
    eventually("the user's node has no marks", lambda: unmarked(world, kept_by_hand))
    eventually("the recommendation is over", lambda: kinds(world.see(leaving)) == ["spot"])
    always(
        "the user's node and the node with the warning stay cordoned",
        lambda: cordoned(world.see(kept_by_hand)) and world.cordoned_with_notice(leaving),
        during=2,
    )
    # Reads the nodes' history: a check may come after the five seconds.
    states = {node: world.kube.history(NODES, node.name, begin) for node in nodes}
    assert passed(states[spare], False) == [(False, []), (True, ["rebalance"]), (False, [])]
    assert passed(states[kept_by_hand], True) == [(True, []), (True, ["rebalance"]), (True, [])]
    _, *later = passed(states[leaving], False)
    assert all(taken for taken, _ in later), later
    assert [each for _, each in later[1:]] == [["rebalance", "spot"], ["spot"]], later
    for node in nodes:
        over = over_at(states[node])
        assert over > sent + SOON - 1, f"the annotation of {node.name} ends only {over - sent:.1f} s after the message"
        early = over - last_write(world, node)
        assert early < 0.5, f"the cordon of {node.name} was undone {early:.1f} s early"
    eventually("the service is at rest", service.at_rest)
    assert world.apps(spare) == ["web"], "a cordon moved pods"
    assert not world.audit.evictions(world.name)


@pytest.mark.slow
def test_another_process_undoes_a_cordon(world: World) -> None:
    spare, kept_by_hand = nodes = world.several_nodes(2)
    cordon_by_hand(world, kept_by_hand)
    first = world.service(*after(LATER))
    world.send(*[messages.rebalance(node.instance) for node in nodes])
    eventually("both nodes are cordoned with a notice", lambda: all(map(world.cordoned_with_notice, nodes)))
    eventually("every message is deleted", world.acknowledged, within=LATER - 1)

    first.kill()

    always("the cordons stay without a service", lambda: all(map(world.cordoned_with_notice, nodes)), during=LATER + 1)
    second = world.service(*after(LATER))
    eventually("the spare node accepts pods again", lambda: free(world, spare))
    eventually("the user's node has no marks", lambda: unmarked(world, kept_by_hand))
    always("the user's cordon stays", lambda: cordoned(world.see(kept_by_hand)), during=2)
    eventually("the service is at rest", second.at_rest)
