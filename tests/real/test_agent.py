"""Without a queue: what the nodes' metadata say, by AWS's own mock, ends as drains; an agent's token touches no other node."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from harness import manifests, roles
from harness.agent import Agents
from harness.audit import Request
from harness.kills import Replica
from harness.kube import NODES, Kube, Object
from harness.process import has_ipv6
from harness.recorder import COMPLETE, HEARTBEAT, HOOKS, MEMBERS
from harness.wait import always, eventually
from harness.world import Node, World, cordoned, drained

SAYS = "ebbtide/says."

SILENT = ("asglifecycle", "--asg-termination-delay-sec", "3600")
"""Metadata that announce nothing."""

AGENTS = 100

WEB = 3
"""Number of pods that may be evicted."""

TURN = "/apis/coordination.k8s.io/v1/namespaces/{}/leases/ebbtide-nodes"
"""Path of the Lease of the replica that acts on what Nodes say."""

TAKEOVER = 10
"""Seconds within which another replica goes on, as docs/agent.md says."""

SLACK = 10
"""Seconds more on a busy machine."""


@pytest.fixture
def agents(world: World) -> Iterator[Agents]:
    """The chart's agents, with their admission policy."""
    made = Agents(world)
    yield made
    made.close()


def says(world: World, node: Node) -> dict[str, str]:
    """Returns what a Node says now, by kind."""
    return said_by(world.see(node))


def said_by(node: Object) -> dict[str, str]:
    """Returns what a Node says, by kind."""
    annotations = node["metadata"].get("annotations", {})
    return {key.removeprefix(SAYS): value for key, value in annotations.items() if key.startswith(SAYS)}


def test_a_spot_warning_in_the_metadata_is_a_drain_without_a_queue(world: World, agents: Agents) -> None:
    nodes = world.several_nodes(2)
    for node in nodes:
        world.run(f"web-{node.name[-1]}", on=node)
    world.service_without_queue()
    agents.start(nodes[0], *SILENT)
    agents.start(nodes[1], "spot", "--action", "terminate")
    eventually("the node is drained", lambda: drained(world, nodes[1], ["agent"]), within=60)
    # The mock counts the times from each question; they stay the same notice.
    always("there is one mark of each kind", lambda: len(world.notices(nodes[1])) == 2, 10)
    assert set(says(world, nodes[1])) == {"rebalance", "spot"}
    assert not cordoned(world.see(nodes[0])) and says(world, nodes[0]) == {}
    assert world.recorder.calls() == [], "no call to AWS"


def test_a_hook_is_found_by_the_instance_kept_alive_and_completed_without_a_queue(world: World, agents: Agents) -> None:
    # The parameter with the right to ask in which groups instances are.
    world.parameters["Verify"] = "true"
    node = world.node()
    world.run("db", stops_after=40, grace=120)
    service = world.service_without_queue("--node-hook=drain", "--drain-timeout=asg-terminate=5m")
    action = world.hold(node.instance, 30)

    agents.start(node, "asglifecycle")

    # The instance names the action, and no token.
    eventually("the hook is completed", lambda: action.result)
    assert drained(world, node, ["agent"]), "the hook was completed before the pods were gone"
    eventually("the service is at rest", service.at_rest)
    assert action.result == "CONTINUE"
    assert len(world.recorder.calls(MEMBERS)) == 1
    assert {call.action for call in world.recorder.calls()} == {MEMBERS, HOOKS, HEARTBEAT, COMPLETE}
    assert not any("LifecycleActionToken" in call.asked for call in world.recorder.calls())


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
    world.service_without_queue()
    agents.start(node, *mock)
    eventually("the node is drained", lambda: drained(world, node, ["agent"]))
    assert set(says(world, node)) == {said}
    assert [notice["kind"] for notice in world.notices(node)] == [kind]


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_metadata_are_read_over_ipv6(world: World, agents: Agents) -> None:
    node = world.node()
    agents.start(node, "asglifecycle", host="[::1]")
    eventually("the Node says it", lambda: set(says(world, node)) == {"termination"})


def test_what_the_metadata_no_longer_say_is_undone(world: World, agents: Agents) -> None:
    node = world.node()
    world.service_without_queue()
    # What is older than the Node counts as said until its agent has had the time to say it again.
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 1))
    world.annotate(node, f"{SAYS}rebalance", f'{{"what":"rebalance","at":"{now}"}}')
    eventually("the node is cordoned", lambda: cordoned(world.see(node)))
    # The agent does not know what was said before, and the metadata say nothing of it.
    agents.start(node, *SILENT)
    eventually("taken back", lambda: says(world, node) == {})
    eventually("the node is uncordoned", lambda: not cordoned(world.see(node)))


