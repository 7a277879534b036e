"""A cluster of kind: real kubelets and containers. Its workers play moto's instances. Never run yet: on-kind."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode
from contextlib import AbstractContextManager
from pathlib import Path

from . import manifests, roles
from .control_plane import SERVICE, ControlPlane
from .kube import NODES, Kube, Object
from .kubectl import Kubectl
from .trial import TrialAws
from .world import Node, World


def connect(kubeconfig: Path, kubectl: Path, folder: Path) -> ControlPlane:
    """Returns a running cluster as the tests see one: with tokens for its administrator and for the service."""
    program = Kubectl(kubectl, kubeconfig, folder)
    config = json.loads(program.output("config", "view", "--raw", "--minify", "--flatten", "--output", "json"))
    server = config["clusters"][0]["cluster"]
    authority = folder / "authority.pem"
    authority.write_bytes(b64decode(server["certificate-authority-data"]))

    def token(account: str) -> str:
        program.output("create", "serviceaccount", account, "--namespace", "default")
        return program.output("create", "token", account, "--namespace", "default", "--duration", "4h").strip()

    kube = Kube(server["server"], authority, token("admin"))
    everything = ("--clusterrole=cluster-admin", "--serviceaccount=default:admin")
    program.output("create", "clusterrolebinding", "tests", *everything)
    audit = folder / "audit.log"
    audit.touch()  # kind's API server writes none

    def another(_: str) -> AbstractContextManager[Kube]:
        raise NotImplementedError

    made = ControlPlane(kube, program, folder / "service.kubeconfig", audit, [], another)
    roles.grant(kube, f"system:serviceaccount:default:{SERVICE}")
    made.kubeconfig_of("service", kube, token(SERVICE))
    return made


class KindWorld(World):
    """A world whose nodes are kind's workers. An instance that ends takes its worker along."""

    def register(
        self, instance: str, *, kubelet: bool = True, taint: str | None = None, labels: dict[str, str] | None = None
    ) -> Node:
        """Gives an instance to a worker that has none."""
        workers = self.kube.items(NODES, labels="!node-role.kubernetes.io/control-plane")
        worker = min((each for each in workers if _is_free(each)), key=lambda each: str(each["metadata"]["name"]))
        node = Node(worker["metadata"]["name"], instance)
        self.nodes.append(node)
        # A provider ID can't be changed. The kubelet takes the new Node for its own; its pods stay.
        self.kube.delete(f"{NODES}/{node.name}")
        meta = {key: worker["metadata"].get(key, {}) for key in ("name", "labels", "annotations")}
        made = manifests.node(self.name, node.name, instance)["metadata"]["labels"]
        spec = {key: worker["spec"][key] for key in ("podCIDR", "podCIDRs") if key in worker["spec"]}
        spec["providerID"] = manifests.node(self.name, node.name, instance)["spec"]["providerID"]
        self.kube.create(NODES, {"metadata": meta | {"labels": meta["labels"] | made}, "spec": spec})
        return node


class KindAws(TrialAws):
    """AWS for a trial on kind."""

    def leave(self, node: Node) -> None:
        """Stops a worker's container, as the machine of an instance that ends."""
        subprocess.run(["docker", "stop", "--time", "0", node.name], check=True, capture_output=True)
        super().leave(node)


def _is_free(worker: Object) -> bool:
    return not str(worker["spec"].get("providerID", "")).startswith("aws:")
