"""A cordon for a rebalance recommendation is taken back in time; whoever else wants the node cordoned keeps it so."""

from __future__ import annotations

import pytest

from harness import messages
from harness.kube import NODES
from harness.wait import always, eventually
from harness.world import Node, World, cordoned, marks

SOON = 5
"""Seconds after which a cordon is taken back."""

FLAGS = ("--uncordon-after", f"{SOON}s")


def cordon_by_hand(world: World, node: Node) -> None:
    """A human cordons a node."""
    world.kube.patch(f"{NODES}/{node.name}", {"spec": {"unschedulable": True}})


def free(world: World, node: Node) -> bool:
    """Whether a node takes pods and carries nothing of the service's."""
    seen = world.see(node)
    assert not cordoned(seen), f"{node.name} is cordoned"
    return unmarked(world, node)


def unmarked(world: World, node: Node) -> bool:
    """Whether a node carries nothing of the service's."""
    left = marks(world.see(node))
    assert not left, f"{node.name} carries {left}"
    return True


def kinds(world: World, node: Node) -> list[str]:
    """The kinds of the notices that a node carries."""
    return sorted(notice["kind"] for notice in world.notices(node))


def test_cordon_is_taken_back(world: World) -> None:
    spare, kept_by_hand, leaving = nodes = world.several_nodes(3)
    world.run("web", on=spare)
    cordon_by_hand(world, kept_by_hand)
    service = world.service(*FLAGS)

    world.send(*[messages.rebalance(node.instance) for node in nodes], messages.spot_warning(leaving.instance))

    eventually("all are cordoned with a notice", lambda: all(map(world.cordoned_with_notice, nodes)))
    eventually("one carries both notices", lambda: kinds(world, leaving) == ["rebalance", "spot"], within=SOON - 1)
    always("the cordons stay for a while", lambda: all(map(world.cordoned_with_notice, nodes)), during=SOON / 3)
    eventually("the spare node takes pods again", lambda: free(world, spare), within=2 * SOON)
    eventually("the service left the human's node", lambda: unmarked(world, kept_by_hand), within=2)
    eventually("the recommendation is over", lambda: kinds(world, leaving) == ["spot"], within=2)
    always(
        "the human and the warning keep their nodes cordoned",
        lambda: cordoned(world.see(kept_by_hand)) and world.cordoned_with_notice(leaving),
        during=2,
    )
    eventually("every message is deleted", world.acknowledged)
    eventually("nothing is left going on", service.at_rest)
    assert world.apps(spare) == ["web"], "a cordon leaves the pods where they are"
    assert not world.audit.evictions(world.name)


@pytest.mark.slow
def test_cordon_is_taken_back_by_another_process(world: World) -> None:
    spare, kept_by_hand = nodes = world.several_nodes(2)
    cordon_by_hand(world, kept_by_hand)
    first = world.service(*FLAGS)
    world.send(*[messages.rebalance(node.instance) for node in nodes])
    eventually("both are cordoned with a notice", lambda: all(map(world.cordoned_with_notice, nodes)))
    eventually("every message is deleted", world.acknowledged, within=SOON - 1)

    first.kill()

    always("nobody takes the cordons back", lambda: all(map(world.cordoned_with_notice, nodes)), during=SOON + 1)
    second = world.service(*FLAGS)
    eventually("the spare node takes pods again", lambda: free(world, spare), within=5)
    eventually("the service left the human's node", lambda: unmarked(world, kept_by_hand), within=5)
    always("the human's cordon stays", lambda: cordoned(world.see(kept_by_hand)), during=2)
    eventually("nothing is left going on", second.at_rest)
