"""The service's permissions in the cluster: those of the chart, so that any other call fails a test."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from .chart import VALUES, rendered
from .kube import Kube, Object
from .wait import eventually

NODE_LEASES = "kube-node-lease"
"""Namespace of the kubelets' Leases."""

NODES_LEASE = "ebbtide-nodes"
"""The Lease of the replica that acts on what Nodes say."""

_API = "/apis/rbac.authorization.k8s.io/v1"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"



def grant(kube: Kube, user: str) -> None:
    """Grants a user the chart's default permissions in the whole cluster."""
    kube.create(f"{_API}/clusterroles", {"metadata": {"name": user}, "rules": default_rules()})
    kube.create(f"{_API}/clusterrolebindings", _binding(user, user, "ClusterRole"))
    wait_held(kube, user, "", default_rules())


def default_rules() -> list[Object]:
    """Returns the rules of the chart's default ClusterRole."""
    (role,) = _roles("defaults", "ClusterRole")
    rules: list[Object] = role["rules"]
    return rules


def grant_collector(kube: Kube, user: str, namespace: str) -> None:
    """Grants a user the additional permissions for --collect-leases, with its pods in this namespace."""
    for role in _roles("settings", "Role"):
        if role["metadata"]["name"].endswith("-nodes"):
            continue
        where = NODE_LEASES if role["metadata"]["namespace"] == NODE_LEASES else namespace
        name = f"{user}-{namespace}"
        kube.create(f"{_API}/namespaces/{where}/roles", {"metadata": {"name": name}, "rules": role["rules"]})
        kube.create(f"{_API}/namespaces/{where}/rolebindings", _binding(name, user, "Role"))
        wait_held(kube, user, where, role["rules"])


def grant_nodes(kube: Kube, user: str, namespace: str) -> None:
    """Grants a user the additional permissions for the source `nodes`, with its pods in this namespace."""
    (role,) = (each for each in _roles("settings", "Role") if each["metadata"]["name"].endswith("-nodes"))
    name = f"{user}-{namespace}-nodes"
    # Without --nodes-lease; the chart's Lease has the name of its release.
    rules = [rule | {"resourceNames": [NODES_LEASE]} if "resourceNames" in rule else rule for rule in role["rules"]]
    kube.create(f"{_API}/namespaces/{namespace}/roles", {"metadata": {"name": name}, "rules": rules})
    kube.create(f"{_API}/namespaces/{namespace}/rolebindings", _binding(name, user, "Role"))
    wait_held(kube, user, namespace, rules)


def grant_target_groups(kube: Kube, user: str) -> None:
    """Grants a user the additional permission for --wait-for-load-balancers, once for all tests."""
    (role,) = _roles("settings", "ClusterRole")
    rules = [rule for rule in role["rules"] if rule["resources"] == ["targetgroupbindings"]]
    name = f"{user}-target-groups"
    if not kube.find(f"{_API}/clusterroles/{name}"):
        kube.create(f"{_API}/clusterroles", {"metadata": {"name": name}, "rules": rules})
        kube.create(f"{_API}/clusterrolebindings", _binding(name, user, "ClusterRole"))
    wait_held(kube, user, "", rules)


def grant_surges(kube: Kube, user: str) -> None:
    """Grants a user the additional permissions for --surge, once for all tests."""
    (role,) = _roles("settings", "ClusterRole")
    rules = [rule for rule in role["rules"] if rule["resources"] in (["deployments"], ["replicasets"])]
    name = f"{user}-surges"
    if not kube.find(f"{_API}/clusterroles/{name}"):
        kube.create(f"{_API}/clusterroles", {"metadata": {"name": name}, "rules": rules})
        kube.create(f"{_API}/clusterrolebindings", _binding(name, user, "ClusterRole"))
    wait_held(kube, user, "", rules)


@contextmanager
def deleting_nodes(kube: Kube, user: str) -> Iterator[None]:
    """Grants a user the additional permission for --collect-nodes, until the block ends."""
    (role,) = _roles("settings", "ClusterRole")
    rules = [rule for rule in role["rules"] if rule["verbs"] == ["delete"] and rule["resources"] == ["nodes"]]
    name = f"{user}-deletes-nodes"
    kube.create(f"{_API}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    try:
        kube.create(f"{_API}/clusterrolebindings", _binding(name, user, "ClusterRole"))
        wait_held(kube, user, "", rules)
        yield
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            kube.delete(f"{_API}/{kind}/{name}")
        right = {"group": "", "resource": "nodes", "verb": "delete"}
        eventually(f"{user} may delete no nodes", lambda: not _may(kube, user, right))


@contextmanager
def without(kube: Kube, user: str, group: str, resource: str) -> Iterator[None]:
    """Takes the permissions on a resource from a user of the default permissions, until the block ends."""
    path, rules = f"{_API}/clusterroles/{user}", default_rules()
    taken = [rule for rule in rules if (rule["apiGroups"], rule["resources"]) == ([group], [resource])]
    right = {"group": group, "resource": resource, "verb": taken[0]["verbs"][0]}
    kube.patch(path, {"rules": [rule for rule in rules if rule not in taken]})
    try:
        eventually(f"{user} has no right on {resource}", lambda: not _may(kube, user, right))
        yield
    finally:
        kube.patch(path, {"rules": rules})
        wait_held(kube, user, "", taken)


def wait_held(kube: Kube, user: str, namespace: str, rules: list[Object]) -> None:
    """Waits until a user has the permissions of these rules, in a namespace or everywhere.

    The API server learns of new roles after a delay, and refuses until then.
    """
    for rule in rules:
        for group, resource, name, verb in itertools.product(
            rule["apiGroups"], rule["resources"], rule.get("resourceNames", [""]), rule["verbs"]
        ):
            resource, _, subresource = resource.partition("/")
            right = {"namespace": namespace, "group": group, "resource": resource, "subresource": subresource}
            right |= {"name": name, "verb": verb}
            eventually(f"{user} may {right}", lambda right=right: _may(kube, user, right))


def may(kube: Kube, user: str, namespace: str, verb: str, resource: str) -> bool:
    """Returns whether a user may do this with the core group's resource, in a namespace or everywhere."""
    resource, _, subresource = resource.partition("/")
    return _may(kube, user, {"namespace": namespace, "verb": verb, "resource": resource, "subresource": subresource})


def _may(kube: Kube, user: str, right: Object) -> bool:
    review = kube.create(_REVIEWS, {"spec": {"user": user, "resourceAttributes": right}})
    return bool(review["status"]["allowed"])


@functools.cache
def _roles(values: str, kind: str) -> list[Object]:
    """Returns the chart's roles for a file of values; its templates/rbac.yaml gives the reason for each rule."""
    agents = ("agent", "-agent")
    return [each for each in rendered(VALUES / f"{values}.yaml") if each["kind"] == kind and not each["metadata"]["name"].endswith(agents)]


def _binding(name: str, user: str, kind: str) -> Object:
    """Binds a role of this name to a user."""
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
