"""helm as an administrator runs it: a release of the chart, and how its pods would be started."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from . import roles
from .chart import CHART, REPOSITORY, TIMEOUT, tool
from .control_plane import ControlPlane
from .kube import NAMESPACES, Object
from .wait import eventually

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_INSTANCE = "app.kubernetes.io/instance"
_MADE_BY = "meta.helm.sh/release-name"

Key = tuple[str, str, str]
"""Kind, namespace (may be empty) and name of an object."""

Right = tuple[str, str, str]
"""Namespace (empty: all), verb and resource of a permission."""


def know_monitors(control_plane: ControlPlane) -> None:
    """Installs the CRDs of the Prometheus Operator."""
    crds = Path(tool("--source", "prometheus-operator")) / "example" / "prometheus-operator-crd"
    for plural in ("podmonitors", "prometheusrules", "servicemonitors"):
        if control_plane.kube.find(f"{_CRDS}/{plural}.monitoring.coreos.com"):
            continue
        body = yaml.safe_load((crds / f"monitoring.coreos.com_{plural}.yaml").read_text())
        control_plane.kube.create(_CRDS, body)
        path = f"/apis/monitoring.coreos.com/v1/{plural}"
        eventually(f"{plural} are served", lambda path=path: control_plane.kube.find(path))


class Release:
    """An installed release, in a namespace of its own."""

    pod_security = "restricted"
    """The API server refuses pods that break these rules: here Pod Security's strictest."""

    def __init__(self, helm: str, name: str, control_plane: ControlPlane, folder: Path) -> None:
        self.name = name
        self.namespace = name
        self._control_plane = control_plane
        self._kube = control_plane.kube
        self._folder = folder
        self._program = tool(helm)
        self.notes = ""
        """Output of `helm install`."""

    @property
    def chart(self) -> Path:
        """Returns the chart's folder."""
        return CHART

    def install(self, values: Object) -> None:
        """Runs helm install with these values."""
        strict = {"pod-security.kubernetes.io/enforce": self.pod_security}
        self._kube.create(NAMESPACES, {"metadata": {"name": self.namespace, "labels": strict}})
        file = str(self._values(values))
        repository = ("--values", str(REPOSITORY)) if self.chart == CHART else ()
        self.notes = self._helm("install", self.name, str(self.chart), *repository, "--values", file)
        self._wait_rights()

    def upgrade(self, values: Object, chart: Path = CHART) -> None:
        """Runs helm upgrade as in docs/install.md: other values stay as they were."""
        done = self._upgrade(values, chart)
        assert done.returncode == 0, done.stderr
        self._wait_rights()

    def refused_upgrade(self, values: Object) -> str:
        """Runs helm upgrade with values that helm must refuse; returns the error message."""
        done = self._upgrade(values, CHART)
        assert done.returncode != 0, f"helm accepted {values}: {done.stdout}"
        return done.stderr

    def rollback(self, revision: int) -> None:
        """Runs helm rollback."""
        self._helm("rollback", self.name, str(revision))
        self._wait_rights()

    def history(self) -> list[tuple[int, str]]:
        """Returns the release's revisions, each with its status."""
        revisions = json.loads(self._helm("history", self.name, "--output", "json"))
        return [(each["revision"], each["status"]) for each in revisions]

    def uninstall(self) -> None:
        """Runs helm uninstall. A missing release is fine."""
        self._helm("uninstall", self.name, "--ignore-not-found")

    def made(self) -> dict[Key, Object]:
        """Returns the objects that helm created from the chart, in all namespaces, as the API server returns them."""
        return {
            key: each
            for key, each in self.traces().items()
            # A ReplicaSet has the annotations of its Deployment.
            if _of(each, "annotations", _MADE_BY) == self.name and not each["metadata"].get("ownerReferences")
        }

    def traces(self) -> dict[Key, Object]:
        """Returns all objects of the release: helm's, helm's own records, and those that controllers created."""
        return {
            _key(each): each
            for each in self._kube.everything()
            if self.name in (_of(each, "annotations", _MADE_BY), _of(each, "labels", _INSTANCE))
            or (_of(each, "labels", "owner"), _of(each, "labels", "name")) == ("helm", self.name)
        }

    def deployment(self) -> Object:
        """Returns the Deployment, as the API server returns it."""
        return self._kube.get(f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.full_name}")

    def pods(self) -> list[Object]:
        """Returns the release's pods."""
        return self._kube.items(f"/api/v1/namespaces/{self.namespace}/pods")

    @property
    def user(self) -> str:
        """Returns the Kubernetes user name of the release's pods."""
        return f"system:serviceaccount:{self.namespace}:{self._account}"

    def token(self) -> str:
        """Returns a token of the release's ServiceAccount, like a pod's."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self._account}/token"
        token: str = self._kube.create(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        return token

    def arguments(self) -> list[str]:
        """Returns the container's flags."""
        first, *flags = self._container["args"]
        assert first == "run", self._container["args"]
        return flags

    def variables(self) -> dict[str, str]:
        """Returns the environment variables of the first pod's container."""
        pod = self.pods()[0]
        return {each["name"]: _value(each, pod) for each in self._container["env"]}

    def rights(self) -> set[Right]:
        """Returns the release's permissions, as the API server has them."""
        return {
            (role["metadata"].get("namespace", ""), verb, resource)
            for role in self._roles()
            for rule in role["rules"]
            for verb in rule["verbs"]
            for resource in rule["resources"]
        }

    def _roles(self) -> list[Object]:
        mine = f"{_INSTANCE}={self.name}"
        return [*self._kube.items(f"{_RBAC}/clusterroles", mine), *self._kube.items(f"{_RBAC}/roles", mine)]

    def _wait_rights(self) -> None:
        """Waits until the API server knows all permissions of the release."""
        for role in self._roles():
            roles.wait_held(self._kube, self.user, role["metadata"].get("namespace", ""), role["rules"])

    @property
    def full_name(self) -> str:
        """Returns the name of the release's objects."""
        return self.name if "ebbtide" in self.name else f"{self.name}-ebbtide"

    @property
    def _account(self) -> str:
        account: str = self.deployment()["spec"]["template"]["spec"]["serviceAccountName"]
        return account

    @property
    def _container(self) -> Object:
        container: Object = self.deployment()["spec"]["template"]["spec"]["containers"][0]
        return container

    def _values(self, values: Object) -> Path:
        file = self._folder / "values.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    def _upgrade(self, values: Object, chart: Path) -> subprocess.CompletedProcess[str]:
        file = str(self._values(values))
        return self._try_helm("upgrade", self.name, str(chart), "--reset-then-reuse-values", "--values", file)

    def _helm(self, *arguments: str) -> str:
        done = self._try_helm(*arguments)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def _try_helm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self._folder), "KUBECONFIG": str(self._control_plane.kubectl.kubeconfig)}
        command = [self._program, *arguments, "--namespace", self.namespace]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TIMEOUT, check=False)


