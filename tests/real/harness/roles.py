"""What the service may do in the cluster: what the chart gives it, so that a call beyond that fails a test."""

from __future__ import annotations

from pathlib import Path

import yaml

from .kube import Kube, Object

_API = "/apis/rbac.authorization.k8s.io/v1"

_CHART = Path(__file__).parents[2] / "deploy" / "snapshots" / "defaults.yaml"
"""What the chart makes; tests/deploy/run holds that it is what helm makes of it now."""


def rules() -> list[Object]:
    """The rules of the chart's ClusterRole; its templates/rbac.yaml says what each is for."""
    objects = yaml.safe_load_all(_CHART.read_text())
    (role,) = (each for each in objects if each and each["kind"] == "ClusterRole")
    found: list[Object] = role["rules"]
    return found


def grant(kube: Kube, user: str) -> None:
    """Gives a user these rights in the whole cluster."""
    kube.create(f"{_API}/clusterroles", {"metadata": {"name": user}, "rules": rules()})
    binding: Object = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    kube.create(f"{_API}/clusterrolebindings", binding)