@pytest.mark.parametrize(
    ("mock", "kinds"),
    [
        (["asglifecycle"], ["asg-terminate"]),
        (["spot", "--action", "terminate"], ["rebalance", "spot"]),
    ],
    ids=["termination", "spot"],
)
def test_another_replica_goes_on_after_a_kill(world: World, agents: Agents, mock: list[str], kinds: list[str]) -> None:
    node = world.node()
    # The evicted pods are still terminating when the second replica meets them.
    world.run("web", WEB, stops_after=20)
    world.run("db")
    world.close_budget("db")
    replicas = {}
    for name in ("a", "b"):
        pod = ("--pod-namespace", world.name, "--pod-name", name)
        replicas[name] = replica = Replica(world, name, ("--source=nodes", *pod))
        roles.grant_nodes(world.kube, replica.user, world.name)
        replica.start()
        replica.service.wait_ready()
    agents.start(node, *mock)
    eventually("the web's pods are evicted", lambda: len(world.audit.evicted(world.name)) == WEB)
    eventually("the budget holds the database's pod", lambda: world.audit.refused(world.name))

    first = replicas.pop(world.kube.get(TURN.format(world.name))["spec"]["holderIdentity"])
    (second,) = replicas.values()
    first.service.kill()
    killed_at = time.time()

    def of_second() -> list[Request]:
        return [each for each in world.audit.evictions(world.name) if each.user == second.user]

    went_on = eventually("the other replica goes on", of_second)[0]
    assert went_on.came_at - killed_at < TAKEOVER + SLACK
    world.open_budget("db")
    eventually("the node is drained", lambda: drained(world, node, ["agent"]))
    eventually("that is noted", lambda: world.handled(node))
    eventually("the replica is at rest", second.service.at_rest)
    assert sorted(notice["kind"] for notice in world.notices(node)) == kinds, "one mark of each kind"
    evicted = world.audit.evicted(world.name)
    assert len(evicted) == WEB + 1
    assert set(evicted.values()) == {1}, f"evicted twice: {evicted}"


def patches(world: World, agents: Agents) -> Counter[str]:
    """Returns the number of patches of each Node by the agents, which ask for nothing else."""
    user = f"system:serviceaccount:{world.name}:{agents.account}"
    asked = [each for each in world.audit.requests() if each.user == user]
    assert {(each.verb, each.resource, each.status) for each in asked} <= {("patch", "nodes", 200)}, asked
    return Counter(each.name for each in asked)


@pytest.mark.slow
def test_a_hundred_agents_say_what_their_own_metadata_say(
    world: World, agents: Agents, capsys: pytest.CaptureFixture[str]
) -> None:
    announcing = {
        "spot": ["spot", "--rebalance-delay-sec", "3600"],
        "rebalance": ["spot", "--mock-delay-sec", "3600"],
        "maintenance": ["events"],
        "termination": ["asglifecycle"],
    }
    *nodes, _ = world.several_nodes(AGENTS + 1)
    # Each service is that of every fourth node.
    services = [agents.metadata(*SILENT) for _ in announcing]
    own = dict(zip(nodes, cycle(zip(announcing, services, strict=True)), strict=False))
    running = [agents.run(node, service) for node, (_, service) in own.items()]

    def all_say(what: dict[str, list[str]], writes: int) -> bool:
        seen = world.kube.items(NODES, labels=f"{manifests.WORLD}={world.name}")
        assert {each["metadata"]["name"]: sorted(said_by(each)) for each in seen if said_by(each)} == what
        return patches(world, agents) == {node.name: writes for node in nodes}

    eventually("each has said that nothing is announced", lambda: all_say({}, 1), pause=1)
    for service, mock in zip(services, announcing.values(), strict=True):
        service.tell(*mock)
    what = {node.name: [kind] for node, (kind, _) in own.items()}
    eventually("each says what its own metadata say", lambda: all_say(what, 2), pause=1)
    always("nothing follows", lambda: all_say(what, 2), 6)
    for service in services:
        service.tell(*SILENT)
    eventually("each has taken it back", lambda: all_say({}, 3), pause=1)
    memory = sorted(agent.private_memory() for agent in running)
    with capsys.disabled():
        # The pages of the program's file are shared by a hundred here, and private where one agent runs alone.
        print(f"\nprivate memory of an agent: {memory[0]} to {memory[-1]} KiB, median {memory[len(memory) // 2]} KiB")


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


def test_the_api_server_takes_the_policy_that_keeps_metadata_from_other_pods(world: World) -> None:
    example = Path(__file__).parents[2] / "examples" / "metadata-networkpolicy.yaml"
    kubectl = world.control_plane.kubectl
    taken = kubectl.output("apply", "--dry-run=server", "--namespace", world.name, "--filename", str(example))
    assert "no-instance-metadata created" in taken
