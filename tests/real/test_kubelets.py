"""Kubelets with the rights of a kubelet: what one writes on its Node reaches nothing that it may not do itself."""

from __future__ import annotations

import json

import pytest

from harness.kube import NODES, Kube, Object
from harness.wait import eventually
from harness.world import World, marks

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
        assert ": 422 " in str(error) or ": 403 " in str(error), error
        return str(error)
    return ""


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
