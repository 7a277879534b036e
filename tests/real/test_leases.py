"""Leaked Leases are collected: those that a kubelet made again when its Node was gone, and no others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from harness import manifests, messages, roles
from harness.admission import before_deletion
from harness.audit import Request
from harness.control_plane import SERVICE
from harness.kube import NODES, Object
from harness.service import Service
from harness.wait import always, eventually
from harness.world import World, drained

TURN = "ebbtide-lease-collector"

HOURS = 2 * 3600
"""Seconds since a Lease was renewed that nobody renews any more."""

MINUTES = 55 * 60
"""Not long enough."""


def path(namespace: str = roles.NODE_LEASES, name: str = "") -> str:
    """Where Leases are."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}".rstrip("/")


def ago(seconds: float) -> str:
    """A time, as a Lease has it."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def leave(
    world: World,
    name: str,
    renewed: float | None = HOURS,
    namespace: str = roles.NODE_LEASES,
    holder: str = "",
    owner: Object | None = None,
) -> str:
    """A Lease as a kubelet leaves it, renewed this number of seconds ago; returns its name."""
    full = f"{world.name}-{name}"
    spec = {"holderIdentity": holder or full, "leaseDurationSeconds": 40}
    if renewed is not None:
        spec |= {"renewTime": ago(renewed)}
    owners = []
    if owner:
        meta = owner["metadata"]
        owners = [{"apiVersion": "v1", "kind": "Node", "name": meta["name"], "uid": meta["uid"]}]
    world.lease(path(namespace), full, spec, owners)
    return full


def collector(world: World, name: str, *flags: str) -> Service:
    """Starts a service that collects, as a pod of this name."""
    return world.service("--collect-leases", "--pod-namespace", world.name, "--pod-name", name, *flags)


def collected(service: Service) -> float:
    """How many Leases it says that it deleted."""
    return sum(value for name, _, value in service.metrics() if name == "ebbtide_leases_collected_total")


def holder(world: World) -> str | None:
    """Whose turn it is."""
    turn = world.kube.find(path(world.name, TURN))
    return turn["spec"].get("holderIdentity") if turn else None


def deletions(world: World) -> list[Request]:
    """The Leases that the service deleted, or wanted to."""
    return [call for call in world.audit.requests() if (call.verb, call.resource) == ("delete", "leases")]


def is_there(world: World, name: str, namespace: str = roles.NODE_LEASES) -> bool:
    """Whether there is such a Lease."""
    return world.kube.find(path(namespace, name)) is not None


def test_leaked_leases_go_and_no_others(world: World) -> None:
    roles.grant_collector(world.kube, SERVICE, world.name)
    node = world.node()
    bare = world.register(world.aws.instance(), kubelet=False)
    owner = world.see(node)
    leaked = [leave(world, "leaked"), leave(world, "leaked-long-ago", 30 * 86_400)]
    # Its Node is there, though its kubelet has been silent for long.
    world.lease(path(), bare.name, {"holderIdentity": bare.name, "renewTime": ago(HOURS)})
    stay = [
        bare.name,
        leave(world, "young", MINUTES),
        leave(world, "never-renewed", None),
        leave(world, "foreign", holder="somebody-else"),
        leave(world, "owned", owner=owner),
    ]
    elsewhere = leave(world, "elsewhere", namespace=world.name)
    eventually("the healthy node's kubelet has its Lease", lambda: is_there(world, node.name))
    stay.append(node.name)

    first = collector(world, "ebbtide-0")

    eventually("the leaked are gone", lambda: not any(is_there(world, name) for name in leaked))
    second = collector(world, "ebbtide-1")
    always(
        "nothing else goes",
        lambda: all(is_there(world, name) for name in stay) and is_there(world, elsewhere, world.name),
        during=8,
    )
    assert collected(first) == len(leaked)
    assert collected(second) == 0
    assert holder(world) == "ebbtide-0"
    deleted = deletions(world)
    assert sorted(call.name for call in deleted) == sorted(leaked)
    assert all(call.uid for call in deleted), "only the very Lease that was seen is deleted"

    # It goes in order: the next one need not wait.
    world.kube.delete(path(name=stay[1]))
    late = leave(world, "leaked-late")
    first.terminate()
    assert holder(world) is None
    third = collector(world, "ebbtide-2")
    eventually("the next one collects at once", lambda: not is_there(world, late))
    assert holder(world) == "ebbtide-2"
    assert world.kube.get(path(world.name, TURN))["spec"]["leaseTransitions"] == 1
    # Whoever waits, drains all the same.
    world.send(messages.spot_warning(node.instance))
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the service is at rest", lambda: second.at_rest() and third.at_rest())


def test_node_comes_back_between_look_and_deletion(world: World) -> None:
    roles.grant_collector(world.kube, SERVICE, world.name)
    back, gone = leave(world, "back"), leave(world, "gone")

    def comes_back() -> None:
        world.kube.another().create(NODES, manifests.node(world.name, back, world.aws.instance(), kubelet=False))
        world.kube.another().patch(path(name=back), {"spec": {"renewTime": ago(0)}})

    certificates = world.control_plane.kubeconfig.parent
    rule = {"apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"], "resources": ["leases"]}
    with before_deletion(world.kube, certificates, rule, roles.NODE_LEASES, back, comes_back) as asked:
        # The API server learns of the webhook in its own time.
        probe = f"{path(name=back)}?dryRun=All"
        eventually("the webhook works", lambda: world.kube.delete(probe) or asked)
        world.kube.delete(f"{NODES}/{back}")
        world.kube.patch(path(name=back), {"spec": {"renewTime": ago(HOURS)}})
        before = len(asked)
        service = collector(world, "ebbtide-0")
        try:
            eventually("it was to be deleted", lambda: len(asked) > before)
            eventually("the other is gone", lambda: not is_there(world, gone))
            assert is_there(world, back), "who came back keeps the Lease"
            answers = {call.name: call.status for call in deletions(world)}
            assert (answers[back], answers[gone]) == (409, 200), "what was renewed is not what was seen"
            assert collected(service) == sum(status == 200 for status in answers.values())
        finally:
            world.kube.delete(f"{NODES}/{back}")


def test_dry_run_deletes_nothing(world: World) -> None:
    roles.grant_collector(world.kube, SERVICE, world.name)
    leaked = leave(world, "leaked")

    service = collector(world, "ebbtide-0", "--dry-run", "--log-format", "json")

    eventually("it says what it would delete", lambda: leaked in service.process.log.read_text())
    assert is_there(world, leaked)
    assert holder(world) is None, "its turn is not written either"
    assert collected(service) == 0
    deleted = deletions(world)
    assert deleted, "the API server is asked"
    assert all(call.dry_run for call in deleted), "it checks, and does nothing"
