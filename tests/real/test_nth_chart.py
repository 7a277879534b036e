"""NTH's set-ups, migrated: what the installed Ebbtide watches and may do, compared with NTH's own chart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import yaml

from harness import messages
from harness.helm import NthRelease, Release, Right, installed
from harness.kube import Object
from harness.queues import REGION
from harness.wait import eventually
from harness.world import World, drained

TAG = "aws-node-termination-handler/managed"

DEFAULTS = {
    "asg-terminate": "drain",
    "asg-launch": "ignore",
    "spot": "drain",
    "rebalance": "cordon",
    "state-change": "drain",
    "scheduled-change": "drain",
    "capacity-reservation": "drain",
}
"""Ebbtide's actions without settings."""

GONE: set[Right] = {("", "update", "nodes"), ("", "get", "pods"), ("", "get", "daemonsets")}
"""Rights of NTH that Ebbtide never has."""

DRAINS: set[Right] = {("", "list", "pods"), ("", "create", "pods/eviction")}
"""Rights of both for a drain."""

WATCHES: set[Right] = {
    ("", "watch", "nodes"),
    ("", "write", "marks"),
    ("", "list", "poddisruptionbudgets"),
    ("", "list", "validatingadmissionpolicies"),
    ("", "list", "validatingadmissionpolicybindings"),
}
"""Rights that only Ebbtide has, with any settings. The second is for the doctor."""

WAITS: set[Right] = {
    ("", "watch", "pods"),
    *(("", verb, "volumeattachments") for verb in ("list", "watch")),
    ("", "get", "persistentvolumeclaims"),
}
"""Rights for a drain that only Ebbtide has."""

EVENTS: set[Right] = {("", "create", "events"), ("", "patch", "events")}
CONDITION: set[Right] = {("", "patch", "nodes/status")}


@dataclass(frozen=True)
class Case:
    """A typical file of values for NTH's chart."""

    values: str
    gone: set[Right] = field(default_factory=set)
    more: set[Right] = field(default_factory=set)
    """Rights that only one of them has, besides GONE and WATCHES."""
    monitors: frozenset[str] = frozenset()


QUEUE = "enableSqsTerminationDraining: true\n"

CASES = {
    "queue": Case(
        QUEUE
        + """
replicas: 2
checkTagBeforeDraining: false
nodeTerminationGracePeriod: 300
heartbeatInterval: 60
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::123456789012:role/nth"}}
""",
        more=WAITS | EVENTS | CONDITION,
    ),
    "imds": Case(
        """
enableSpotInterruptionDraining: true
enableScheduledEventDraining: false
enableRebalanceMonitoring: true
enablePrometheusServer: true
daemonsetTolerations: []
podMonitor: {create: true, labels: {release: prometheus}, sampleLimit: 900}
""",
        more=WAITS | EVENTS | CONDITION,
        monitors=frozenset({"PodMonitor"}),
    ),
    "webhook": Case(
        QUEUE
        + """
webhookURLSecretName: hook
webhookTemplate: '{"text": "{{ .NodeName }}"}'
emitKubernetesEvents: true
""",
        more=WAITS | CONDITION,
    ),
    "taints-and-cordon-only": Case(
        QUEUE + "cordonOnly: true\ntaintNode: true\nexcludeFromLoadBalancers: true\n",
        gone=DRAINS,
        more=EVENTS | CONDITION,
    ),
    "selectors": Case(
        QUEUE
        + """
tolerations: [{key: dedicated, operator: Exists}]
affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [
  {weight: 1, preference: {matchExpressions: [{key: pool, operator: In, values: [system]}]}}]}}
priorityClassName: system-node-critical
managedTag: team-tag
podDisruptionBudget: {minAvailable: 1}
serviceMonitor: {create: true, namespace: default, labels: {release: prometheus}, interval: 15s, sampleLimit: 900}
enablePrometheusServer: true
emitKubernetesEvents: false
""",
        # To migrate a default of NTH is not given, and Ebbtide's Events of blocked drains stay.
        more=WAITS | EVENTS | CONDITION,
        monitors=frozenset({"ServiceMonitor"}),
    ),
}


