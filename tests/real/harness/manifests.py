"""The Kubernetes objects that tests make, with what they have in common."""

from __future__ import annotations

from .aws import REGION, ZONE
from .kube import Object

WORLD = "ebbtide.test/world"
"""The label that keeps one test's nodes and pods from another's."""

STOPS_AFTER = "ebbtide.test/stops-after"
"""The annotation of a pod which tells kwok how many seconds it takes to stop."""

GRACE = 60
"""Every pod's grace period in seconds: longer than any pod here takes."""


def node(world: str, name: str, instance: str) -> Object:
    """A node as the cloud's controller leaves it, with kwok for a kubelet."""
    return {
        "metadata": {
            "name": name,
            "labels": {
                WORLD: world,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "t3.small",
                "topology.kubernetes.io/region": REGION,
                "topology.kubernetes.io/zone": ZONE,
            },
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"providerID": f"aws:///{ZONE}/{instance}"},
    }


def deployment(name: str, replicas: int, where: dict[str, str], stops_after: float) -> Object:
    """Pods that are to be evicted."""
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": _selector(name), "template": _template(name, where, stops_after)},
    }


def daemon_set(name: str, where: dict[str, str]) -> Object:
    """Pods that stay where they are."""
    return {
        "metadata": {"name": name},
        "spec": {"selector": _selector(name), "template": _template(name, where, stops_after=0.2)},
    }


def closed_budget(app: str) -> Object:
    """A budget that never allows a disruption of an app's pods."""
    return {"metadata": {"name": app}, "spec": {"maxUnavailable": 0, "selector": _selector(app)}}


def _selector(app: str) -> Object:
    return {"matchLabels": {"app": app}}


def _template(app: str, where: dict[str, str], stops_after: float) -> Object:
    return {
        "metadata": {"labels": {"app": app}, "annotations": {STOPS_AFTER: str(stops_after)}},
        "spec": {
            "nodeSelector": where,
            "terminationGracePeriodSeconds": GRACE,
            "containers": [{"name": "main", "image": "none.invalid/main"}],
        },
    }
