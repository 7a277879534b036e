"""One test's world: a queue, a namespace, nodes with their instances, hooks, the service. Worlds share no object."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from . import manifests, roles
from .audit import Audit
from .aws import Aws
from .control_plane import SERVICE, ControlPlane
from .helm import Release
from .hooks import LAUNCHING, TERMINATING, Action
from .kube import NAMESPACES, NODES, PRIORITY_CLASSES, Kube, Object
from .messages import Event
from .queues import Backlog, Queues
from .recorder import COMPLETE, HEARTBEAT, RECEIVE, Recorder
from .service import Service, environment
from .wait import WITHIN, eventually

MARK = "ebbtide/"
"""Prefix of the labels and annotations that the service leaves on a Node."""

NOTICE = f"{MARK}notice."
"""Prefix of the service's annotations for notices, one for each notice."""


@dataclass(frozen=True)
class Node:
    """A node and its instance."""

    name: str
    instance: str


class World:
    """The objects that a test creates, changes and reads."""

    def __init__(
        self, name: str, control_plane: ControlPlane, aws: Aws, binary: Path, folder: Path, queues: Queues | None = None
    ) -> None:
        """`queues` has the world's queue if moto does not."""
        self.name = name
        self.control_plane = control_plane
        self.kube = control_plane.kube
        self.aws = aws
        self.folder = folder
        self.queues = queues or aws
        self.recorder = Recorder(aws.address, self.queues.address)
        # Spot warnings are true.
        self.recorder.interrupted = lambda: [node.instance for node in self.nodes]
        self.audit = Audit(control_plane.audit_log)
        self.queue = self.queues.queue(name)
        self.nodes: list[Node] = []
        self.refused_by = ""
        """Part of the reason with which the API server may forbid the service a call."""
        self.services: list[Service] = []
        self.leases: list[str] = []
        """Paths of the test's Leases among those of the nodes."""
        self._priority_classes: list[str] = []
        self.binary = binary
        self.parameters: dict[str, str] = {}
        """Parameters of deploy/aws that grant the service's role what the test needs."""
        self._groups = 0
        self.kube.create(NAMESPACES, {"metadata": {"name": name}})
        account = f"{NAMESPACES}/{name}/serviceaccounts/default"
        eventually("the namespace can have pods", lambda: self.kube.find(account))

    def close(self) -> None:
        """Stops the services and deletes the test's objects. The namespace empties later.

        Budgets and Leases go at once: the next test's doctor would report the budgets, and its service would collect
        leaked Leases.
        """
        with ExitStack() as stack:
            stack.callback(self.recorder.stop)
            stack.callback(self.kube.delete, f"{NAMESPACES}/{self.name}")
            stack.callback(self.kube.delete, self._budgets())
            for lease in self.leases:
                stack.callback(self.kube.delete, lease)
            for priority_class in self._priority_classes:
                stack.callback(self.kube.delete, f"{PRIORITY_CLASSES}/{priority_class}")
            for node in self.nodes:
                stack.callback(self.kube.delete, f"{NODES}/{node.name}")
            for service in self.services:
                stack.callback(service.kill)  # other tests cover a graceful end

    @property
    def queue_url(self) -> str:
        """Returns the queue's URL at the recorder, for the service."""
        return f"{self.recorder.url}/{self.queue.split('/', 3)[3]}"

    # What a test creates and changes.

    def service(self, *flags: str) -> Service:
        """Starts the service on this world's queue and waits until it is ready. It has no limit unless the flags set one."""
        limits = () if any(flag.startswith(("--max-draining", "--verify")) for flag in flags) else ("--max-draining=none",)
        return self._service(self.control_plane.kubeconfig, (*limits, *flags), None)

    def service_without_queue(self, *flags: str) -> Service:
        """Starts the service on what Nodes say, with the rights for that, and waits until it is ready."""
        return self.service_on("nodes", *flags)

    def service_on(self, source: str, *flags: str) -> Service:
        """Starts the service on these sources, with the rights for what Nodes say, and waits until it is ready."""
        roles.grant_nodes(self.kube, SERVICE, self.name)
        return self.service(f"--source={source}", "--pod-namespace", self.name, "--pod-name", "a", *flags)

    def installed_service(
        self, release: Release, kube: Kube | None = None, given: dict[str, str] | None = None
    ) -> Service:
        """Starts the service like a pod of a release: its arguments, its token, its variables but for those `given`."""
        kubeconfig = self.control_plane.kubeconfig_of(release.name, kube or self.kube, release.token())
        return self._service(kubeconfig, release.arguments(), release.variables() | (given or {}))

    def service_with(self, variables: dict[str, str]) -> Service:
        """Starts the service with variables that name its queue and its endpoint for AWS."""
        return self._service(self.control_plane.kubeconfig, [], variables, "")

    def _service(
        self, kubeconfig: Path, flags: Sequence[str], variables: dict[str, str] | None, endpoint: str | None = None
    ) -> Service:
        if variables:
            self.allow_doctor()  # for the start-up checks
        name = f"ebbtide-{len(self.services) + 1}"
        endpoint = self.recorder.url if endpoint is None else endpoint
        service = Service(name, self.binary, self.queue_url, endpoint, kubeconfig, self.folder, flags, variables)
        self.services.append(service)
        service.wait_ready()
        return service

    def checked_service(self, start: Callable[[], Service], well: Callable[[dict[str, float]], bool]) -> Service:
        """Returns a service whose start-up checks passed. On a busy machine checks may fail, so this starts several."""
        self.allow_doctor()

        def checked() -> Service:
            service = start()
            counts = eventually("the start-up checks are counted", service.checks)
            if not well(counts):
                service.kill()
                raise AssertionError(f"start-up checks: {counts}")
            return service

        return eventually("the start-up checks pass", checked)

    def allow_doctor(self) -> None:
        """Grants the role the permissions of the doctor, which checks at the start of the service, and of `simulate`."""
        self.parameters["DoctorPermissions"] = "true"

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs another of the program's commands to its end, with the service's permissions in the cluster."""
        return self._ask(self.control_plane.kubeconfig, {}, arguments)

    def ask_with(self, variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command like `ask`, with variables."""
        return self._ask(self.control_plane.kubeconfig, variables, arguments)

    def execute(self, release: Release, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command as `kubectl exec` does in a pod of a release: its variables and token, but no arguments."""
        kubeconfig = self.control_plane.kubeconfig_of(release.name, self.kube, release.token())
        return self._ask(kubeconfig, release.variables(), arguments)

    def _ask(
        self, kubeconfig: Path, variables: dict[str, str], arguments: Sequence[str]
    ) -> subprocess.CompletedProcess[str]:
        if arguments[0] in ("doctor", "simulate"):
            self.allow_doctor()
        return subprocess.run(
            [str(self.binary), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(self.recorder.url, kubeconfig, self.folder) | variables,
            timeout=WITHIN,
            check=False,
        )

    def node(self) -> Node:
        """Adds a Ready node of this cluster."""
        return self.join(self.aws.instance())

    def several_nodes(self, count: int, labels: Callable[[int], dict[str, str]] = lambda _: {}) -> list[Node]:
        """Adds this number of Ready nodes of this cluster, all at once; the n-th, from 0, with the labels of n."""
        nodes = [self.register(self.aws.instance(), labels=labels(n)) for n in range(count)]
        for node in nodes:
            self.wait_ready(node)
        return nodes

    def join(self, instance: str) -> Node:
        """Registers an instance's node, and makes it Ready."""
        node = self.register(instance)
        self.wait_ready(node)
        return node

    def register(
        self, instance: str, *, kubelet: bool = True, taint: str | None = None, labels: dict[str, str] | None = None
    ) -> Node:
        """Registers an instance's node, with a taint and labels. Without a kubelet, `say_ready` sets its condition."""
        node = Node(f"{self.name}-{len(self.nodes) + 1}", instance)
        self.nodes.append(node)
        made = manifests.node(self.name, node.name, instance, kubelet=kubelet, taint=taint, labels=labels)
        self.kube.create(NODES, made)
        return node

    def wait_ready(self, node: Node) -> None:
        """Waits until a node's kubelet says that it is Ready, and the controllers have seen it."""
        eventually(f"node {node.name} is Ready", lambda: _ready(self.see(node)))

    def say_ready(self, node: Node, ready: bool) -> None:
        """Sets the Ready condition of a node without a kubelet."""
        self.kube.patch(f"{NODES}/{node.name}/status", manifests.node_status(ready))

    def say(self, node: Node, kind: str, status: str) -> None:
        """Sets another condition of a node, as an agent that monitors it does."""
        conditions = [each for each in self.see(node)["status"]["conditions"] if each["type"] != kind]
        status_now = {"conditions": [*conditions, manifests.condition(kind, status)]}
        self.kube.patch(f"{NODES}/{node.name}/status", {"status": status_now})

    def annotate(self, node: Node, annotation: str, value: str) -> None:
        """Annotates a Node."""
        self.kube.patch(f"{NODES}/{node.name}", {"metadata": {"annotations": {annotation: value}}})

    def label(self, node: Node, label: str, value: str) -> None:
        """Labels a Node."""
        self.kube.patch(f"{NODES}/{node.name}", {"metadata": {"labels": {label: value}}})

    def untaint(self, node: Node) -> None:
        """Removes all taints from a Node."""
        self.kube.patch(f"{NODES}/{node.name}", {"spec": {"taints": None}})

    def run(
        self,
        app: str,
        replicas: int = 1,
        stops_after: float = 0.2,
        on: Node | None = None,
        grace: int = manifests.GRACE,
        empty_dir: bool = False,
        priority_class: str | None = None,
    ) -> None:
        """Runs an app's pods on all nodes, or on one of them, and waits until they run."""
        body = manifests.deployment(app, replicas, self._where(on), stops_after, grace, empty_dir, priority_class)
        self.kube.create(self.apps_path("deployments"), body)
        self.wait_running(app, replicas)

    def priority_class(self, value: int) -> str:
        """Creates a priority class, which the end of the test deletes; returns its name."""
        name = f"{self.name}-{value}"
        self.kube.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})
        self._priority_classes.append(name)
        return name

    def run_daemons(self, app: str, expected: int, empty_dir: bool = False) -> None:
        """Runs a DaemonSet, and waits until this number of its pods run."""
        self.kube.create(self.apps_path("daemonsets"), manifests.daemon_set(app, self._where(None), empty_dir))
        self.wait_running(app, expected)

    def run_stateful(self, app: str, on: Node | None = None) -> None:
        """Runs a StatefulSet of one pod, app-0, on all nodes or on one of them, and waits until it runs."""
        self.kube.create(self.apps_path("statefulsets"), manifests.stateful_set(app, self._where(on)))
        self.wait_running(app, 1)

    def run_pod(
        self,
        name: str,
        on: Node,
        *,
        owner: Object | None = None,
        controlled: bool = True,
        empty_dir: bool = False,
        annotations: dict[str, str] | None = None,
        phase: str = "Running",
    ) -> None:
        """Runs a pod without a controller, with any owner reference, and waits until it is in that phase."""
        body = manifests.pod(name, on.name, owner, controlled, empty_dir, annotations or {})
        self.kube.create(self.pods_path(), body)
        self.wait_running(name, 1)
        if phase != "Running":
            self.kube.patch(f"{self.pods_path(name)}/status", {"status": {"phase": phase}})

    def wait_running(self, app: str, expected: int) -> None:
        """Waits until this number of an app's pods run, without terminating ones."""
        eventually(f"{expected} pods of {app} run", lambda: self._running(app) == expected)

    def close_budget(self, app: str) -> None:
        """Adds a budget that forbids evictions of an app, and waits until the budget is counted."""
        self.kube.create(self._budgets(), manifests.closed_budget(app))
        eventually(f"the budget of {app} counts its pods", lambda: self._budget_counts(app))

    def open_budget(self, app: str) -> None:
        """Deletes the budget of `close_budget`."""
        self.kube.delete(f"{self._budgets()}/{manifests.budget(app)}")

    def hold(self, instance: str, heartbeat_timeout: int, hook: str = "drain", *, launching: bool = False) -> Action:
        """Starts a new group's hook on an instance. Send its message at once, because its timeout runs."""
        self._groups += 1
        transition = LAUNCHING if launching else TERMINATING
        made = self.aws.hook(f"{self.name}-{self._groups}", hook, heartbeat_timeout, transition)
        return self.recorder.actions.begin(made, instance)

    def dead_letters(self, max_receives: int) -> str:
        """Creates a dead-letter queue with this maximum of receives; returns its URL."""
        return self.queues.dead_letters(self.queue, f"{self.name}-dead", max_receives)

    def lease(self, path: str, name: str, spec: Object, owners: Sequence[Object] = ()) -> str:
        """Creates a Lease, which the end of the test deletes; returns its path."""
        self.kube.create(path, {"metadata": {"name": name, "ownerReferences": list(owners)}, "spec": spec})
        made = f"{path}/{name}"
        self.leases.append(made)
        return made

    def send(self, *messages: Event | str) -> None:
        """Sends messages to the queue, in order."""
        for message in messages:
            self.queues.send(self.queue, message)

    # What a test reads.

    def see(self, node: Node) -> Object:
        """Returns the Node as it is now."""
        return self.kube.get(f"{NODES}/{node.name}")

    def pods(self, node: Node) -> list[Object]:
        """Returns the pods on a node, including terminating ones."""
        return self.kube.items("/api/v1/pods", fields=f"spec.nodeName={node.name}")

    def pods_of(self, app: str) -> list[Object]:
        """Returns the pods of an app, including terminating ones."""
        return self.kube.items(self.pods_path(), labels=f"app={app}")

    def disrupted(self, pod: str, since: str) -> Object:
        """Returns the condition DisruptionTarget with which a pod of the namespace went, after a version."""
        conditions = self.kube.last_state(self.pods_path(), pod, since)["status"]["conditions"]
        (found,) = (each for each in conditions if each["type"] == "DisruptionTarget")
        condition: Object = found
        return condition

    def apps(self, node: Node) -> list[str]:
        """Returns the apps of the pods on a node, one entry for each pod."""
        return sorted(pod["metadata"]["labels"]["app"] for pod in self.pods(node))

    def cordoned_with_notice(self, node: Node) -> bool:
        """Returns whether a node is cordoned and carries the annotation of at least one notice."""
        return cordoned(self.see(node)) and bool(self.notices(node))

    def taints(self, node: Node) -> set[str]:
        """Returns the keys of a Node's taints."""
        return {taint["key"] for taint in self.see(node)["spec"].get("taints", [])}

    def notices(self, node: Node) -> list[Object]:
        """Returns the notices that hold a Node."""
        return notices(self.see(node))

    def handled(self, node: Node) -> bool:
        """Returns whether a Node notes that a notice needs nothing any more."""
        return any(record.get("work") in {"ended", "handled"} for record in records(self.see(node)))

    def events(self, kind: str, name: str) -> list[Object]:
        """Returns the Events about a Node, or an object of the namespace."""
        namespace = "" if kind == "Node" else self.name
        fields = {"kind": kind, "name": name, "namespace": namespace}
        selector = ",".join(f"involvedObject.{field}={value}" for field, value in fields.items())
        return self.kube.items("/api/v1/events", fields=selector)

    def backlog(self) -> Backlog:
        """Returns the numbers of messages in the queue now."""
        return self.queues.backlog(self.queue)

    def acknowledged(self) -> bool:
        """Returns whether every message was deleted."""
        backlog = self.backlog()
        assert backlog.empty, f"the queue holds messages: {backlog}"
        return True

    def deliveries(self) -> int:
        """Returns the number of messages received, with repeated receives."""
        return sum(call.messages for call in self.recorder.calls(RECEIVE))

    def completions(self, action: Action) -> list[str]:
        """Returns the results of the accepted completions of this action."""
        calls = self.recorder.of_token(COMPLETE, action.token)
        return [call.asked["LifecycleActionResult"] for call in calls if call.status == 200]

    def heartbeats(self, action: Action) -> list[float]:
        """Returns the times of the heartbeats for this action."""
        return [call.at for call in self.recorder.of_token(HEARTBEAT, action.token)]

    # Paths of the API server.

    def apps_path(self, resource: str) -> str:
        """Returns the path of the namespace's Deployments or similar resources."""
        return f"/apis/apps/v1/namespaces/{self.name}/{resource}"

    def pods_path(self, name: str = "") -> str:
        """Returns the path of the namespace's pods, or of one of them."""
        return f"/api/v1/namespaces/{self.name}/pods/{name}".rstrip("/")

    def _where(self, on: Node | None) -> dict[str, str]:
        return {"kubernetes.io/hostname": on.name} if on else {manifests.WORLD: self.name}

    def _running(self, app: str) -> int:
        stay = [pod for pod in self.pods_of(app) if "deletionTimestamp" not in pod["metadata"]]
        return sum(pod["status"].get("phase") == "Running" for pod in stay)

    def _budgets(self) -> str:
        return f"/apis/policy/v1/namespaces/{self.name}/poddisruptionbudgets"

    def _budget_counts(self, app: str) -> bool:
        budget = self.kube.get(f"{self._budgets()}/{manifests.budget(app)}")
        status = budget.get("status", {})
        counted = status.get("observedGeneration") == budget["metadata"]["generation"]
        return bool(counted and status["expectedPods"] and status["disruptionsAllowed"] == 0)


