"""The chart on a real API server: install, upgrade, rollback, uninstall, and the permissions that the service needs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from chart import HELM4, everything, next_version

from harness import manifests, messages
from harness.audit import Request
from harness.chart import rendered
from harness.doctor import REVIEWS
from harness.helm import Key, Release, Right, installed, know_monitors
from harness.kube import NODES, Object
from harness.queues import REGION
from harness.wait import WITHIN, eventually
from harness.world import Node, World, drained

LEFT = 16
"""Seconds from the warning to the instance's end."""

REPORTED = 30
"""Seconds from the warning to the instance's end, if a pod must be blocked for the five seconds before a report."""


LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@contextmanager
def release(world: World, helm: str, values: Object) -> Iterator[Release]:
    """Installs the chart with the values that this control plane needs; its pods run on their own node."""
    home = world.node()
    common: Object = {
        "queueUrl": world.queue_url,
        "aws": {"region": REGION},
        "nodeSelector": {"kubernetes.io/hostname": home.name},
    }
    name = f"{world.name}-release"[:50]
    with installed(helm, name, world.control_plane, world.folder, {**common, **values}) as made:
        eventually("both replicas run on the only node", lambda: run_there(made))
        assert f"exec deployment/{made.full_name} -- /ebbtide doctor" in made.notes, made.notes
        try:
            yield made
        finally:
            # Before the uninstall removes its permissions: then the API server would refuse its calls.
            for service in world.services:
                service.kill()


def run_there(made: Release) -> bool:
    """Returns whether two pods of the Deployment's current version run on the node that it names."""
    deployment = made.deployment()
    home = deployment["spec"]["template"]["spec"]["nodeSelector"]["kubernetes.io/hostname"]
    status = deployment.get("status", {})
    current = (deployment["metadata"]["generation"], 2)
    assert (status.get("observedGeneration"), status.get("updatedReplicas")) == current, f"{status}"
    pods = [(pod["spec"].get("nodeName"), pod["status"]["phase"]) for pod in made.pods()]
    assert pods == [(home, "Running")] * 2, f"{pods}; {status}"
    return True


def asked(world: World, made: Release) -> list[Request]:
    """Returns the requests of the release's ServiceAccount."""
    return [request for request in world.audit.requests() if request.user == made.user]


def used(world: World, made: Release) -> set[Right]:
    """Returns the permissions that the release used, with the namespace in which they are granted."""
    everywhere = {(verb, resource) for where, verb, resource in made.rights() if not where}
    return {
        ("" if (each.verb, each.resource) in everywhere else each.namespace, each.verb, each.resource)
        for each in asked(world, made)
        if each.status != 403
    }


def blocked_node(world: World, app: str) -> Node:
    """Adds a node with a pod that a closed budget holds."""
    node = world.node()
    world.run(app, on=node, stops_after=1, grace=4)
    world.close_budget(app)
    return node


