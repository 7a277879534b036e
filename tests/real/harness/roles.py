"""What the service may do in the cluster: what the chart gives it, so that a call beyond that fails a test."""

from __future__ import annotations

import itertools
from pathlib import Path

import yaml

from .kube import Kube, Object
from .wait import eventually

NODE_LEASES = "kube-node-lease"
"""The namespace of the kubelets' Leases."""

_API = "/apis/rbac.authorization.k8s.io/v1"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

_SNAPSHOTS = Path(__file__).parents[2] / "deploy" / "snapshots"
"""What the chart makes of some values; tests/deploy/run holds that it is what helm makes of it now."""


def grant(kube: Kube, user: str) -> None:
    """Gives a user in the whole cluster what the chart gives by default."""
    kube.create(f"{_API}/clusterroles", {"metadata": {"name": user}, "rules": default_rules()})
    kube.create(f"{_API}/clusterrolebindings", _binding(user, user, "ClusterRole"))
    wait_held(kube, user, "", default_rules())


def default_rules() -> list[Object]:
    """The rules of the chart's ClusterRole by default."""
    (role,) = _roles("defaults", "ClusterRole")
    rules: list[Object] = role["rules"]
    return rules


def grant_collector(kube: Kube, user: str, namespace: str) -> None:
    """Gives a user what --collect-leases needs in addition, with its pods in this namespace."""
    for role in _roles("everything", "Role"):
        where = NODE_LEASES if role["metadata"]["namespace"] == NODE_LEASES else namespace
        name = f"{user}-{namespace}"
        kube.create(f"{_API}/namespaces/{where}/roles", {"metadata": {"name": name}, "rules": role["rules"]})
        kube.create(f"{_API}/namespaces/{where}/rolebindings", _binding(name, user, "Role"))
        wait_held(kube, user, where, role["rules"])


def wait_held(kube: Kube, user: str, namespace: str, rules: list[Object]) -> None:
    """Waits until a user has the rights of these rules, in a namespace or everywhere.

    The API server learns of roles in its own time, and refuses until then.
    """
    for rule in rules:
        for group, resource, name, verb in itertools.product(
            rule["apiGroups"], rule["resources"], rule.get("resourceNames", [""]), rule["verbs"]
        ):
            resource, _, subresource = resource.partition("/")
            right = {"namespace": namespace, "group": group, "resource": resource, "subresource": subresource}
            right |= {"name": name, "verb": verb}
            eventually(f"{user} may {right}", lambda right=right: _may(kube, user, right))


def _may(kube: Kube, user: str, right: Object) -> bool:
    review = kube.create(_REVIEWS, {"spec": {"user": user, "resourceAttributes": right}})
    return bool(review["status"]["allowed"])


def _roles(snapshot: str, kind: str) -> list[Object]:
    """The chart's roles; its templates/rbac.yaml says what each rule is for."""
    objects = yaml.safe_load_all((_SNAPSHOTS / f"{snapshot}.yaml").read_text())
    return [each for each in objects if each and each["kind"] == kind]


def _binding(name: str, user: str, kind: str) -> Object:
    """Binds a role of this name to a user."""
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
