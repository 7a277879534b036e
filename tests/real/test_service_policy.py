"""What the service's own token can write: the chart's policies refuse the rest, and cost no drain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from harness import admission, chart, manifests, messages, roles
from harness.control_plane import SERVICE
from harness.kube import NODES, Kube, Object
from harness.wait import eventually
from harness.world import Node, World, cordoned, drained, marks

BOUNDS = "the service of Ebbtide may"
"""What each refusal says."""

LEFT = 24
"""Seconds from a spot warning to the instance's end, where a pod is deleted or a cordon forgone."""

EXCLUDE = "node.kubernetes.io/exclude-from-external-load-balancers"
QUARANTINE = {"key": "quarantine", "value": "ir", "effect": "NoSchedule"}
TAINT = {"key": "going", "value": "soon", "effect": "NoSchedule"}
VALUES = "settings: {taint: ['going=soon:NoSchedule'], formerTaint: [once]}\n"


def refused(kube: Kube, path: str, body: Object) -> str:
    """Returns the API server's reason for refusing a patch; empty if it is accepted."""
    try:
        kube.patch(path, body)
    except AssertionError as error:
        if ": 403 " not in str(error):
            raise
        return str(error)
    return ""


def objects(world: World, values: str) -> list[Object]:
    """Returns the chart's policies about the service, with these values, as policies about the user of the service under test."""
    file = world.folder / "policy.yaml"
    file.write_text("queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide\n" + values)
    made = chart.rendered(file, world.name, world.name)
    ours = [each for each in made if each["metadata"].get("labels", {}).get("ebbtide/policy", "").startswith("service")]
    assert len(ours) == (6 if "surge" in values else 4)
    renamed: list[Object] = json.loads(re.sub(r"system:serviceaccount:[^']*", SERVICE, json.dumps(ours)))
    return renamed


@contextmanager
def bound(world: World, node: Node, made: list[Object]) -> Iterator[Kube]:
    """Puts policies in force; yields a client with the service's token."""
    stolen = world.kube.impersonating(SERVICE, "system:authenticated")
    with admission.policies(world.kube, made):
        foreign = {"metadata": {"labels": {"example.com/x": ""}}}
        eventually("the policy holds", lambda: BOUNDS in refused(stolen, f"{NODES}/{node.name}?dryRun=All", foreign))
        yield stolen


