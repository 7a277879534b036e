"""The chart on a real API server: what helm makes of it, also later; the service needs the rights that it gives."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from chart import next_version

from harness import messages
from harness.audit import Request
from harness.aws import REGION
from harness.doctor import REVIEWS
from harness.helm import Key, Release, Right, installed, rendered
from harness.kube import NODES, Object
from harness.wait import WITHIN, eventually
from harness.world import Node, World, drained

LEFT = 16
"""Seconds to the instance's end when the warning comes."""

TOLD = 30
"""The same, if a pod must be blocked long enough to be reported: five seconds."""

SNAPSHOTS = Path(__file__).parents[1] / "deploy" / "snapshots"
"""What tests/deploy/run holds to be made of its values."""

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@contextmanager
def release(world: World, helm: str, values: Object) -> Iterator[Release]:
    """The chart, installed with what this control plane needs; its pods run on a node of their own."""
    home = world.node()
    common: Object = {
        "queueUrl": world.queue_url,
        "aws": {"region": REGION},
        "nodeSelector": {"kubernetes.io/hostname": home.name},
    }
    name = f"{world.name}-release"[:50]
    with installed(helm, name, world.control_plane, world.folder, {**common, **values}) as made:
        eventually("both replicas run on the one node there is", lambda: run_there(made))
        assert f"exec deployment/{made.full_name} -- /ebbtide doctor" in made.notes, made.notes
        try:
            yield made
        finally:
            # Before its rights are taken away: then it would be refused.
            for service in world.services:
                service.kill()


def run_there(made: Release) -> bool:
    """Whether two pods, of the Deployment as it is now, run on the node that it names."""
    deployment = made.deployment()
    home = deployment["spec"]["template"]["spec"]["nodeSelector"]["kubernetes.io/hostname"]
    status = deployment.get("status", {})
    current = (deployment["metadata"]["generation"], 2)
    assert (status.get("observedGeneration"), status.get("updatedReplicas")) == current, f"{status}"
    pods = [(pod["spec"].get("nodeName"), pod["status"]["phase"]) for pod in made.pods()]
    assert pods == [(home, "Running")] * 2, f"{pods}; {status}"
    return True


def asked(world: World, made: Release) -> list[Request]:
    """What the release's ServiceAccount asked of the API server."""
    return [request for request in world.audit.requests() if request.user == made.user]


def used(world: World, made: Release) -> set[Right]:
    """The rights that it made use of, wherever they are given."""
    everywhere = {(verb, resource) for where, verb, resource in made.rights() if not where}
    return {
        ("" if (each.verb, each.resource) in everywhere else each.namespace, each.verb, each.resource)
        for each in asked(world, made)
        if each.status != 403
    }


def blocked_node(world: World, app: str) -> Node:
    """A node with a pod that its budget never lets go."""
    node = world.node()
    world.run(app, on=node, stops_after=1, grace=4)
    world.close_budget(app)
    return node