def leak_a_lease(world: World) -> str:
    """Creates a leaked Lease: old, without an owner and without a Node. Returns its path."""
    old = (datetime.now(UTC) - timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    spec = {"holderIdentity": f"{world.name}-gone", "leaseDurationSeconds": 40, "renewTime": old}
    return world.lease(LEASES, f"{world.name}-gone", spec)


def attach_a_volume(world: World, node: Node) -> str:
    """Attaches a volume to a node with a static pod that has another; returns the attachment's path."""
    stays = manifests.pod("static", node.name, None, False, False, {"kubernetes.io/config.mirror": "0123456789abcdef"})
    stays["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "static"}}]
    world.kube.create(world.pods_path(), stays)
    attachments, name = "/apis/storage.k8s.io/v1/volumeattachments", f"{world.name}-db"
    source = {"persistentVolumeName": f"{world.name}-db"}
    spec = {"attacher": "ebs.csi.aws.com", "nodeName": node.name, "source": source}
    world.kube.create(attachments, {"metadata": {"name": name}, "spec": spec})
    in_use = {"status": {"volumesInUse": ["kubernetes.io/csi/ebs.csi.aws.com^vol-1"]}}
    world.kube.patch(f"{NODES}/{node.name}/status", in_use)
    return f"{attachments}/{name}"


def test_all_features_use_exactly_the_granted_permissions(world: World) -> None:
    settings = {
        "atDeadline": "delete",
        "events": "all",
        "taint": ["going=true:NoSchedule"],
        "excludeFromLoadBalancers": True,
        "outOfServiceTaint": True,
        "collectLeases": True,
        "log": "info,ebbtide=debug",
    }
    watched = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
    others = {"dashboard": {"enabled": True}, "networkPolicy": {"enabled": True}}
    actions = {"asgLaunch": "ready", "rebalance": "drain"}
    leak_a_lease(world)
    with release(world, "helm4", {"settings": settings, "actions": actions, **watched, **others}) as made:
        service = world.installed_service(made)

        # A budget holds a pod until the service must delete it, which uses Events and a condition.
        node = blocked_node(world, "db")
        world.run("web", on=node, stops_after=1)
        world.send(messages.spot_warning(node.instance, ago=timedelta(seconds=120 - REPORTED)))
        eventually("the node is drained", lambda: drained(world, node))
        eventually("the message is deleted", world.acknowledged)

        # A volume is attached that no pod uses which stays.
        holding = world.node()
        attachment = attach_a_volume(world, holding)
        action = world.hold(holding.instance, 300)
        world.send(messages.bare(action))
        claims = ("", "get", "persistentvolumeclaims")
        eventually("the claims of pods that stay are read", lambda: claims in used(world, made))
        assert action.active, "the hook was completed with a volume attached"
        world.kube.delete(attachment)
        eventually("the message is deleted", world.acknowledged)

        # The service gets a Node that is deleted during its drain.
        going = blocked_node(world, "cache")
        world.send(messages.spot_warning(going.instance))
        eventually("an eviction was refused", lambda: world.audit.refused(world.name)[pod_of(world, "cache")])
        world.kube.delete(f"{NODES}/{going.name}")
        eventually("the message is deleted", world.acknowledged)
        eventually("the service is at rest", service.at_rest)

        # A graceful end hands over the task of the only collector.
        service.terminate()

        # An API server that does not stream lists makes the service list.
        with world.control_plane.another_api_server("--feature-gates=WatchList=false") as kube:
            service = world.installed_service(made, kube)
            # The policy for marks asks for this one, which is no request.
            given = made.rights() - {MARKS}
            eventually("every right was used", lambda: all_used(given, used(world, made)))
            check_none_forbidden(world, made)
            service.kill()


def test_the_program_accepts_every_value(tmp_path: Path) -> None:
    """The program fails only at the cluster, after it has accepted its settings."""
    objects = HELM4.objects(values=yaml.safe_dump(everything()))
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    # By their keys in values/notifications.yaml. Its format takes no key for PagerDuty, which the Secret may lack.
    secrets = {"webhookurl": "https://127.0.0.1/hook", "more": "X-Team=infra", "sign": "s" * 32, "token": "x-team=infra"}
    variables = {}
    for each in container["env"]:
        secret = each.get("valueFrom", {}).get("secretKeyRef")
        if not secret:
            variables[each["name"]] = each.get("value", "of-the-pod")
        elif secret["key"] in secrets or not secret.get("optional"):
            variables[each["name"]] = secrets[secret["key"]]
    (template,) = (each["data"]["template.j2"] for each in objects if "template.j2" in each.get("data", {}))
    mounted = Path(variables["EBBTIDE_NOTIFY_TEMPLATE"])
    variables["EBBTIDE_NOTIFY_TEMPLATE"] = str(tmp_path / mounted.name)
    (tmp_path / mounted.name).write_text(template)
    done = subprocess.run(
        [os.environ["EBBTIDE_BIN"], *container["args"]],
        env={"HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        timeout=WITHIN,
        check=False,
    )
    assert done.returncode == 1, f"{done.returncode} {done.stderr}"
    assert done.stderr.startswith("ebbtide: no way to the API server:"), done.stderr


def pod_of(world: World, app: str) -> str:
    """Returns the name of an app's only pod."""
    (pod,) = world.pods_of(app)
    name: str = pod["metadata"]["name"]
    return name


def all_used(rights: set[Right], used: set[Right]) -> bool:
    """Returns whether each permission was used."""
    assert not rights - used, f"granted but never used: {sorted(rights - used)}"
    return True


def check_none_forbidden(world: World, made: Release) -> None:
    """Checks that the API server denied no request, and that the service made some."""
    requests = asked(world, made)
    assert requests, "the service made no request"
    assert not [each for each in requests if each.status == 403]


BOTH_HELMS = pytest.mark.parametrize("helm", [pytest.param("helm3", marks=pytest.mark.slow), "helm4"])

MARKS: Right = ("", "write", "marks")

LEAST: set[Right] = {
    MARKS,
    *(("", verb, "nodes") for verb in ("get", "list", "watch", "patch")),
    *(("", verb, "pods") for verb in ("list", "watch")),
    ("", "create", "pods/eviction"),
}
"""Permissions that a drain needs."""


@pytest.mark.versions
@BOTH_HELMS
def test_minimal_permissions_drain_a_node(world: World, helm: str) -> None:
    watched = {"serviceMonitor": {"enabled": True}}
    leave = {"atDeadline": "leave", "events": "none", "waitForVolumes": "0s"}
    with release(world, helm, {"settings": leave, "rbac": {"doctor": False}, **watched}) as made:
        assert made.rights() == LEAST
        service = world.installed_service(made)
        node = blocked_node(world, "db")
        world.run("web", on=node, stops_after=1)
        # The late warning's deadline comes while the budget still holds a pod, which the service may not delete.
        world.send(messages.spot_warning(node.instance, ago=timedelta(seconds=120 - LEFT)))

        eventually("the message is deleted", world.acknowledged)
        eventually("the service is at rest", service.at_rest)
        assert drained(world, node, stay=["db"])
        assert not world.audit.deletions(world.name)
        check_none_forbidden(world, made)


def test_a_dry_run_has_the_permissions_that_it_needs(world: World) -> None:
    with release(world, "helm4", {"settings": {"dryRun": True}}) as made:
        service = world.installed_service(made)
        node = blocked_node(world, "db")
        world.run("web", on=node, stops_after=1)
        world.send(messages.spot_warning(node.instance, ago=timedelta(seconds=120 - LEFT)))

        eventually("the message is deleted", world.acknowledged)
        eventually("the service is at rest", service.at_rest)
        assert sorted(world.apps(node)) == ["db", "web"]
        done = [each for each in asked(world, made) if each.resource not in REVIEWS]
        changes = [each for each in done if each.verb in ("create", "patch", "delete")]
        assert {each.resource for each in changes} == {"nodes", "pods/eviction"}
        assert all(each.dry_run for each in changes), changes
        check_none_forbidden(world, made)


def test_cordons_need_no_permission_for_pods(world: World) -> None:
    actions = {kind: "cordon" for kind in ("asgTerminate", "spot", "stateChange", "scheduledChange")}
    values = {"actions": {**actions, "capacityReservation": "report"}, "settings": {"events": "none"}, "rbac": {"doctor": False}}
    with release(world, "helm4", values) as made:
        assert {resource for _, _, resource in made.rights()} == {"nodes", "marks"}
        service = world.installed_service(made)
        node = world.node()
        world.run("web", on=node)
        world.send(messages.spot_warning(node.instance))

        eventually("the message is deleted", world.acknowledged)
        eventually("the node is cordoned", lambda: world.cordoned_with_notice(node))
        eventually("the service is at rest", service.at_rest)
        assert world.apps(node) == ["web"]
        check_none_forbidden(world, made)


# Upgrades, rollbacks and uninstalls.

STAYS = {
    "ClusterRole",
    "ClusterRoleBinding",
    "Deployment",
    "PodDisruptionBudget",
    "Service",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
"""Kinds of objects that exist with any values of these tests."""

SWITCHED_ON: Object = {
    "settings": {"collectLeases": True, "events": "all"},
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
    "networkPolicy": {"enabled": True},
}
ONLY_WITH_IT = {"Role", "RoleBinding", "PodMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"}

SWITCHED_OFF: Object = {
    "settings": {"collectLeases": False, "events": "none", "atDeadline": "leave", "waitForVolumes": "0s"},
    "podMonitor": {"enabled": False},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": False},
    "dashboard": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "rbac": {"doctor": False},
}
"""Values with minimal permissions and another kind of monitor."""


def kinds(objects: Iterable[Key]) -> set[str]:
    """Returns the kinds of objects."""
    return {kind for kind, _, _ in objects}


def uids(objects: dict[Key, Object]) -> dict[Key, str]:
    """Returns the objects' UIDs, which show whether an object was created anew."""
    return {key: each["metadata"]["uid"] for key, each in objects.items()}


def contents(objects: dict[Key, Object]) -> dict[Key, Object]:
    """helm's view of objects, without fields that the API server and controllers write."""

    def without(each: Object, *keys: str) -> Object:
        return {key: value for key, value in each.items() if key not in keys}

    def content(each: Object) -> Object:
        meta = without(each["metadata"], "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
        annotations = without(meta["annotations"], "deployment.kubernetes.io/revision")
        return {**without(each, "status"), "metadata": {**meta, "annotations": annotations}}

    return {key: content(each) for key, each in objects.items()}


def check_drains(world: World, made: Release) -> None:
    """Checks that a service with the release's arguments, variables and permissions drains without a denied request."""
    service = world.installed_service(made)
    node = world.node()
    world.run("web", on=node, stops_after=1)
    world.send(messages.spot_warning(node.instance))
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    check_none_forbidden(world, made)


@BOTH_HELMS
def test_an_upgrade_removes_old_objects(world: World, helm: str) -> None:
    with release(world, helm, SWITCHED_ON) as made:
        before = made.made()
        assert kinds(before) == STAYS | ONLY_WITH_IT

        made.upgrade(SWITCHED_OFF, next_version(world.folder))
        eventually("both replicas are of the new version", lambda: run_there(made))
        after = made.made()
        assert kinds(after) == STAYS | {"ServiceMonitor"}
        assert made.rights() == LEAST

        # Objects that stay are not created anew, so their immutable fields are the same. Pods are new.
        stays = before.keys() & after.keys()
        assert kinds(stays) == STAYS
        assert uids({key: after[key] for key in stays}) == uids({key: before[key] for key in stays})
        (deployment,) = (key for key in stays if key[0] == "Deployment")
        was, became = before[deployment]["spec"], after[deployment]["spec"]
        assert became["selector"] == was["selector"]
        assert became["template"] != was["template"]
        variables = made.variables()
        passed = {key: variables[f"EBBTIDE_{key}"] for key in ("COLLECT_LEASES", "EVENTS", "AT_DEADLINE")}
        assert passed == {"COLLECT_LEASES": "false", "EVENTS": "none", "AT_DEADLINE": "leave"}

        check_drains(world, made)


@BOTH_HELMS
def test_a_rollback_restores_old_objects(world: World, helm: str) -> None:
    with release(world, helm, SWITCHED_ON) as made:
        before, rights = made.made(), made.rights()
        made.upgrade(SWITCHED_OFF, next_version(world.folder))
        eventually("both replicas are of the new version", lambda: run_there(made))
        assert contents(made.made()) != contents(before)

        made.rollback(1)
        eventually("both replicas are of the old version", lambda: run_there(made))
        assert contents(made.made()) == contents(before)
        assert made.rights() == rights
        assert made.history() == [(1, "superseded"), (2, "superseded"), (3, "deployed")]

        # The service uses the permissions that were removed and restored.
        lease = leak_a_lease(world)
        check_drains(world, made)
        eventually("the Lease is collected", lambda: world.kube.find(lease) is None)
        check_none_forbidden(world, made)


@BOTH_HELMS
def test_a_typo_changes_nothing(world: World, helm: str) -> None:
    with release(world, helm, SWITCHED_ON) as made:
        before = made.made()
        for values, said in [
            ({"settings": {"collectLease": False}}, "additional properties 'collectLease' not allowed"),
            # Only the templates find these.
            ({"serviceMonitor": {"enabled": True}}, "podMonitor.enabled and serviceMonitor.enabled together would scrape"),
        ]:
            assert said in made.refused_upgrade(values)
            after = made.made()
            assert (uids(after), contents(after)) == (uids(before), contents(before))
            assert made.history() == [(1, "deployed")]
        assert run_there(made)


@BOTH_HELMS
def test_an_uninstall_removes_all_objects(world: World, helm: str) -> None:
    with release(world, helm, SWITCHED_ON) as made:
        made.upgrade({"settings": {"log": "debug"}})
        eventually("both replicas are of the new version", lambda: run_there(made))
        # `traces` must see all that the uninstall is to remove, with helm's own records.
        assert kinds(made.traces()) == STAYS | ONLY_WITH_IT | {"Pod", "ReplicaSet", "Secret"}
        made.uninstall()
        eventually("no object of the release is left", lambda: nothing_of(made))


def nothing_of(made: Release) -> bool:
    """Returns whether a release has left no object."""
    left = made.traces()
    assert not left, f"left: {sorted(left)}"
    return True


def test_server_side_apply_twice_changes_nothing(world: World) -> None:
    """Argo CD and Flux apply the chart's objects so, every few minutes."""
    know_monitors(world.control_plane)
    values, file = world.folder / "values.yaml", world.folder / "objects.yaml"
    values.write_text(yaml.safe_dump({"queueUrl": world.queue_url, "aws": {"region": REGION}, **SWITCHED_ON}))
    made = rendered(values, f"{world.name}-applied"[:50], world.name)
    # The pod of `helm test` is no object of the release.
    made = [each for each in made if "helm.sh/hook" not in each["metadata"].get("annotations", {})]
    file.write_text(yaml.safe_dump_all(made))
    kubectl = world.control_plane.kubectl

    def written() -> dict[Key, Object]:
        """Returns for each object its generation, and what was written by the apply, with its time."""
        found = json.loads(kubectl.output("get", "--filename", str(file), "--output", "json", "--show-managed-fields"))
        return {
            (each["kind"], meta.get("namespace", ""), meta["name"]): {
                "generation": meta.get("generation"),
                # A controller applies the status of admission policies.
                "fields": [
                    fields
                    for fields in meta["managedFields"]
                    if fields["operation"] == "Apply" and "subresource" not in fields
                ],
            }
            for each in found["items"]
            for meta in [each["metadata"]]
        }

    try:
        kubectl.output("apply", "--server-side", "--filename", str(file))
        before = written()
        assert kinds(before) == STAYS | ONLY_WITH_IT
        assert all(len(each["fields"]) == 1 for each in before.values()), before
        kubectl.output("apply", "--server-side", "--filename", str(file))
        assert written() == before
    finally:
        kubectl.run("delete", "--filename", str(file), "--ignore-not-found", "--wait=false")


NTH_VALUES = """
enableSqsTerminationDraining: true
queueURL: https://sqs.eu-west-1.amazonaws.com/123456789012/nth
awsRegion: eu-west-1
replicas: 3
workers: 50
nodeTerminationGracePeriod: 300
podTerminationGracePeriod: 45
heartbeatInterval: 60
fullnameOverride: aws-node-termination-handler
resources: {requests: {memory: 512Mi}, limits: {cpu: 20m}}
taintNode: true
logLevel: debug
jsonLogging: true
checkTagBeforeDraining: false
nodeSelector: {pool: system}
tolerations: [{key: dedicated, operator: Exists}]
serviceAccount:
  name: nth
  annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::123456789012:role/nth"}
enablePrometheusServer: true
serviceMonitor: {create: true, labels: {release: prometheus}}
"""


def test_the_chart_accepts_values_migrated_from_nth(world: World) -> None:
    theirs, ours = world.folder / "nth.yaml", world.folder / "ours.yaml"
    theirs.write_text(NTH_VALUES)
    migrated = world.ask("migrate", str(theirs))
    assert migrated.returncode == 0, migrated.stderr
    ours.write_text(migrated.stdout)
    objects = {each["kind"]: each for each in rendered(ours)}
    container = objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["EBBTIDE_QUEUE_URL"] == "https://sqs.eu-west-1.amazonaws.com/123456789012/nth"
    assert variables["EBBTIDE_DRAIN_TIMEOUT"] == "300s"
    assert objects["Deployment"]["spec"]["replicas"] == 3
    assert objects["ServiceAccount"]["metadata"]["name"] == "nth"
    # NTH's name must not be taken over, and NTH's resources with this chart's defaults would be invalid.
    assert objects["ClusterRole"]["metadata"]["name"] == "ebbtide"
    assert container["resources"] == {"requests": {"memory": "512Mi"}, "limits": {"cpu": "20m"}}
    assert objects["ServiceMonitor"]["metadata"]["labels"]["release"] == "prometheus"