@pytest.mark.versions
def test_a_stolen_token_changes_nothing_of_others(world: World) -> None:
    node = world.node()
    own = f"{NODES}/{node.name}"
    world.run_pod("victim", node)
    pod = f"{world.pods_path('victim')}/status"
    world.kube.patch(own, {"spec": {"taints": [QUARANTINE]}, "metadata": {"labels": {"tier": "1"}, "annotations": {"a/b": "c"}}})
    conditions = world.see(node)["status"]["conditions"]
    not_ready = [each | ({"status": "False"} if each["type"] == "Ready" else {}) for each in conditions]

    with bound(world, node, objects(world, VALUES)) as stolen:
        eventually("the policy for pods holds", lambda: BOUNDS in refused(stolen, f"{pod}?dryRun=All", {"status": {"phase": "Failed"}}))
        of_node: list[Object] = [
            *(
                {"spec": {"taints": taints}}
                for taints in (
                    [QUARANTINE, {"key": "evict", "effect": "NoExecute"}],
                    # A key of the settings, but not their taint; and one that they don't set.
                    [QUARANTINE, TAINT | {"effect": "NoExecute"}],
                    [QUARANTINE, TAINT | {"value": "other"}],
                    [QUARANTINE, {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}],
                    [QUARANTINE, {"key": "ebbtide/x", "effect": "NoExecute"}],
                    [QUARANTINE, {"key": "once", "effect": "NoSchedule"}],
                    [QUARANTINE | {"value": "none"}],
                    [],
                    None,
                )
            ),
            *({"metadata": {"labels": labels}} for labels in ({"pool": "mine"}, {"tier": "2"}, {"tier": None})),
            *({"metadata": {"annotations": each}} for each in ({"x/y": ""}, {"a/b": "d"}, {"a/b": None})),
            {"metadata": {"finalizers": ["example.com/x"]}},
        ]
        # A cordon with it, as in the service's own patches, makes no difference.
        for body in [*of_node, *(body | {"spec": {"unschedulable": True} | body.get("spec", {})} for body in of_node)]:
            assert BOUNDS in refused(stolen, own, body), body
        for status in (
            {"addresses": [{"type": "InternalIP", "address": "10.6.6.6"}]},
            {"daemonEndpoints": {"kubeletEndpoint": {"Port": 6666}}},
            {"capacity": {"cpu": "1000"}},
            {"allocatable": {"pods": "1000"}},
            {"nodeInfo": {"bootID": "another"}},
            {"conditions": not_ready},
            {"conditions": []},
            {"volumesAttached": [{"name": "x", "devicePath": ""}]},
        ):
            assert BOUNDS in refused(stolen, f"{own}/status", {"status": status}), status
        for meta in ({"labels": {"pool": "mine"}}, {"annotations": {"a/b": None}}):
            assert BOUNDS in refused(stolen, f"{own}/status", {"metadata": meta}), meta
        now = world.kube.get(world.pods_path("victim"))["status"]["conditions"]
        unready = [each | {"status": "False"} for each in now]
        for body in (
            {"status": {"phase": "Failed"}},
            {"status": {"podIP": "10.6.6.6", "podIPs": [{"ip": "10.6.6.6"}]}},
            {"status": {"conditions": unready}},
            {"status": {"conditions": [manifests.condition("Other", "True")]}},
            {"metadata": {"labels": {"app": "mine"}}},
            {"metadata": {"annotations": {"a/b": "c"}}},
        ):
            assert BOUNDS in refused(stolen, pod, body), body

        # What is the service's own, and nothing more.
        world.kube.patch(own, {"spec": {"taints": [QUARANTINE, {"key": "once", "effect": "NoSchedule"}]}})
        # Not stored, because controllers add a taint of their own to a cordoned Node.
        assert refused(stolen, f"{own}?dryRun=All", {"spec": {"unschedulable": True}}) == ""
        own_writes = (
            {"spec": {"taints": [QUARANTINE, TAINT]}},
            {"metadata": {"labels": {"ebbtide/kind": "spot", EXCLUDE: "true"}, "annotations": {"ebbtide/notice.x": "{}"}}},
            {"metadata": {"labels": {"ebbtide/kind": None, EXCLUDE: None}, "annotations": {"ebbtide/notice.x": None}}},
            {"spec": {"taints": [QUARANTINE]}},
        )
        for body in own_writes:
            assert refused(stolen, own, body) == "", body
        for kind in ("EbbtideDraining", "DrainInProgress", "Drained"):
            added = [*world.see(node)["status"]["conditions"], manifests.condition(kind, "True")]
            assert refused(stolen, f"{own}/status", {"status": {"conditions": added}}) == "", kind
        marked = [*now, manifests.condition("DisruptionTarget", "True")]
        assert refused(stolen, pod, {"status": {"conditions": marked}}) == ""
    assert world.see(node)["spec"]["taints"] == [QUARANTINE]


@pytest.mark.versions
def test_a_stolen_token_deletes_no_node_whose_kubelet_reports(world: World) -> None:
    node, bare = world.node(), world.register(world.aws.instance(), kubelet=False)

    def deletion(kube: Kube, of: Node) -> str:
        try:
            kube.delete(f"{NODES}/{of.name}?dryRun=All")
        except AssertionError as error:
            assert ": 403 " in str(error), error
            return str(error)
        return ""

    def says(status: str) -> None:
        world.kube.patch(f"{NODES}/{bare.name}/status", {"status": {"conditions": [manifests.condition("Ready", status)]}})

    with roles.deleting_nodes(world.kube, SERVICE):
        # Another role may grant what the chart's does not without the setting.
        with bound(world, node, objects(world, VALUES)) as stolen:
            for status in ("True", "False", "Unknown"):
                says(status)
                assert BOUNDS in deletion(stolen, bare), status
        with bound(world, node, objects(world, VALUES.replace("{taint", "{collectNodes: true, taint"))) as stolen:
            assert BOUNDS in deletion(stolen, node)
            for status in ("True", "False"):
                says(status)
                assert BOUNDS in deletion(stolen, bare), status
            unknown = {"status": {"conditions": [manifests.condition("Ready", "Unknown")]}}
            assert BOUNDS in refused(stolen, f"{NODES}/{bare.name}/status", unknown)
            says("Unknown")
            # The API server may still use the policy from before.
            eventually("the deletion is allowed", lambda: deletion(stolen, bare) == "")