class NthRelease(Release):
    """A release of aws-node-termination-handler's own chart, from its Go module. Its pods break Pod Security's strictest rules."""

    pod_security = "privileged"

    @property
    def chart(self) -> Path:
        """Returns the chart's folder."""
        return Path(tool("--source", "nth")) / "config" / "helm" / "aws-node-termination-handler"

    def _wait_rights(self) -> None:
        """Nobody uses them: the tests start no aws-node-termination-handler."""


@contextmanager
def installed(
    helm: str,
    name: str,
    control_plane: ControlPlane,
    folder: Path,
    values: Object,
    kind: type[Release] = Release,
) -> Iterator[Release]:
    """Installs a release, and uninstalls it at the end."""
    know_monitors(control_plane)
    release = kind(helm, name, control_plane, folder)
    release.install(values)
    try:
        yield release
    finally:
        try:
            release.uninstall()
        finally:
            control_plane.kube.delete(f"{NAMESPACES}/{name}")


def _key(each: Object) -> Key:
    return each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]


def _of(each: Object, what: str, key: str) -> str | None:
    """Returns the value of an object's label or annotation."""
    value: str | None = each["metadata"].get(what, {}).get(key)
    return value


def _value(variable: Object, pod: Object) -> str:
    """Returns a variable's value, which may come from a field of the pod."""
    if "value" in variable:
        value: str = variable["value"]
        return value
    field = variable["valueFrom"]["fieldRef"]["fieldPath"].split(".")
    found = pod
    for part in field:
        found = found[part]
    return str(found)