def environment(objects: list[Object]) -> Iterator[tuple[str, str]]:
    """Yields the variables of the only Deployment or DaemonSet; a secret is its name and key."""
    (workload,) = (each for each in objects if each["kind"] in ("Deployment", "DaemonSet"))
    for each in workload["spec"]["template"]["spec"]["containers"][0]["env"]:
        secret = each.get("valueFrom", {}).get("secretKeyRef")
        yield each["name"], f"{secret['name']}/{secret['key']}" if secret else each.get("value", "")


def nths_kinds(variables: dict[str, str]) -> dict[str, str]:
    """Returns what NTH does for each kind, by its variables: in queue mode the same for all."""
    on = {name for name, value in variables.items() if value == "true"}
    drain = "cordon" if "CORDON_ONLY" in on else "drain"
    if "ENABLE_SQS_TERMINATION_DRAINING" in on:
        made = dict.fromkeys(("asg-terminate", "spot", "rebalance", "state-change", "scheduled-change"), drain)
        return made | {"asg-launch": "ready"}
    made = {
        "spot": "ENABLE_SPOT_INTERRUPTION_DRAINING",
        "asg-terminate": "ENABLE_ASG_LIFECYCLE_DRAINING",
        "scheduled-change": "ENABLE_SCHEDULED_EVENT_DRAINING",
    }
    rebalance = drain if "ENABLE_REBALANCE_DRAINING" in on else "cordon" if "ENABLE_REBALANCE_MONITORING" in on else "ignore"
    return {kind: drain if name in on else "ignore" for kind, name in made.items()} | {"rebalance": rebalance}


def monitors(release: Release) -> dict[str, Object]:
    """Returns the monitors that the Prometheus Operator reads, by kind."""
    return {key[0]: each for key, each in release.made().items() if key[0] in ("PodMonitor", "ServiceMonitor")}


def compare(case: Case, nth: Release, ours: Release) -> None:
    """Compares what both watch, and what they may do."""
    theirs = dict(environment(list(nth.made().values())))
    variables = dict(environment(list(ours.made().values())))

    if "ENABLE_SQS_TERMINATION_DRAINING" in theirs and theirs["ENABLE_SQS_TERMINATION_DRAINING"] == "true":
        assert variables["EBBTIDE_QUEUE_URL"] == theirs["QUEUE_URL"]
        tags = variables.get("EBBTIDE_MANAGED_TAG", TAG), variables.get("EBBTIDE_REQUIRE_TAG", "false")
        assert tags == (theirs["MANAGED_TAG"], theirs["CHECK_TAG_BEFORE_DRAINING"])
    assert variables["AWS_REGION"] == theirs.get("AWS_REGION", REGION)

    chosen = filter(None, variables.get("EBBTIDE_ON", "").split(","))
    kinds = DEFAULTS | dict(each.split("=") for each in chosen)
    of_nth = nths_kinds(theirs)
    assert {kind: kinds[kind] for kind in of_nth} == of_nth

    assert variables.get("EBBTIDE_NOTIFY_URL") == theirs.get("WEBHOOK_URL")
    scraped, of_nth = monitors(ours), monitors(nth)
    assert set(scraped) == set(of_nth) == case.monitors
    for kind, each in scraped.items():
        meta, other = each["metadata"], of_nth[kind]["metadata"]
        assert (meta["namespace"] == "default") == (other["namespace"] == "default")
        assert meta["labels"]["release"] == other["labels"]["release"]
        # NTH's default limit of samples is not carried over; a given one is.
        assert each["spec"]["sampleLimit"] == of_nth[kind]["spec"]["sampleLimit"] == 900

    assert nth.rights() - ours.rights() == GONE | case.gone
    assert ours.rights() - nth.rights() == WATCHES | case.more


