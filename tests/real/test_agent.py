"""Without a queue: what the nodes' metadata say, by AWS's own mock, ends as drains; an agent's token touches no other node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import roles
from harness.agent import Agents
from harness.control_plane import SERVICE
from harness.kube import NODES, Kube, Object
from harness.service import Service
from harness.wait import always, eventually
from harness.world import Node, World, cordoned, drained

SAYS = "ebbtide/says."


@pytest.fixture
def agents(world: World) -> Iterator[Agents]:
    """The chart's agents, with their admission policy."""
    made = Agents(world)
    yield made
    made.close()


def service(world: World, name: str = "a", *flags: str) -> Service:
    """Starts a service without a queue, as a pod of this name."""
    if name == "a":
        roles.grant_nodes(world.kube, SERVICE, world.name)
    return world.service("--source=nodes", "--pod-namespace", world.name, "--pod-name", name, *flags)


def says(world: World, node: Node) -> dict[str, str]:
    """Returns what a Node says, by kind."""
    annotations = world.see(node)["metadata"].get("annotations", {})
    return {key.removeprefix(SAYS): value for key, value in annotations.items() if key.startswith(SAYS)}




def test_a_spot_warning_in_the_metadata_is_a_drain_without_a_queue(world: World, agents: Agents) -> None:
    nodes = world.several_nodes(2)
    for node in nodes:
        world.run(f"web-{node.name[-1]}", on=node)
    service(world)
    agents.start(nodes[0], "asglifecycle", "--asg-termination-delay-sec", "3600")
    agents.start(nodes[1], "spot", "--action", "terminate")
    eventually("the node is drained", lambda: drained(world, nodes[1], ["agent"]), within=60)
    # The mock counts the times from each question; they stay the same notice.
    always("there is one mark of each kind", lambda: len(world.notices(nodes[1])) == 2, 10)
    assert set(says(world, nodes[1])) == {"rebalance", "spot"}
    assert not cordoned(world.see(nodes[0])) and says(world, nodes[0]) == {}
    assert world.recorder.calls() == [], "no call to AWS"


@pytest.mark.parametrize(
    ("mock", "said", "kind"),
    [
        (["events", "--code", "instance-stop"], "maintenance", "scheduled-change"),
        (["asglifecycle"], "termination", "asg-terminate"),
    ],
)
def test_other_metadata_are_drains_too(world: World, agents: Agents, mock: list[str], said: str, kind: str) -> None:
    node = world.node()
    world.run("web", on=node)
    service(world)
    agents.start(node, *mock)
    eventually("the node is drained", lambda: drained(world, node, ["agent"]))
    assert set(says(world, node)) == {said}
    assert [notice["kind"] for notice in world.notices(node)] == [kind]


def test_what_the_metadata_no_longer_say_is_undone(world: World, agents: Agents) -> None:
    node = world.node()
    service(world)
    world.annotate(node, f"{SAYS}rebalance", '{"what":"rebalance","at":"2026-11-24T22:00:00Z"}')
    eventually("the node is cordoned", lambda: cordoned(world.see(node)))
    # The agent does not know what was said before, and the metadata say nothing of it.
    agents.start(node, "asglifecycle", "--asg-termination-delay-sec", "3600")
    eventually("taken back", lambda: says(world, node) == {})
    eventually("the node is uncordoned", lambda: not cordoned(world.see(node)))


def test_another_replica_goes_on_after_a_kill(world: World, agents: Agents) -> None:
    node = world.node()
    world.run("web", on=node)
    world.close_budget("web")
    first = service(world)
    service(world, "b")
    agents.start(node, "spot", "--action", "terminate")
    eventually("the drain has begun", lambda: world.cordoned_with_notice(node))
    first.kill()
    world.open_budget("web")
    eventually("the node is drained", lambda: drained(world, node, ["agent"]), within=60)
    assert len([notice for notice in world.notices(node) if notice["kind"] == "spot"]) == 1


def refused(kube: Kube, path: str, body: Object) -> str:
    """Returns the API server's reason for refusing a patch; empty if it is accepted."""
    try:
        kube.patch(path, body)
    except AssertionError as error:
        assert ": 422 " in str(error) or ": 403 " in str(error), error
        return str(error)
    return ""


def test_the_token_of_one_node_touches_no_other(world: World, agents: Agents) -> None:
    own, other = world.several_nodes(2)
    kube = agents.client(own)
    own_path, other_path = f"{NODES}/{own.name}", f"{NODES}/{other.name}"
    says_so = {"metadata": {"annotations": {f"{SAYS}spot": '{"what":"terminate","at":"2026-11-24T22:00:00Z"}'}}}
    # The API server takes up a new policy after a while.
    eventually("the policy holds", lambda: "may change its own Node only" in refused(kube, other_path, says_so))
    assert refused(kube, own_path, says_so) == ""
    assert refused(kube, own_path, {"metadata": {"annotations": {f"{SAYS}spot": None}}}) == ""
    for body in [
        {"metadata": {"annotations": {"ebbtide/ignore": "true"}}},
        {"metadata": {"annotations": {"other": "x", f"{SAYS}spot": "{}"}}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
        {"metadata": {"finalizers": ["a/b"]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
    ]:
        assert "an agent of Ebbtide may change" in refused(kube, own_path, body), body
    # Others are not touched by the policy.
    world.annotate(other, "other", "x")
