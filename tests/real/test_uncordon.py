"""A cordon for a rebalance recommendation is taken back in time; whoever else wants the node cordoned keeps it so."""

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
"""Seconds after which a cordon is taken back."""

LATER = 20
"""The same, where something must be done before."""


def after(seconds: int) -> tuple[str, str]:
    """The flag that says it."""
    return "--uncordon-after", f"{seconds}s"


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


def kinds(node: Object) -> list[str]:
    """The kinds of the notices that a Node carries."""
    return sorted(notice["kind"] for notice in notices(node))


def passed(states: list[Object], taken: bool) -> list[tuple[bool, list[str]]]:
    """Whether a Node was cordoned, and what its notices were: at first, when it carried none, and after each change."""
    return [each for each, _ in groupby([(taken, []), *((cordoned(each), kinds(each)) for each in states)])]


def over_at(states: list[Object]) -> float:
    """When the recommendation that a Node carried said that it is over, in seconds of the clock."""
    (until,) = {notice["until"] for each in states for notice in notices(each) if notice["kind"] == "rebalance"}
    return datetime.fromisoformat(until).timestamp()


def last_write(world: World, node: Node) -> float:
    """When the service's last write to a Node came, in seconds of the clock."""
    writes = [each for each in world.audit.requests() if (each.verb, each.resource) == ("patch", "nodes")]
    return max(each.came_at for each in writes if each.name == node.name)


def test_cordon_is_taken_back(world: World) -> None:
    spare, kept_by_hand, leaving = nodes = world.several_nodes(3)
    world.run("web", on=spare)
    cordon_by_hand(world, kept_by_hand)
    service = world.service(*after(SOON))
    begin, sent = world.kube.version(NODES), time.time()

    world.send(*[messages.rebalance(node.instance) for node in nodes], messages.spot_warning(leaving.instance))

    eventually("every message is deleted", world.acknowledged)
    eventually("the spare node takes pods again", lambda: free(world, spare))
    eventually("the service left the human's node", lambda: unmarked(world, kept_by_hand))
    eventually("the recommendation is over", lambda: kinds(world.see(leaving)) == ["spot"])
    always(
        "the human and the warning keep their nodes cordoned",
        lambda: cordoned(world.see(kept_by_hand)) and world.cordoned_with_notice(leaving),
        during=2,
    )
    # What the nodes were meanwhile is read afterwards: five seconds may be over before anybody looks.
    states = {node: world.kube.history(NODES, node.name, begin) for node in nodes}
    assert passed(states[spare], False) == [(False, []), (True, ["rebalance"]), (False, [])]
    assert passed(states[kept_by_hand], True) == [(True, []), (True, ["rebalance"]), (True, [])]
    _, *later = passed(states[leaving], False)
    assert all(taken for taken, _ in later), later
    assert [each for _, each in later[1:]] == [["rebalance", "spot"], ["spot"]], later
    for node in nodes:
        over = over_at(states[node])
        assert over > sent + SOON - 1, f"{node.name} was to be left {over - sent:.1f} s after the message"
        early = over - last_write(world, node)
        assert early < 0.5, f"{node.name} was left {early:.1f} s early"
    eventually("the service is at rest", service.at_rest)
    assert world.apps(spare) == ["web"], "a cordon leaves the pods where they are"
    assert not world.audit.evictions(world.name)


@pytest.mark.slow
def test_cordon_is_taken_back_by_another_process(world: World) -> None:
    spare, kept_by_hand = nodes = world.several_nodes(2)
    cordon_by_hand(world, kept_by_hand)
    first = world.service(*after(LATER))
    world.send(*[messages.rebalance(node.instance) for node in nodes])
    eventually("both are cordoned with a notice", lambda: all(map(world.cordoned_with_notice, nodes)))
    eventually("every message is deleted", world.acknowledged, within=LATER - 1)

    first.kill()

    always("nobody takes the cordons back", lambda: all(map(world.cordoned_with_notice, nodes)), during=LATER + 1)
    second = world.service(*after(LATER))
    eventually("the spare node takes pods again", lambda: free(world, spare))
    eventually("the service left the human's node", lambda: unmarked(world, kept_by_hand))
    always("the human's cordon stays", lambda: cordoned(world.see(kept_by_hand)), during=2)
    eventually("the service is at rest", second.at_rest)
