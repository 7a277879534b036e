"""One test's world: a queue, a namespace, nodes with their instances, hooks, the service. No two share an object."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from . import manifests
from .audit import Audit
from .aws import Aws, Backlog
from .control_plane import ControlPlane
from .hooks import Action
from .kube import NAMESPACES, NODES, Object
from .messages import Event
from .recorder import COMPLETE, HEARTBEAT, RECEIVE, Recorder
from .service import Service
from .wait import eventually

NOTICE = "ebbtide/notice."
"""How the annotations begin that the service leaves on a Node, one for each notice."""


@dataclass(frozen=True)
class Node:
    """A node and its instance."""

    name: str
    instance: str


class World:
    """What a test acts on and looks at."""

    def __init__(self, name: str, control_plane: ControlPlane, aws: Aws, binary: Path, folder: Path) -> None:
        self.name = name
        self.control_plane = control_plane
        self.kube = control_plane.kube
        self.aws = aws
        self.folder = folder
        self.recorder = Recorder(aws.address)
        self.audit = Audit(control_plane.audit_log)
        self.queue = aws.queue(name)
        self.nodes: list[Node] = []
        self.services: list[Service] = []
        self._binary = binary
        self._groups = 0
        self.kube.create(NAMESPACES, {"metadata": {"name": name}})
        account = f"{NAMESPACES}/{name}/serviceaccounts/default"
        eventually("the namespace can have pods", lambda: self.kube.find(account))

    def close(self) -> None:
        """Ends the services and removes what the test made; the namespace empties in its own time."""
        with ExitStack() as stack:
            stack.callback(self.recorder.stop)
            stack.callback(self.kube.delete, f"{NAMESPACES}/{self.name}")
            for node in self.nodes:
                stack.callback(self.kube.delete, f"{NODES}/{node.name}")
            for service in self.services:
                stack.callback(service.kill)  # how it ends politely is a test of its own

    # What a test makes.

    def service(self, *flags: str) -> Service:
        """Starts the service on this world's queue and waits until it is ready."""
        name = f"ebbtide-{len(self.services) + 1}"
        queue_url = f"{self.recorder.url}/{self.queue.split('/', 3)[3]}"
        kubeconfig = self.control_plane.kubeconfig
        service = Service(name, self._binary, queue_url, self.recorder.url, kubeconfig, self.folder, flags)
        self.services.append(service)
        service.wait_ready()
        return service

    def node(self) -> Node:
        """Adds a node of ours, Ready."""
        return self.join(self.aws.instance())

    def join(self, instance: str) -> Node:
        """An instance's node registers."""
        node = Node(f"{self.name}-{len(self.nodes) + 1}", instance)
        self.nodes.append(node)
        self.kube.create(NODES, manifests.node(self.name, node.name, instance))
        eventually(f"node {node.name} is Ready", lambda: _ready(self.see(node)), within=120)
        return node

    def run(self, app: str, replicas: int = 1, stops_after: float = 0.2, on: Node | None = None) -> None:
        """Runs an app's pods on the nodes there are, or on one of them, and waits until they run."""
        where = {"kubernetes.io/hostname": on.name} if on else {manifests.WORLD: self.name}
        body = manifests.deployment(app, replicas, where, stops_after)
        self.kube.create(f"/apis/apps/v1/namespaces/{self.name}/deployments", body)
        self.wait_running(app, replicas)

    def run_daemons(self, app: str, expected: int) -> None:
        """Runs a DaemonSet, and waits until so many of its pods run."""
        where = {manifests.WORLD: self.name}
        self.kube.create(f"/apis/apps/v1/namespaces/{self.name}/daemonsets", manifests.daemon_set(app, where))
        self.wait_running(app, expected)

    def wait_running(self, app: str, expected: int) -> None:
        """Waits until so many pods of an app run, terminating ones not counted."""
        eventually(f"{expected} pods of {app} run", lambda: self._running(app) == expected)

    def close_budget(self, app: str) -> None:
        """Lets no pod of an app be evicted, once the budget counts."""
        self.kube.create(self._budgets(), manifests.closed_budget(app))
        eventually(f"the budget of {app} counts its pods", lambda: self._budget_counts(app))

    def open_budget(self, app: str) -> None:
        """Lets them be evicted again."""
        self.kube.delete(f"{self._budgets()}/{app}")

    def hold(self, instance: str, heartbeat_timeout: int, hook: str = "drain") -> Action:
        """A new group's terminating hook begins to hold an instance: its time runs, so send its message at once."""
        self._groups += 1
        made = self.aws.hook(f"{self.name}-{self._groups}", hook, heartbeat_timeout)
        return self.recorder.actions.begin(made, instance)

    def send(self, *messages: Event | str) -> None:
        """Sends messages to the queue, in order."""
        for message in messages:
            self.aws.send(self.queue, message)

    # What a test looks at.

    def see(self, node: Node) -> Object:
        """The Node as it is now."""
        return self.kube.get(f"{NODES}/{node.name}")

    def pods(self, node: Node) -> list[Object]:
        """The pods on a node, terminating ones too."""
        return self.kube.items("/api/v1/pods", fields=f"spec.nodeName={node.name}")

    def apps(self, node: Node) -> list[str]:
        """The apps whose pods are on a node, one entry for each pod."""
        return sorted(pod["metadata"]["labels"]["app"] for pod in self.pods(node))

    def cordoned_with_notice(self, node: Node) -> bool:
        """Whether a node is cordoned and carries the annotation of at least one notice."""
        seen = self.see(node)
        annotations = seen["metadata"].get("annotations", {})
        return bool(seen["spec"].get("unschedulable")) and any(key.startswith(NOTICE) for key in annotations)

    def backlog(self) -> Backlog:
        """What the queue holds now."""
        return self.aws.backlog(self.queue)

    def acknowledged(self) -> bool:
        """Whether every message was deleted."""
        backlog = self.backlog()
        assert backlog.empty, f"the queue holds messages: {backlog}"
        return True

    def deliveries(self) -> int:
        """How many messages were received, each as often as it was."""
        return sum(call.messages for call in self.recorder.calls(RECEIVE))

    def completions(self, action: Action) -> list[str]:
        """The results with which a completion of this action was accepted."""
        calls = self.recorder.of_token(COMPLETE, action.token)
        return [call.asked["LifecycleActionResult"] for call in calls if call.status == 200]

    def heartbeats(self, action: Action) -> list[float]:
        """When heartbeats for this action came."""
        return [call.at for call in self.recorder.of_token(HEARTBEAT, action.token)]

    def _running(self, app: str) -> int:
        pods = self.kube.items(f"/api/v1/namespaces/{self.name}/pods", labels=f"app={app}")
        stay = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return sum(pod["status"].get("phase") == "Running" for pod in stay)

    def _budgets(self) -> str:
        return f"/apis/policy/v1/namespaces/{self.name}/poddisruptionbudgets"

    def _budget_counts(self, app: str) -> bool:
        budget = self.kube.get(f"{self._budgets()}/{app}")
        status = budget.get("status", {})
        counted = status.get("observedGeneration") == budget["metadata"]["generation"]
        return bool(counted and status["expectedPods"] and status["disruptionsAllowed"] == 0)


def drained(world: World, node: Node, stay: Sequence[str] = ()) -> bool:
    """Whether a node is cordoned with a notice and only pods of the apps that stay are on it."""
    assert world.cordoned_with_notice(node), f"{node.name} is not cordoned with a notice"
    apps = world.apps(node)
    assert apps == sorted(stay), f"pods on {node.name}: {apps}, not {sorted(stay)}"
    return True


def _ready(node: Object) -> bool:
    conditions = {each["type"]: each["status"] for each in node.get("status", {}).get("conditions", [])}
    # A service that waited for this very node cordons it at once: that taint is its work, not the node's state.
    own = {"node.kubernetes.io/unschedulable"}
    taints = {each["key"] for each in node["spec"].get("taints", [])} - own
    return conditions.get("Ready") == "True" and not taints