@pytest.mark.versions
def test_the_size_of_a_node_costs_no_cordon(world: World) -> None:
    """Others write as much on a Node as they can: the expressions stay within the API server's limits."""
    node = world.node()
    own = f"{NODES}/{node.name}"
    # 256 KiB of annotations are the most.
    many = {f"a/{n}": "" for n in range(12_000)}
    labels = {f"l/{n}": "" for n in range(8_000)}
    taints = [{"key": f"t/{n}", "effect": "PreferNoSchedule"} for n in range(1_500)]
    world.kube.patch(own, {"metadata": {"annotations": many, "labels": labels}, "spec": {"taints": taints}})
    with bound(world, node, objects(world, VALUES)):
        world.run("web", on=node)
        world.service("--taint", "going=soon:NoSchedule", "--exclude-from-load-balancers", "--events", "all")
        world.send(messages.spot_warning(node.instance))
        eventually("the node is drained", lambda: drained(world, node))
        eventually("the message is deleted", world.acknowledged)
        seen = world.see(node)
        assert cordoned(seen) and seen["metadata"]["labels"][EXCLUDE] == "true"
        assert {"going", "t/0", "t/1499"} <= world.taints(node)


@pytest.mark.versions
def test_all_that_the_service_writes_passes(world: World) -> None:
    node, other, stopped = world.several_nodes(3)
    values = VALUES.replace("{taint", "{events: lifecycle, outOfServiceTaint: true, excludeFromLoadBalancers: true, taint")
    with bound(world, node, objects(world, values)):
        world.run("web", on=node)
        world.run("db", on=node)
        world.close_budget("db")
        (db,) = (pod["metadata"]["name"] for pod in world.pods_of("db"))
        before = world.kube.version(world.pods_path())
        flags = ("--taint", "going=soon:NoSchedule", "--former-taint", "once", "--exclude-from-load-balancers")
        # moto does not confirm a warning that comes late.
        flags += ("--out-of-service-taint", "--events", "lifecycle", "--uncordon-after", "5s", "--verify", "never")
        service = world.service(*flags)
        world.send(messages.spot_warning(node.instance, timedelta(seconds=120 - LEFT)), messages.rebalance(other.instance))
        world.aws.stop_instance(stopped.instance)
        world.send(messages.state_change(stopped.instance, "stopped"))

        eventually("the node is drained", lambda: drained(world, node))
        assert world.disrupted(db, before)["reason"] == "DeletionByEbbtide"
        seen = world.see(node)
        assert cordoned(seen) and {"going"} <= world.taints(node) and seen["metadata"]["labels"][EXCLUDE] == "true"
        ours = {each["type"]: each["status"] for each in seen["status"]["conditions"]}
        assert {"EbbtideDraining", "DrainInProgress", "Drained"} <= set(ours), ours
        taint = "node.kubernetes.io/out-of-service"
        eventually("the stopped node has the taint", lambda: taint in world.taints(stopped))
        eventually("a cordon is undone", lambda: not marks(world.see(other)) and not cordoned(world.see(other)))
        assert "going" not in world.taints(other)
        eventually("the messages are deleted", world.acknowledged)
        eventually("the service is at rest", service.at_rest)


def test_a_taint_that_the_policy_does_not_know_costs_nothing_else(world: World) -> None:
    node, other = world.several_nodes(2)
    with bound(world, node, objects(world, VALUES)):
        world.run("web", on=node)
        world.refused_by = BOUNDS
        service = world.service("--taint", "extra=yes:NoSchedule", "--uncordon-after", "5s")
        world.send(messages.spot_warning(node.instance), messages.rebalance(other.instance))
        eventually("the node is drained", lambda: drained(world, node))
        assert world.cordoned_with_notice(node) and "extra" not in world.taints(node)
        eventually("a cordon is undone", lambda: not marks(world.see(other)) and not cordoned(world.see(other)))
        eventually("the messages are deleted", world.acknowledged)
        log = service.process.log.read_text()
        assert "admission denied taints or labels" in log and "settings.extraArgs belongs there" in log
        assert ({"step": "marks", "category": "denied"}, 2.0) in service.samples("ebbtide_retries_total")


def test_a_policy_of_another_version_costs_no_drain(world: World) -> None:
    """It knows nothing that this version writes."""
    node = world.node()
    made = objects(world, VALUES)
    for each in made:
        for validation in each["spec"].get("validations", []):
            validation["expression"] = "false"
    with bound(world, node, made):
        # Nothing creates it again, on a node without a cordon.
        world.run_pod("web", node)
        world.refused_by = BOUNDS
        world.service("--verify", "never")
        world.send(messages.spot_warning(node.instance, timedelta(seconds=120 - LEFT)))
        eventually("the pod is gone", lambda: not world.pods(node))
        assert not cordoned(world.see(node))