def cordoned(node: Object) -> bool:
    """Returns whether a Node is unschedulable."""
    return bool(node["spec"].get("unschedulable"))


def marks(node: Object) -> list[str]:
    """Returns the service's labels and annotations on a Node."""
    meta = node["metadata"]
    return sorted(key for key in [*meta.get("labels", {}), *meta.get("annotations", {})] if key.startswith(MARK))


def notices(node: Object) -> list[Object]:
    """Returns the notices that hold a Node."""
    return [record for record in records(node) if record.get("work") in {None, "ended"}]


def records(node: Object) -> list[Object]:
    """Returns the records of notices in a Node's annotations, in whatever state."""
    annotations = node["metadata"].get("annotations", {})
    return [json.loads(value) for key, value in annotations.items() if key.startswith(NOTICE)]


def drained(world: World, node: Node, stay: Sequence[str] = ()) -> bool:
    """Returns whether a node is cordoned with a notice, and has only pods of the apps in `stay`."""
    assert world.cordoned_with_notice(node), f"{node.name} is not cordoned with a notice"
    apps = world.apps(node)
    assert apps == sorted(stay), f"pods on {node.name}: {apps}, not {sorted(stay)}"
    return True


def _ready(node: Object) -> bool:
    conditions = {each["type"]: each["status"] for each in node.get("status", {}).get("conditions", [])}
    # A service that waits for this node cordons it at once, which adds a taint.
    own = {"node.kubernetes.io/unschedulable"}
    taints = {each["key"] for each in node["spec"].get("taints", [])} - own
    return conditions.get("Ready") == "True" and not taints
