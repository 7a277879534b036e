"""Nodes of terminated instances are deleted, with the chart's rights and policy: without a cloud controller, they stay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from harness import manifests, roles
from harness.control_plane import SERVICE
from harness.kube import NODES, Object
from harness.service import Service
from harness.wait import always, eventually
from harness.world import Node, World, cordoned
from test_service_policy import VALUES, bound, objects

ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
TAINT = "node.kubernetes.io/out-of-service"
UNKNOWN_TO_EC2 = "i-0123456789abcdef0"

BEGINS = 600 + 90
"""Seconds until a replica that has its turn deletes a Node whose end EC2 has confirmed, and the next scan."""


def silent(minutes: float) -> Object:
    """Returns the status of a Node whose kubelet has been silent for this time, as the node lifecycle controller writes it."""
    since = (datetime.now(UTC) - timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = manifests.condition("Ready", "Unknown", "NodeStatusUnknown") | {"lastHeartbeatTime": since, "lastTransitionTime": since}
    return {"status": {"conditions": [ready]}}


def falls_silent(world: World, instance: str, minutes: float = 90) -> Node:
    """Registers a Node of an instance, whose kubelet is silent."""
    node = world.register(instance, kubelet=False)
    world.kube.patch(f"{NODES}/{node.name}/status", silent(minutes))
    return node


def terminated(world: World) -> str:
    """Returns an instance that EC2 shows as terminated."""
    instance = world.aws.instance()
    world.aws.terminate_instance(instance)
    return instance


def is_there(world: World, node: Node) -> bool:
    """Returns whether the Node exists."""
    return world.kube.find(f"{NODES}/{node.name}") is not None


def collected(service: Service) -> float:
    """Returns the number of deleted Nodes in the service's metrics."""
    return sum(value for _, value in service.samples("ebbtide_nodes_collected_total"))


def attach(world: World, node: Node) -> str:
    """Attaches a volume to a Node, as the attach-detach controller does; returns the attachment's path."""
    name = f"{world.name}-db"
    spec = {"attacher": "ebs.csi.aws.com", "nodeName": node.name, "source": {"persistentVolumeName": name}}
    world.kube.create(ATTACHMENTS, {"metadata": {"name": name}, "spec": spec})
    attached = [{"name": "kubernetes.io/csi/ebs.csi.aws.com^vol-1", "devicePath": ""}]
    world.kube.patch(f"{NODES}/{node.name}/status", {"status": {"volumesAttached": attached}})
    return f"{ATTACHMENTS}/{name}"


@pytest.mark.slow
def test_the_node_of_a_terminated_instance_is_deleted_once_its_volumes_are_detached(world: World) -> None:
    healthy = world.node()
    stopped = world.aws.instance()
    world.aws.stop_instance(stopped)
    ignored, gone = falls_silent(world, terminated(world)), falls_silent(world, terminated(world))
    world.annotate(ignored, "ebbtide/ignore", "true")
    # EC2 may know the instance of a young Node a second later.
    stay = [healthy, ignored, falls_silent(world, stopped), falls_silent(world, UNKNOWN_TO_EC2)]
    attachment = attach(world, gone)
    roles.grant_collector(world.kube, SERVICE, world.name)
    values = VALUES.replace("{taint", "{collectNodes: true, taint")
    with roles.deleting_nodes(world.kube, SERVICE), bound(world, healthy, objects(world, values)):
        flags = ("--taint", "going=soon:NoSchedule", "--pod-namespace", world.name, "--pod-name", "ebbtide-0")
        service = world.service("--collect-nodes", *flags)
        eventually("the Node has the taint", lambda: TAINT in world.taints(gone), within=BEGINS)
        assert cordoned(world.see(gone))
        world.kube.delete(attachment)
        eventually("the Node is deleted", lambda: not is_there(world, gone), within=90)
        always("the others stay", lambda: all(is_there(world, node) for node in stay), during=65)
        assert collected(service) == 1
        (deletion,) = (call for call in world.audit.requests() if (call.verb, call.resource, call.user) == ("delete", "nodes", SERVICE))
        assert (deletion.name, deletion.status, bool(deletion.uid)) == (gone.name, 200, True)
        eventually("the service is at rest", service.at_rest)
        service.terminate()
