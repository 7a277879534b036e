"""The Kubernetes objects that tests create."""

from __future__ import annotations

from datetime import UTC, datetime

from .aws import ZONE
from .kube import Object
from .queues import REGION

WORLD = "ebbtide.test/world"
"""Label that separates the nodes and pods of tests."""

ZONE_LABEL = "topology.kubernetes.io/zone"
"""Label with a node's zone."""

GROUP_LABEL = "eks.amazonaws.com/nodegroup"
"""Label with a node's group. Nodes have none unless a test sets it."""

STOPS_AFTER = "ebbtide.test/stops-after"
"""Pod annotation: seconds until kwok stops a deleted pod."""

GRACE = 60
"""Default grace period of a pod, in seconds: longer than the pod takes to stop."""


def node(
    world: str,
    name: str,
    instance: str,
    *,
    kubelet: bool = True,
    taint: str | None = None,
    labels: dict[str, str] | None = None,
) -> Object:
    """Returns a Node with labels, as the cloud controller manager leaves it. Its kubelet is kwok, or it has none."""
    return {
        "metadata": {
            "name": name,
            "labels": {
                WORLD: world,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "t3.small",
                "topology.kubernetes.io/region": REGION,
                ZONE_LABEL: ZONE,
            }
            | (labels or {}),
            "annotations": {"kwok.x-k8s.io/node": "fake"} if kubelet else {},
        },
        "spec": {
            "providerID": f"aws:///{ZONE}/{instance}",
            "taints": [{"key": taint, "effect": "NoSchedule"}] if taint else [],
        },
    }


def node_status(ready: bool) -> Object:
    """Returns a Node's status as a kubelet writes it."""
    said = condition("Ready", "True" if ready else "False", "KubeletReady" if ready else "KubeletNotReady")
    return {"status": {"conditions": [said]}}


def condition(kind: str, status: str, reason: str = "Test") -> Object:
    """Returns a condition of a Node, which begins now."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": status, "reason": reason, "lastHeartbeatTime": now, "lastTransitionTime": now}


def deployment(
    name: str,
    replicas: int,
    where: dict[str, str],
    stops_after: float,
    grace: int,
    empty_dir: bool,
    priority_class: str | None = None,
) -> Object:
    """Returns a Deployment, whose pods a drain evicts."""
    template = _template(name, where, stops_after, grace, empty_dir)
    if priority_class:
        template["spec"]["priorityClassName"] = priority_class
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": _selector(name), "template": template},
    }


def daemon_set(name: str, where: dict[str, str], empty_dir: bool = False) -> Object:
    """Returns a DaemonSet, whose pods a drain leaves alone."""
    return {
        "metadata": {"name": name},
        "spec": {"selector": _selector(name), "template": _template(name, where, empty_dir=empty_dir)},
    }


def stateful_set(name: str, where: dict[str, str]) -> Object:
    """Returns a StatefulSet of one pod, whose replacement has the same name."""
    return {
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": 1,
            "selector": _selector(name),
            "template": _template(name, where),
        },
    }


def suspended_job(name: str) -> Object:
    """Returns a Job that creates no pods."""
    spec = _pod_spec(GRACE, empty_dir=False) | {"restartPolicy": "Never"}
    return {"metadata": {"name": name}, "spec": {"suspend": True, "template": {"spec": spec}}}


def pod(
    name: str,
    node: str,
    owner: Object | None,
    controlled: bool,
    empty_dir: bool,
    annotations: dict[str, str],
) -> Object:
    """Returns a pod on a node, without an owner or with one, which may be its controller."""
    body = {
        "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
        "spec": _pod_spec(GRACE, empty_dir) | {"nodeName": node},
    }
    if owner:
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
        body["metadata"]["ownerReferences"] = [reference | {"controller": controlled}]
    return body


def budget(app: str) -> str:
    """Returns the name of an app's budget, which no pod's name contains: a test can tell which one is reported."""
    return f"keep-{app}"


def closed_budget(app: str) -> Object:
    """Returns a budget that never allows a disruption of an app's pods."""
    return {"metadata": {"name": budget(app)}, "spec": {"maxUnavailable": 0, "selector": _selector(app)}}


def budget_of(app: str, max_unavailable: int) -> Object:
    """Returns a budget that allows this number of disruptions of an app's pods at a time."""
    return {"metadata": {"name": budget(app)}, "spec": {"maxUnavailable": max_unavailable, "selector": _selector(app)}}


def _selector(app: str) -> Object:
    return {"matchLabels": {"app": app}}


def _template(
    app: str, where: dict[str, str], stops_after: float = 0.2, grace: int = GRACE, empty_dir: bool = False
) -> Object:
    return {
        "metadata": {"labels": {"app": app}, "annotations": {STOPS_AFTER: str(stops_after)}},
        "spec": _pod_spec(grace, empty_dir) | {"nodeSelector": where},
    }


def _pod_spec(grace: int, empty_dir: bool) -> Object:
    return {
        "terminationGracePeriodSeconds": grace,
        "containers": [{"name": "main", "image": "none.invalid/main"}],
        "volumes": [{"name": "scratch", "emptyDir": {}}] if empty_dir else [],
    }
