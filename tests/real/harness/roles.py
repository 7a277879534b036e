"""What the service may do in the cluster: as little as it needs, so that a call beyond that fails a test."""

from __future__ import annotations

from .kube import Kube, Object

_API = "/apis/rbac.authorization.k8s.io/v1"

RULES = [
    # Which Node an instance is, and whether a launched one is Ready; cordons, taints, labels and annotations.
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    # The condition EbbtideDraining.
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    # What is on a node, and when it is gone; what no budget lets go is deleted before a hard deadline.
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    # The names of the budgets that block.
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["get", "list"]},
    # Who blocks a drain; at its end the Node's Event is updated.
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
]


def grant(kube: Kube, user: str) -> None:
    """Gives a user these rights in the whole cluster."""
    kube.create(f"{_API}/clusterroles", {"metadata": {"name": user}, "rules": RULES})
    binding: Object = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    kube.create(f"{_API}/clusterrolebindings", binding)