def leak_a_lease(world: World) -> str:
    """A node's Lease that was left over: nobody owns it, there is no such node, and it is old. Returns its path."""
    old = (datetime.now(UTC) - timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    spec = {"holderIdentity": f"{world.name}-gone", "leaseDurationSeconds": 40, "renewTime": old}
    return world.lease(LEASES, f"{world.name}-gone", spec)


def test_everything_on_is_allowed_and_needed(world: World) -> None:
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
    on = {"asg-launch": "ready", "rebalance": "drain"}
    leak_a_lease(world)
    with release(world, "helm4", {"settings": settings, "on": on, **watched, **others}) as made:
        service = world.installed_service(made)

        # A budget holds a pod until it must be deleted; Events and a condition tell of it.
        node = blocked_node(world, "db")
        world.run("web", on=node, stops_after=1)
        world.send(messages.spot_warning(node.instance, ago=timedelta(seconds=120 - TOLD)))
        eventually("the node is drained", lambda: drained(world, node))
        eventually("the message is deleted", world.acknowledged)

        # A Node that goes while it is drained is asked for.
        going = blocked_node(world, "cache")
        world.send(messages.spot_warning(going.instance))
        eventually("an eviction was refused", lambda: world.audit.refused(world.name)[pod_of(world, "cache")])
        world.kube.delete(f"{NODES}/{going.name}")
        eventually("the message is deleted", world.acknowledged)
        eventually("the service is at rest", service.at_rest)

        # At its end it hands over what only one replica does.
        service.terminate()

        # An API server that does not stream lists is asked for one.
        with world.control_plane.another_api_server("--feature-gates=WatchList=false") as kube:
            service = world.installed_service(made, kube)
            given = made.rights()
            eventually("every right was used", lambda: all_used(given, used(world, made)))
            check_none_forbidden(world, made)
            service.kill()


def test_the_program_takes_every_value(tmp_path: Path) -> None:
    """It gets as far as looking for its cluster: its settings are right."""
    objects = yaml.safe_load_all((SNAPSHOTS / "everything.yaml").read_text())
    (deployment,) = (each for each in objects if each and each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value", "of-the-pod") for each in container["env"]}
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
    """The name of an app's one pod."""
    (pod,) = world.pods_of(app)
    name: str = pod["metadata"]["name"]
    return name


def all_used(rights: set[Right], used: set[Right]) -> bool:
    """Whether each was."""
    assert not rights - used, f"given and never used: {sorted(rights - used)}"
    return True


def check_none_forbidden(world: World, made: Release) -> None:
    """What the service was refused, and whether it asked for anything at all."""
    requests = asked(world, made)
    assert requests, "the service asked for nothing"
    assert not [each for each in requests if each.status == 403]


BOTH_HELMS = pytest.mark.parametrize("helm", [pytest.param("helm3", marks=pytest.mark.slow), "helm4"])

LEAST: set[Right] = {
    *(("", verb, "nodes") for verb in ("get", "list", "watch", "patch")),
    *(("", verb, "pods") for verb in ("list", "watch")),
    ("", "create", "pods/eviction"),
}
"""What a drain needs."""


@BOTH_HELMS
def test_a_drain_with_the_least_rights(world: World, helm: str) -> None:
    watched = {"serviceMonitor": {"enabled": True}}
    leave = {"atDeadline": "leave", "events": "none"}
    with release(world, helm, {"settings": leave, "rbac": {"doctor": False}, **watched}) as made:
        assert made.rights() == LEAST
        service = world.installed_service(made)
        node = blocked_node(world, "db")
        world.run("web", on=node, stops_after=1)
        # So late that the deadline finds a pod which may not be deleted.
        world.send(messages.spot_warning(node.instance, ago=timedelta(seconds=120 - LEFT)))

        eventually("the message is deleted", world.acknowledged)
        eventually("the service is at rest", service.at_rest)
        assert drained(world, node, stay=["db"])
        assert not world.audit.deletions(world.name)
        check_none_forbidden(world, made)


def test_a_dry_run_has_the_rights_that_it_needs(world: World) -> None:
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


def test_nothing_but_cordons_needs_no_right_to_pods(world: World) -> None:
    on = {kind: "cordon" for kind in ("asg-terminate", "spot", "state-change", "scheduled-change")}
    values = {"on": {**on, "capacity-reservation": "report"}, "settings": {"events": "none"}, "rbac": {"doctor": False}}
    with release(world, "helm4", values) as made:
        assert {resource for _, _, resource in made.rights()} == {"nodes"}
        service = world.installed_service(made)
        node = world.node()
        world.run("web", on=node)
        world.send(messages.spot_warning(node.instance))

        eventually("the message is deleted", world.acknowledged)
        eventually("the node is cordoned", lambda: world.cordoned_with_notice(node))
        eventually("the service is at rest", service.at_rest)
        assert world.apps(node) == ["web"]
        check_none_forbidden(world, made)


# A release's life: upgrades, rollbacks, its end.

STAYS = {
    "ClusterRole",
    "ClusterRoleBinding",
    "Deployment",
    "PodDisruptionBudget",
    "Service",
    "ServiceAccount",
}
"""What is made whatever the values of these tests are."""

SWITCHED_ON: Object = {
    "settings": {"collectLeases": True, "events": "all"},
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
    "networkPolicy": {"enabled": True},
}
ONLY_WITH_IT = {"Role", "RoleBinding", "PodMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy"}

SWITCHED_OFF: Object = {
    "settings": {"collectLeases": False, "events": "none", "atDeadline": "leave"},
    "podMonitor": {"enabled": False},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": False},
    "dashboard": {"enabled": False},
    "networkPolicy": {"enabled": False},
    "rbac": {"doctor": False},
}
"""Then the rights are the least, and what Prometheus reads is another kind."""


def kinds(objects: Iterable[Key]) -> set[str]:
    """The kinds of objects."""
    return {kind for kind, _, _ in objects}


def uids(objects: dict[Key, Object]) -> dict[Key, str]:
    """Which objects these are: one that was deleted and made again is another."""
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
    """A service with the release's arguments, variables and rights does its work, and is refused nothing."""
    service = world.installed_service(made)
    node = world.node()
    world.run("web", on=node, stops_after=1)
    world.send(messages.spot_warning(node.instance))
    eventually("the node is drained", lambda: drained(world, node))
    eventually("the message is deleted", world.acknowledged)
    eventually("the service is at rest", service.at_rest)
    check_none_forbidden(world, made)


@BOTH_HELMS
def test_an_upgrade_takes_away(world: World, helm: str) -> None:
    with release(world, helm, SWITCHED_ON) as made:
        before = made.made()
        assert kinds(before) == STAYS | ONLY_WITH_IT

        made.upgrade(SWITCHED_OFF, next_version(world.folder))
        eventually("both replicas are of the new version", lambda: run_there(made))
        after = made.made()
        assert kinds(after) == STAYS | {"ServiceMonitor"}
        assert made.rights() == LEAST

        # Nothing that stays was made anew, and so its fields that can't be changed are the same; pods are new.
        stays = before.keys() & after.keys()
        assert kinds(stays) == STAYS
        assert uids({key: after[key] for key in stays}) == uids({key: before[key] for key in stays})
        (deployment,) = (key for key in stays if key[0] == "Deployment")
        was, became = before[deployment]["spec"], after[deployment]["spec"]
        assert became["selector"] == was["selector"]
        assert became["template"] != was["template"]
        variables = made.variables()
        told = {key: variables[f"EBBTIDE_{key}"] for key in ("COLLECT_LEASES", "EVENTS", "AT_DEADLINE")}
        assert told == {"COLLECT_LEASES": "false", "EVENTS": "none", "AT_DEADLINE": "leave"}

        check_drains(world, made)


@BOTH_HELMS
def test_a_rollback_restores(world: World, helm: str) -> None:
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

        # With the rights that went and came back.
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
            # What only the templates find.
            ({"serviceMonitor": {"enabled": True}}, "podMonitor.enabled and serviceMonitor.enabled together would scrape"),
        ]:
            assert said in made.refused_upgrade(values)
            after = made.made()
            assert (uids(after), contents(after)) == (uids(before), contents(before))
            assert made.history() == [(1, "deployed")]
        assert run_there(made)


@BOTH_HELMS
def test_an_uninstall_leaves_nothing(world: World, helm: str) -> None:
    with release(world, helm, SWITCHED_ON) as made:
        made.upgrade({"settings": {"log": "debug"}})
        eventually("both replicas are of the new version", lambda: run_there(made))
        # It is seen what there is to be taken away, helm's own notes too.
        assert kinds(made.traces()) == STAYS | ONLY_WITH_IT | {"Pod", "ReplicaSet", "Secret"}
        made.uninstall()
        eventually("nothing of it is left", lambda: nothing_of(made))


def nothing_of(made: Release) -> bool:
    """Whether a release has left nothing behind."""
    left = made.traces()
    assert not left, f"left: {sorted(left)}"
    return True


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


def test_values_of_nth_become_values_that_the_chart_takes(world: World) -> None:
    theirs, ours = world.folder / "nth.yaml", world.folder / "ours.yaml"
    theirs.write_text(NTH_VALUES)
    migrated = world.ask("migrate", str(theirs))
    assert migrated.returncode in (0, 3), migrated.stderr
    ours.write_text(migrated.stdout)
    objects = {each["kind"]: each for each in rendered(ours)}
    container = objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["EBBTIDE_QUEUE_URL"] == "https://sqs.eu-west-1.amazonaws.com/123456789012/nth"
    assert variables["EBBTIDE_DRAIN_TIMEOUT"] == "300s"
    assert objects["Deployment"]["spec"]["replicas"] == 3
    assert objects["ServiceAccount"]["metadata"]["name"] == "nth"
    # NTH's name is NTH's, and defaults of ours would make of its resources what the API server refuses.
    assert objects["ClusterRole"]["metadata"]["name"] == "ebbtide"
    assert container["resources"] == {"requests": {"memory": "512Mi"}, "limits": {"cpu": "20m"}}
    assert objects["ServiceMonitor"]["metadata"]["labels"]["release"] == "prometheus"
