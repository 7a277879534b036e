"""The collector deletes only leaked Leases, which a kubelet created again after its Node was deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harness import manifests, messages, roles
from harness.admission import before_deletion
from harness.audit import Request
from harness.control_plane import SERVICE
from harness.kube import NODES, Object
from harness.service import Service
from harness.wait import always, eventually
from harness.world import World, drained

TURN = "ebbtide-collector"

HOURS = 2 * 3600
"""Age in seconds of the last renewal of a leaked Lease."""

MINUTES = 55 * 60
"""Age in seconds of a renewal that is too recent."""


def path(namespace: str = roles.NODE_LEASES, name: str = "") -> str:
    """Returns the path of a namespace's Leases, or of one of them."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}".rstrip("/")


def ago(seconds: float) -> str:
    """Returns a time in the past in the format of a Lease."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def leave(
    world: World,
    name: str,
    renewed: float | None = HOURS,
    namespace: str = roles.NODE_LEASES,
    holder: str = "",
    owner: Object | None = None,
) -> str:
    """Creates a Lease like a kubelet's, renewed this number of seconds ago; returns its name."""
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
    """Starts a service that collects Leases, as a pod of this name."""
    return world.service("--collect-leases", "--pod-namespace", world.name, "--pod-name", name, *flags)


def collected(service: Service) -> float:
    """Returns the number of deleted Leases in the service's metrics."""
    return sum(value for _, value in service.samples("ebbtide_leases_collected_total"))


def holder(world: World) -> str | None:
    """Returns the pod that currently collects."""
    turn = world.kube.find(path(world.name, TURN))
    return turn["spec"].get("holderIdentity") if turn else None


def deletions(world: World) -> list[Request]:
    """Returns the service's requests to delete Leases."""
    return [call for call in world.audit.requests() if (call.verb, call.resource) == ("delete", "leases")]


def is_there(world: World, name: str, namespace: str = roles.NODE_LEASES) -> bool:
    """Returns whether a Lease exists."""
    return world.kube.find(path(namespace, name)) is not None


@pytest.mark.versions
def test_only_leaked_leases_are_deleted(world: World) -> None:
    roles.grant_collector(world.kube, SERVICE, world.name)
    node = world.node()
    bare = world.register(world.aws.instance(), kubelet=False)
    owner = world.see(node)
    leaked = [leave(world, "leaked"), leave(world, "leaked-long-ago", 30 * 86_400)]
    # Its Node exists, although no kubelet has renewed the Lease for a long time.
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

    eventually("the leaked Leases are gone", lambda: not any(is_there(world, name) for name in leaked))
    second = collector(world, "ebbtide-1")
    always(
        "all other Leases stay",
        lambda: all(is_there(world, name) for name in stay) and is_there(world, elsewhere, world.name),
        during=8,
    )
    assert collected(first) == len(leaked)
    assert collected(second) == 0
    assert holder(world) == "ebbtide-0"
    deleted = deletions(world)
    assert sorted(call.name for call in deleted) == sorted(leaked)
    assert all(call.uid for call in deleted), "a deletion has no UID precondition"

    # A graceful end hands over at once.
    world.kube.delete(path(name=stay[1]))
    late = leave(world, "leaked-late")
    first.terminate()
    assert holder(world) is None
    third = collector(world, "ebbtide-2")
    eventually("the next service collects at once", lambda: not is_there(world, late))
    assert holder(world) == "ebbtide-2"
    assert world.kube.get(path(world.name, TURN))["spec"]["leaseTransitions"] == 1
    # A service that waits for its turn also drains.
    world.send(messages.spot_warning(node.instance))
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the service is at rest", lambda: second.at_rest() and third.at_rest())


def test_a_lease_renewed_before_its_deletion_stays(world: World) -> None:
    roles.grant_collector(world.kube, SERVICE, world.name)
    back, gone = leave(world, "back"), leave(world, "gone")

    def comes_back() -> None:
        world.kube.another().create(NODES, manifests.node(world.name, back, world.aws.instance(), kubelet=False))
        world.kube.another().patch(path(name=back), {"spec": {"renewTime": ago(0)}})

    certificates = world.control_plane.kubeconfig.parent
    rule = {"apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"], "resources": ["leases"]}
    with before_deletion(world.kube, certificates, rule, roles.NODE_LEASES, back, comes_back) as asked:
        # The API server learns of the webhook after a delay.
        probe = f"{path(name=back)}?dryRun=All"
        eventually("the webhook works", lambda: world.kube.delete(probe) or asked)
        world.kube.delete(f"{NODES}/{back}")
        world.kube.patch(path(name=back), {"spec": {"renewTime": ago(HOURS)}})
        before = len(asked)
        service = collector(world, "ebbtide-0")
        try:
            eventually("the service tries to delete the Lease", lambda: len(asked) > before)
            eventually("the other Lease is gone", lambda: not is_there(world, gone))
            assert is_there(world, back), "the renewed Lease was deleted"
            answers = {call.name: call.status for call in deletions(world)}
            assert (answers[back], answers[gone]) == (409, 200), f"statuses of the deletions: {answers}"
            assert collected(service) == sum(status == 200 for status in answers.values())
        finally:
            world.kube.delete(f"{NODES}/{back}")


def test_a_dry_run_deletes_no_lease(world: World) -> None:
    roles.grant_collector(world.kube, SERVICE, world.name)
    leaked = leave(world, "leaked")

    service = collector(world, "ebbtide-0", "--dry-run", "--log-format", "json")

    eventually("the log names the leaked Lease", lambda: leaked in service.process.log.read_text())
    assert is_there(world, leaked)
    assert holder(world) is None, "a dry run took the collector's Lease"
    assert collected(service) == 0
    deleted = deletions(world)
    assert deleted, "the service made no dry-run deletion"
    assert all(call.dry_run for call in deleted), f"not dry runs: {deleted}"
