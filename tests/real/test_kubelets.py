"""Kubelets with the rights of a kubelet: what one writes on its Node reaches nothing that it may not do itself."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from harness import admission, helm, messages
from harness.kube import NODES, Kube, Object
from harness.wait import eventually
from harness.world import Node, World, drained, marks

POLICY = "a kubelet may not"
"""What each refusal of the policy says."""

QUARANTINE = {"key": "quarantine", "value": "ir", "effect": "NoSchedule"}
TIER = "node-restriction.kubernetes.io/tier"


def kubelet(world: World, name: str) -> Kube:
    """Returns a client with the identity of a node's kubelet."""
    return world.kube.impersonating(f"system:node:{name}", "system:nodes")


def refused(kube: Kube, path: str, body: Object) -> str:
    """Returns the API server's reason for refusing a patch; empty if it is accepted."""
    try:
        kube.patch(path, body)
    except AssertionError as error:
        if ": 422 " not in str(error) and ": 403 " not in str(error):
            raise
        return str(error)
    return ""


def wait_policy(kube: Kube, node: Node) -> None:
    """Waits until the API server has taken up the policy, which takes it a second or two."""
    path, says = f"{NODES}/{node.name}?dryRun=All", {"metadata": {"annotations": {"ebbtide/says.spot": "{}"}}}
    eventually("the policy holds", lambda: POLICY in refused(kube, path, says))


@pytest.fixture
def policy(world: World) -> Iterator[None]:
    """The chart's policy for kubelets, as it is by default."""
    values = world.folder / "policy.yaml"
    values.write_text("queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide\n")
    with admission.policies(world.kube, helm.rendered(values, world.name, world.name)):
        yield


@pytest.mark.versions
def test_a_kubelet_does_not_have_a_quarantine_removed(world: World) -> None:
    node = world.node()
    path = f"{NODES}/{node.name}"
    taints = [QUARANTINE, {**QUARANTINE, "key": "dedicated", "value": "payments"}]
    world.kube.patch(path, {"spec": {"taints": taints, "unschedulable": True}})
    world.label(node, TIER, "1")
    captured = kubelet(world, node.name)
    for own in ({"spec": {"taints": taints[1:]}}, {"metadata": {"labels": {TIER: None}}}):
        assert "is not allowed" in refused(captured, path, own), "Kubernetes keeps the kubelet from it"
    service = world.service()

    undo = {"cordon": True, "taints": ["quarantine=ir:NoSchedule", "dedicated=payments:NoSchedule"], "labels": [TIER]}
    expired = json.dumps({"until": "2020-01-01T00:00:00Z"})
    annotations = {"ebbtide/notice.x": expired, "ebbtide/undo": json.dumps(undo)}
    assert refused(captured, path, {"metadata": {"annotations": annotations}}) == ""

    eventually("the marks are removed", lambda: not marks(world.see(node)))
    assert {"quarantine", "dedicated"} <= {taint["key"] for taint in world.see(node)["spec"]["taints"]}
    assert world.see(node)["metadata"]["labels"][TIER] == "1"
    assert service.samples("ebbtide_node_refusals_total") == [({"what": "undo"}, 1.0)]


@pytest.mark.versions
@pytest.mark.usefixtures("policy")
def test_a_kubelet_writes_nothing_of_ebbtides(world: World) -> None:
    node = world.node()
    own = f"{NODES}/{node.name}"
    captured = kubelet(world, node.name)
    wait_policy(captured, node)

    world.annotate(node, "ebbtide/ignore", "true")
    world.label(node, "ebbtide/kind", "spot")
    for path in (own, f"{own}/status"):
        for value in ("x", None):
            for body in ({"annotations": {"ebbtide/ignore": value}}, {"labels": {"ebbtide/kind": value}}):
                assert POLICY in refused(captured, path, {"metadata": body}), (path, body)
        for body in ({"annotations": {"ebbtide/notice.x": "{}"}}, {"labels": {"ebbtide/x": ""}}):
            assert POLICY in refused(captured, path, {"metadata": body}), (path, body)
        # What the API server can't evaluate for its size, it would let through.
        for kind in ("annotations", "labels"):
            many = {f"x{n}": "" for n in range(1_001)}
            assert POLICY in refused(captured, path, {"metadata": {kind: many}}), (path, kind)
    # A status that it reports, and what is not Ebbtide's, it still writes.
    assert refused(captured, f"{own}/status", {"status": {"nodeInfo": {"bootID": "another"}}}) == ""
    others = {"annotations": {"csi.volume.kubernetes.io/nodeid": "{}"}, "labels": {"example.com/pool": "blue"}}
    assert refused(captured, own, {"metadata": others}) == ""


@pytest.mark.versions
@pytest.mark.usefixtures("policy")
def test_a_kubelet_registers_without_keys_of_ebbtides(world: World) -> None:
    names = [f"{world.name}-{name}" for name in ("labelled", "annotated", "plain")]
    world.nodes += [Node(name, "i-0123456789abcdef0") for name in names]
    labelled, annotated, plain = names

    def registered(name: str, meta: Object) -> str:
        try:
            kubelet(world, name).create(NODES, {"metadata": {"name": name, **meta}})
        except AssertionError as error:
            return str(error)
        return ""

    first = {"labels": {"ebbtide/x": ""}}
    eventually(
        "the policy holds", lambda: POLICY in registered(labelled, first) or world.kube.delete(f"{NODES}/{labelled}")
    )
    assert POLICY in registered(annotated, {"annotations": {"ebbtide/planned.x": "{}"}})
    # As with `--node-labels example.com/pool=blue`; and without any label.
    assert registered(plain, {"labels": {"example.com/pool": "blue"}}) == ""
    assert registered(annotated, {}) == ""


@pytest.mark.usefixtures("policy")
def test_the_service_drains_under_the_policy(world: World) -> None:
    node = world.node()
    captured = kubelet(world, node.name)
    wait_policy(captured, node)
    world.run("web", on=node)
    world.service()
    world.send(messages.spot_warning(node.instance))
    eventually("the node is drained", lambda: drained(world, node))
    # The kubelet of a marked Node goes on reporting.
    assert refused(captured, f"{NODES}/{node.name}/status", {"status": {"nodeInfo": {"bootID": "another"}}}) == ""