@pytest.mark.parametrize(
    "name", [name if name == "queue" else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_nths_chart_migrated(world: World, name: str) -> None:
    case = CASES[name]
    home = {"kubernetes.io/hostname": world.node().name}
    values: Object = {**yaml.safe_load(case.values), "nodeSelector": home}
    if values.get("enableSqsTerminationDraining"):
        values |= {"queueURL": world.queue_url, "awsRegion": REGION}
    else:
        values |= {"linuxNodeSelector": home}
    plane, short = world.control_plane, world.name[:30]
    with installed("helm4", f"{short}-nth", plane, world.folder, values, kind=NthRelease) as nth:
        file = world.folder / "nth.yaml"
        file.write_text(yaml.safe_dump(values))
        migrated = world.ask("migrate", str(file))
        assert migrated.returncode == 0, migrated.stderr
        given: Object = yaml.safe_load(migrated.stdout) | {"queueUrl": world.queue_url, "aws": {"region": REGION}}
        pinned = home
        if not values.get("enableSqsTerminationDraining"):
            # Both charts are compared as services here: with a queue, and without the agent, which alone stays on NTH's nodes.
            assert given["settings"].pop("source") == ["nodes"]
            agent = given.pop("agent")
            assert agent["enabled"] and agent["nodeSelector"] == home
            pinned = {}
        with installed("helm4", f"{short}-ours", plane, world.folder, given) as ours:
            compare(case, nth, ours)
            selector = ours.deployment()["spec"]["template"]["spec"]["nodeSelector"]
            assert selector == {"kubernetes.io/os": "linux", **pinned}
            if name == "queue":
                drain(world, ours)


def drain(world: World, release: Release) -> None:
    """The migrated service drains a node."""
    eventually("a pod of the release is made", lambda: bool(release.pods()))
    service = world.installed_service(release)
    try:
        node = world.node()
        world.run("web", on=node)
        world.send(messages.spot_warning(node.instance))
        eventually("the node is drained", lambda: drained(world, node))
        eventually("the message is deleted", world.acknowledged)
        eventually("the service is at rest", service.at_rest)
    finally:
        service.kill()  # before the uninstall removes its rights


URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/nth"

CONTROL_PLANE = [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]


def kops(kind: str, more: dict[str, str], pod: Object) -> Object:
    """Returns NTH as kOps installs it: a workload with a variable for each setting, and no chart."""
    given = {
        "PROBES_SERVER_PORT": "8080",
        "PROBES_SERVER_ENDPOINT": "/healthz",
        "LOG_LEVEL": "info",
        "JSON_LOGGING": "true",
        "LOG_FORMAT_VERSION": "2",
        "ENABLE_PROMETHEUS_SERVER": "false",
        "PROMETHEUS_SERVER_PORT": "9092",
        "DRY_RUN": "false",
        "CORDON_ONLY": "false",
        "TAINT_NODE": "false",
        "EXCLUDE_FROM_LOAD_BALANCERS": "true",
        "DELETE_LOCAL_DATA": "true",
        "IGNORE_DAEMON_SETS": "true",
        "POD_TERMINATION_GRACE_PERIOD": "-1",
        "NODE_TERMINATION_GRACE_PERIOD": "120",
        "EMIT_KUBERNETES_EVENTS": "true",
        **more,
    }
    fields = {"NODE_NAME": "spec.nodeName", "POD_NAME": "metadata.name", "NAMESPACE": "metadata.namespace"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    env += [{"name": name, "value": value} for name, value in given.items()]
    container = {
        "name": "aws-node-termination-handler",
        "image": "public.ecr.aws/aws-ec2/aws-node-termination-handler:v1.25.6",
        "env": env,
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
    }
    labels = {"app.kubernetes.io/name": "aws-node-termination-handler"}
    spec: Object = {"hostNetwork": True, "containers": [container], **pod}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "aws-node-termination-handler"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


QUEUE_VALUES = {
    "enableSqsTerminationDraining": True,
    "queueURL": URL,
    "awsRegion": "eu-west-1",
    "taintNode": True,
    "replicas": 2,
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/nth"}},
}

SET_UPS: dict[str, Object] = {
    "kops": kops(
        "Deployment",
        {
            "ENABLE_SQS_TERMINATION_DRAINING": "true",
            "QUEUE_URL": URL,
            "WORKERS": "10",
            "CHECK_TAG_BEFORE_DRAINING": "true",
            "MANAGED_TAG": TAG,
            "COMPLETE_LIFECYCLE_ACTION_DELAY_SECONDS": "-1",
        },
        {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}, "tolerations": CONTROL_PLANE},
    ),
    "imds-on-spot-nodes": kops(
        "DaemonSet",
        {
            "ENABLE_SPOT_INTERRUPTION_DRAINING": "true",
            "ENABLE_SCHEDULED_EVENT_DRAINING": "true",
            "ENABLE_REBALANCE_MONITORING": "true",
            "ENABLE_SQS_TERMINATION_DRAINING": "false",
            "UPTIME_FROM_FILE": "/proc/uptime",
        },
        {"nodeSelector": {"example.com/capacity": "spot"}, "tolerations": [{"operator": "Exists"}]},
    ),
    "argo-cd": {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "spec": {"source": {"chart": "aws-node-termination-handler", "helm": {"valuesObject": QUEUE_VALUES}}},
    },
    "flux": {
        "apiVersion": "helm.toolkit.fluxcd.io/v2",
        "kind": "HelmRelease",
        "spec": {"chart": {"spec": {"chart": "aws-node-termination-handler"}}, "values": QUEUE_VALUES},
    },
    "umbrella": {"aws-node-termination-handler": QUEUE_VALUES, "global": {}},
}


@pytest.mark.parametrize("name", SET_UPS)
def test_a_set_up_is_migrated_and_installed_without_an_edit(world: World, name: str) -> None:
    plane, source = world.control_plane, SET_UPS[name]
    if source.get("apiVersion") == "apps/v1":
        # As `kubectl get` prints it, with what the API server fills in. No node has its labels.
        source = plane.kube.create(f"/apis/apps/v1/namespaces/{world.name}/{source['kind'].lower()}s", source)
    file = world.folder / "nth.yaml"
    file.write_text(yaml.safe_dump(source))
    migrated = world.ask("migrate", str(file))
    assert migrated.returncode == 0, migrated.stderr
    assert "unknown" not in migrated.stderr
    values: Object = yaml.safe_load(migrated.stdout)
    values = values.get("ebbtide", values)
    # The API server has cluster roles of this name already.
    assert values.pop("fullnameOverride", None) == ("ebbtide" if name == "umbrella" else None)
    with installed("helm4", f"set-up-{name}", plane, world.folder, values) as ours:
        made = list(ours.made().values())
        service = dict(environment([each for each in made if each["kind"] == "Deployment"]))
        pods = ours.deployment()["spec"]["template"]["spec"]
        if name == "imds-on-spot-nodes":
            (agents,) = (each["spec"]["template"]["spec"] for each in made if each["kind"] == "DaemonSet")
            assert agents["nodeSelector"]["example.com/capacity"] == "spot"
            assert "example.com/capacity" not in pods["nodeSelector"]
            assert service["EBBTIDE_SOURCE"] == "nodes"
        else:
            assert service["EBBTIDE_QUEUE_URL"] == URL
            assert service["AWS_REGION"] == "eu-west-1"
            assert "rebalance=drain" in service["EBBTIDE_ON"].split(",")
        if name == "kops":
            assert pods["nodeSelector"]["node-role.kubernetes.io/control-plane"] == ""
            assert service["EBBTIDE_REQUIRE_TAG"] == "true"
