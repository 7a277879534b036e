"""The chart's output: snapshots, the same with helm 3 and 4, valid for every Kubernetes, permissions."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import schema
from api import KNOWN
from chart import (
    CHART,
    HELM3,
    HELM4,
    OLDEST,
    REPOSITORY,
    ROOT,
    SNAPSHOTS,
    VALUES,
    Helm,
    Object,
    Rules,
    cases,
    container,
    environment,
    everything,
    next_version,
    parse,
    policies,
    readme,
    rights,
    run,
    shown,
    snapshot,
    the,
    tool,
    with_snapshot,
)
from schemas import conform

QUEUE = "queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide\n"
EVERYTHING = yaml.safe_dump(everything(), sort_keys=False)

UNSCORED = {
    "container-resources": "a CPU limit would slow a drain down just when many nodes go at once",
    "container-ephemeral-storage-request-and-limit": "Ebbtide writes no files: its root is read-only",
    "container-image-pull-policy": "tags never move; a pod must start without the registry",
    "deployment-has-host-podantiaffinity": "pods are spread by topologySpreadConstraints",
    "pod-networkpolicy": "egress is the user's choice; network.yaml is scored with it",
}
"""Checks of kube-score that are left out, and the reasons."""


@pytest.mark.parametrize("case", with_snapshot(), ids=lambda case: case.stem)
def test_snapshot(case: Path) -> None:
    assert shown(case) == snapshot(case).read_text(), "if this is intended: tests/deploy/run --update"


def test_every_snapshot_has_values() -> None:
    assert set(SNAPSHOTS.iterdir()) == {snapshot(each) for each in with_snapshot()}


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.stem)
def test_helm_3_renders_the_same_objects(case: Path) -> None:
    def ordered(objects: list[Object]) -> list[str]:
        return sorted(json.dumps(each, sort_keys=True) for each in objects)

    assert ordered(HELM3.objects(values=case.read_text())) == ordered(HELM4.objects(values=case.read_text()))


@pytest.mark.parametrize("helm", [HELM4, pytest.param(HELM3, marks=pytest.mark.slow)], ids=lambda helm: helm.name)
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.stem)
def test_lint(helm: Helm, case: Path) -> None:
    given = ("--values", str(REPOSITORY), "--values", str(case))
    done = helm.run("lint", str(CHART), "--strict", "--kube-version", "1.34.0", *given)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_is_up_to_date() -> None:
    made = readme()
    assert made == (CHART / "README.md").read_text(), "out of date: tests/deploy/run --update"
    for key in leaves(yaml.safe_load(EVERYTHING)):
        assert any(f"| `{begin}` |" in made for begin in prefixes(key)), f"{'.'.join(key)} is not in the README"
    assert "](.." not in made, "helm show readme is read outside the repository: its links must be absolute"


def test_what_is_derived_in_the_schema_is_up_to_date() -> None:
    assert schema.derived() == schema.FILE.read_text(), "out of date: tests/deploy/run --update"
    known = schema.described()
    for key in leaves(yaml.safe_load((CHART / "values.yaml").read_text())):
        assert any(tuple(key[: length + 1]) in known for length in range(len(key))), f"{'.'.join(key)} has no comment"


def test_the_documents_name_the_tested_versions_of_kubernetes() -> None:
    control_plane = ROOT / "tests" / "real" / "control-plane"
    (default,) = re.findall(r"k8s\.io/kubernetes v(\S+) // indirect", (control_plane / "kubernetes" / "go.mod").read_text())
    lines = (control_plane / "versions").read_text().splitlines()
    tested = [default, *(line for line in lines if not line.startswith("#"))]
    faq = (ROOT / "docs" / "faq.md").read_text()
    first, *others = re.findall(r"^\| (\d\.\d+\.\d+),", faq, re.MULTILINE)
    assert [first, *others] == tested
    minors = " and ".join(".".join(each.split(".")[:2]) for each in tested)
    assert f"tested on {minors}." in readme()
    oldest, newest = (".".join(each.split(".")[:2]) for each in (OLDEST, KNOWN[-1]))
    assert f"| {oldest} to {newest} | the chart's objects" in faq
    assert f"kubernetes-{oldest}%2B" in (ROOT / "README.md").read_text()


def prefixes(key: tuple[str, ...]) -> list[str]:
    """Returns a value's name, and the names of the maps around it."""
    return [".".join(key[: length + 1]) for length in range(len(key))]


def leaves(values: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Returns the names of all scalar values."""
    if not isinstance(values, dict):
        return [above]
    return [leaf for key, below in values.items() for leaf in leaves(below, (*above, str(key)))]


FREE = {"strategy", "resources", "podSecurityContext", "securityContext", "affinity"}
"""Values that are Kubernetes objects."""

WITHOUT_EFFECT = {
    ("image", "tag"): "a digest is given",
    ("serviceAccount", "create"): "switches off; cordon-only.yaml has it",
    ("rbac", "create"): "switches off; see test_without_rbac_create_the_chart_creates_no_roles",
    ("agent", "admissionPolicy"): "switches off; see test_an_agent_is_kept_to_its_own_node",
    ("rbac", "doctor"): "switches off; least.yaml has it",
    ("kubeletPolicy",): "switches off; least.yaml has it",
    ("servicePolicy",): "switches off; least.yaml has it",
    ("surgeWithoutPolicy",): "there is the policy; see test_the_right_to_patch_deployments_needs_the_policy_that_bounds_it",
    ("networkPolicy", "enabled"): "switches off; least.yaml has it",
    ("podDisruptionBudget", "maxUnavailable"): "minAvailable is given",
    ("podDisruptionBudget", "enabled"): "switches off; least.yaml has it",
    ("service", "enabled"): "switches off; least.yaml has it",
    ("status", "enabled"): "switches off; least.yaml has it",
    ("serviceMonitor", "enabled"): "excludes the PodMonitor; cordon-only.yaml has it",
}


NEEDED = {
    ("queueUrl",),
    ("actions", "asgLaunch"),
    ("actions", "rebalance"),
    ("settings", "source"),
    ("settings", "ec2PollInterval"),
    ("notifications", "existingSecret"),
    ("traces", "endpoint"),
}
"""Values without which the chart refuses others."""


def test_everything_sets_every_value() -> None:
    ours = {
        key[:1] if key[0] in FREE else key
        for key in leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
        if key[0] != "serviceMonitor" or key == ("serviceMonitor", "enabled")
    }
    # Not with a queue, which the other cases have.
    set_here = leaves(yaml.safe_load(EVERYTHING)) + leaves(yaml.safe_load((VALUES / "nodes.yaml").read_text()))
    missing = [key for key in ours if not any(each[: len(key)] == key for each in set_here)]
    known = {
        ("nodeSelector", "kubernetes.io/os"),
        ("agent", "nodeSelector", "kubernetes.io/os"),
        ("dashboard", "labels", "grafana_dashboard"),
    }
    assert set(missing) <= known, "no case sets these"


@pytest.mark.slow
def test_every_value_has_an_effect() -> None:
    """Removes each value from everything(), which must change the output."""
    values = yaml.safe_load(EVERYTHING)
    whole = HELM4.template(values=yaml.safe_dump(values))
    idle = []
    for key in leaves(values):
        if key in NEEDED:
            continue
        without = yaml.safe_load(yaml.safe_dump(values))
        within = without
        for each in key[:-1]:
            within = within[each]
        del within[key[-1]]
        if HELM4.template(values=yaml.safe_dump(without)) == whole:
            idle.append(key)
    assert set(idle) == set(WITHOUT_EFFECT), "WITHOUT_EFFECT does not match the values without effect"


# Kubernetes' API.

OTHERS = [pytest.param(version, marks=pytest.mark.slow) for version in KNOWN[1:-1]]


@pytest.mark.parametrize("version", [KNOWN[0], *OTHERS, KNOWN[-1]])
def test_valid_for_kubernetes(version: str, schemas: Path) -> None:
    # The chart refuses the policy there.
    without_policy = ["--set", "agent.admissionPolicy=false"] if int(version.split(".")[1]) < 30 else []
    for case in cases():
        made = HELM4.template(*without_policy, values=case.read_text(), kubernetes=version)
        refused = conform(made, version, schemas)
        assert not refused, f"{case.name}: {refused}"


def test_unknown_fields_are_found(schemas: Path) -> None:
    made = HELM4.template(values=EVERYTHING)
    for right, wrong in [
        ("terminationGracePeriodSeconds", "terminationGracePeriod"),
        ("podMetricsEndpoints", "podMetricsEndpoint"),
        ("unhealthyPodEvictionPolicy", "unhealthyPodsEvictionPolicy"),
    ]:
        assert right in made
        assert conform(made.replace(right, wrong), KNOWN[-1], schemas), wrong


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.stem)
def test_score(case: Path) -> None:
    # least.yaml has no budget on purpose.
    spared = [*UNSCORED, *(["deployment-has-poddisruptionbudget"] if case.stem == "least" else [])]
    if case.stem == "network":
        spared.remove("pod-networkpolicy")
    if case.stem == "pods":
        spared.remove("container-image-pull-policy")
        # It reduces the security contexts, so that they differ from the default.
        spared.append("container-security-context-user-group-id")
        spared.append("container-security-context-readonlyrootfilesystem")
    done = score(case, spared)
    assert done.returncode == 0, done.stdout + done.stderr


def score(case: Path, spared: list[str]) -> subprocess.CompletedProcess[str]:
    """Returns kube-score's verdict on a case, without the checks that are spared."""
    ignored = [word for check in spared for word in ("--ignore-test", check)]
    made = HELM4.template(values=case.read_text())
    return run(
        tool("kube-score"), "score", "--kubernetes-version", "v1.34", "--exit-one-on-warning", *ignored, "-", given=made
    )


# The objects' content.


def test_no_pod_returns_to_a_cordoned_node() -> None:
    pod = the("Deployment", HELM4.objects(values=QUEUE))["spec"]["template"]["spec"]
    assert "tolerations" not in pod


def test_own_taints_are_tolerated_for_a_while() -> None:
    taints = "settings: {taint: ['a=b:NoExecute', 'c:NoExecute', 'd=e:NoSchedule', 'f=:NoExecute']}\n"
    pod = the("Deployment", HELM4.objects(values=QUEUE + taints))["spec"]["template"]["spec"]
    bounded = {"effect": "NoExecute", "tolerationSeconds": 120}
    assert pod["tolerations"] == [
        {"key": "a", "operator": "Equal", "value": "b", **bounded},
        {"key": "c", "operator": "Exists", **bounded},
        {"key": "f", "operator": "Exists", **bounded},
    ]


def test_a_second_replica_is_not_pending() -> None:
    pod = the("Deployment", HELM4.objects(values=QUEUE))["spec"]["template"]["spec"]
    spread = {each["topologyKey"]: each["whenUnsatisfiable"] for each in pod["topologySpreadConstraints"]}
    assert spread == {
        "topology.kubernetes.io/zone": "ScheduleAnyway",
        "kubernetes.io/hostname": "ScheduleAnyway",
    }


def test_recreate_leaves_the_default_of_a_rolling_update_out() -> None:
    spec = the("Deployment", HELM4.objects(values=QUEUE + "strategy: {type: Recreate}"))["spec"]
    assert spec["strategy"] == {"type": "Recreate"}


def test_the_nodes_network_has_its_dns_policy() -> None:
    pod = the("Deployment", HELM4.objects(values=QUEUE + "hostNetwork: true"))["spec"]["template"]["spec"]
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")


def test_resources_can_be_removed() -> None:
    assert "resources" not in container(HELM4.objects(values=QUEUE + "resources: null"))


def test_a_budget_has_one_of_its_two_forms() -> None:
    one = "podDisruptionBudget: {minAvailable: 1, maxUnavailable: null}"
    least = "podDisruptionBudget: {minAvailable: 0}"
    for values, form in (("", {"maxUnavailable": 1}), (least, {"minAvailable": 0}), (one, {"minAvailable": 1})):
        spec = the("PodDisruptionBudget", HELM4.objects(values=QUEUE + values))["spec"]
        assert {key: spec[key] for key in spec if key.endswith("vailable")} == form


def test_every_object_has_the_common_annotations_and_its_own_win() -> None:
    for made in HELM4.objects(values=EVERYTHING.partition("extraObjects:")[0] + "extraObjects: []"):
        assert made["metadata"]["annotations"]["example.com/owner"] == "nodes", made["kind"]
    values = QUEUE + "commonAnnotations: {example.com/owner: nodes}\ndeploymentAnnotations: {example.com/owner: mine}"
    assert the("Deployment", HELM4.objects(values=values))["metadata"]["annotations"] == {"example.com/owner": "mine"}


@pytest.mark.parametrize(("monitor", "kind"), [("podMonitor", "PodMonitor"), ("serviceMonitor", "ServiceMonitor")])
def test_a_monitor_in_another_namespace_finds_the_pods(monitor: str, kind: str) -> None:
    values = f"{QUEUE}{monitor}: {{enabled: true, namespace: monitoring, sampleLimit: 2000000}}"
    made = the(kind, HELM4.objects(values=values))
    assert made["metadata"]["namespace"] == "monitoring"
    assert made["spec"]["namespaceSelector"] == {"matchNames": ["ebbtide"]}
    assert made["spec"]["sampleLimit"] == 2000000


def test_helm_test_runs_doctor_as_the_service_runs() -> None:
    objects = HELM4.objects(values=EVERYTHING)
    pod, service = the("Pod", objects), the("Deployment", objects)["spec"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert not service["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items(), "the Service selects it"
    template = service["template"]["spec"]
    (ours,), (its,) = pod["spec"].pop("containers"), template.pop("containers")
    assert pod["spec"] == template | {"restartPolicy": "Never"}
    assert its.pop("args") == ["run", "--log=debug"]
    assert ours.pop("args") == ["doctor", "--log=debug"]
    assert ours == {key: its[key] for key in its if key != "ports" and not key.endswith("Probe")}


def test_probes_use_paths_that_the_service_serves() -> None:
    found = container(HELM4.objects(values=QUEUE))
    ports = {each["name"]: each["containerPort"] for each in found["ports"]}
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        asked = found[probe]["httpGet"]
        assert (asked["path"], ports[asked["port"]]) == (path, 8080)


@pytest.mark.parametrize(
    ("values", "ours"),
    [
        ("", ""),
        ("podMonitor: {enabled: true}", '{namespace="ebbtide",job=~"(ebbtide/)?ebbtide"}'),
        ("serviceMonitor: {enabled: true}", '{namespace="ebbtide",job=~"(ebbtide/)?ebbtide"}'),
        ("podMonitor: {enabled: true, namespace: mon}", '{namespace="ebbtide",job=~"(mon/)?ebbtide"}'),
        ("podMonitor: {enabled: true}\nfullnameOverride: tide", '{namespace="ebbtide",job=~"(ebbtide/)?tide"}'),
        ("prometheusRule: {matchers: 'cluster=\"blue\", job!~\"x.*\"'}", '{cluster="blue", job!~"x.*"}'),
    ],
)
def test_the_alerts_match_the_file_and_one_watches_this_installation(values: str, ours: str) -> None:
    objects = HELM4.objects("--set", "prometheusRule.enabled=true", values=f"{QUEUE}{values}\n")
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    (down,) = [rule for group in groups for rule in group["rules"] if rule["alert"] == "EbbtideDown"]
    assert down["expr"] == "absent(ebbtide_ready == 1)"
    down["expr"] = f"absent(ebbtide_ready{ours} == 1)"
    assert the("PrometheusRule", objects)["spec"]["groups"] == groups


def alert_rules(values: str) -> dict[str, dict[str, Any]]:
    """Returns the alerts of a PrometheusRule, by name."""
    rule = the("PrometheusRule", HELM4.objects("--set", "prometheusRule.enabled=true", values=f"{QUEUE}{values}\n"))
    return {each["alert"]: each for group in rule["spec"]["groups"] for each in group["rules"]}


def test_an_alert_is_changed_by_its_name() -> None:
    before = alert_rules("")
    late = "EbbtideMessagesLate: {threshold: 0.2, for: 5m, severity: page, labels: {a: b}}"
    after = alert_rules(f"prometheusRule: {{alertLabels: {{a: all, team: x}}, alerts: {{EbbtideUnusual: {{enabled: false}}, {late}}}}}")
    assert before.keys() - after.keys() == {"EbbtideUnusual"}
    changed = after["EbbtideMessagesLate"]
    assert changed == before["EbbtideMessagesLate"] | {
        "expr": before["EbbtideMessagesLate"]["expr"].replace("> 0.05", "> 0.2"),
        "for": "5m",
        "labels": {"severity": "page", "a": "b", "team": "x"},
    }
    others = [name for name in after if name != "EbbtideMessagesLate"]
    assert all(after[name] == before[name] | {"labels": before[name]["labels"] | {"a": "all", "team": "x"}} for name in others)


def test_a_threshold_changes_the_number_that_the_alert_is_about() -> None:
    before = alert_rules("")
    known = json.loads((CHART / "values.schema.json").read_text())["properties"]["prometheusRule"]["properties"]["alerts"]["properties"]
    with_threshold = {name for name, form in known.items() if form["$ref"].endswith("WithThreshold")}
    changes = ", ".join(f"{name}: {{threshold: 77}}" for name in with_threshold)
    after = alert_rules(f"prometheusRule: {{alerts: {{{changes}}}}}")
    found = {}
    for name in before:
        pairs = list(zip(before[name]["expr"].split(), after[name]["expr"].split(), strict=True))
        found |= {name: (one, other) for one, other in pairs if one != other}
    numbers = {name: one.rstrip(")") for name, (one, other) in found.items() if other.rstrip(")") == "77"}
    assert numbers == dict.fromkeys(with_threshold, "0") | {
        "EbbtideRestarting": "3",
        "EbbtideNotConfirmed": "3",
        "EbbtideMessagesLate": "0.05",
        "EbbtideManyDeadlinesMissed": "0.1",
        "EbbtideWaitTimeouts": "0.5",
        "EbbtideHeartbeatsFailing": "2",
        "EbbtideThrottledByAws": "0.1",
        "EbbtideThrottledByKubernetes": "0.1",
        "EbbtideWatchFailing": "4",
        "EbbtideAgentsBlind": "8",
        "EbbtideAgentsMute": "8",
        "EbbtideNodesWithoutAgent": "0.02",
    }


def test_the_dashboard_matches_the_file() -> None:
    dashboard = the("ConfigMap", HELM4.objects(values=EVERYTHING), "ebb-dashboard")["data"]["ebbtide.json"]
    assert json.loads(dashboard) == json.loads((CHART / "files" / "dashboard.json").read_text())


def test_the_image_has_the_digest_the_tag_or_the_version() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    repository = yaml.safe_load(REPOSITORY.read_text())["image"]["repository"]
    digest = "sha256:" + 64 * "a"
    for values, image in [
        ("", f"{repository}:{version}"),
        ("image: {tag: next}", f"{repository}:next"),
        (f"image: {{tag: next, digest: '{digest}'}}", f"{repository}@{digest}"),
    ]:
        assert container(HELM4.objects(values=QUEUE + values))["image"] == image


VERSIONED = {"helm.sh/chart", "app.kubernetes.io/version"}
"""Labels that contain a version."""


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.stem)
def test_a_new_version_changes_only_labels_and_the_image(case: Path, tmp_path: Path) -> None:
    """Checks that no selector contains a version: a Deployment's selector is immutable, so helm upgrade would fail."""
    objects = HELM4.objects(values=case.read_text())
    was = dict(places(objects))
    became = dict(places(HELM4.objects(values=case.read_text(), chart=next_version(tmp_path))))
    assert was.keys() == became.keys()
    changed = {place for place in was if was[place] != became[place]}
    labels = {place for place in changed if place[-2:-1] == ("labels",) and place[-1] in VERSIONED}
    assert {place[-1] for place in labels} == VERSIONED
    assert {place[-1] for place in changed - labels} <= {"image"}
    # Nor may it contain the user's labels, which may change.
    selector = the("Deployment", objects)["spec"]["selector"]["matchLabels"]
    assert selector.keys() == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}


def places(made: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yields every scalar value of the output, with its path."""
    if not isinstance(made, dict | list):
        yield above, made
        return
    for key, below in made.items() if isinstance(made, dict) else enumerate(made):
        yield from places(below, (*above, key))


# Permissions.

MARKS: Rules = {("", "write", "marks", "")}
NODES: Rules = MARKS | {("", verb, "nodes", "") for verb in ("get", "list", "watch", "patch")}
DRAINS: Rules = {("", "list", "pods", ""), ("", "watch", "pods", ""), ("", "create", "pods/eviction", "")}
TRIES: Rules = {("", "delete", "pods", "")}
"""Deletions of a dry run."""
DELETES: Rules = TRIES | {("", "patch", "pods/status", "")}
VOLUMES: Rules = {
    ("", "list", "volumeattachments", ""),
    ("", "watch", "volumeattachments", ""),
    ("", "get", "persistentvolumeclaims", ""),
}
ATTACHMENTS: Rules = {("", verb, "volumeattachments", "") for verb in ("list", "watch")}
ENDED: Rules = {("", "delete", "nodes", "")}
SURGES: Rules = {("", "get", "replicasets", ""), ("", "get", "deployments", ""), ("", "patch", "deployments", "")}
BALANCERS: Rules = {("", "list", "targetgroupbindings", "")}
TELLS: Rules = {("", "patch", "nodes/status", ""), ("", "create", "events", ""), ("", "patch", "events", "")}
DOCTOR: Rules = {("", "list", kind, "") for kind in ("poddisruptionbudgets", "validatingadmissionpolicies", "validatingadmissionpolicybindings")}
NODE_LEASES: Rules = {("kube-node-lease", verb, "leases", "") for verb in ("list", "delete")}
TURNS: Rules = {
    ("ebbtide", "create", "leases", ""),
    *(("ebbtide", verb, "leases", "ebbtide-collector") for verb in ("get", "update")),
}
NODES_TURN: Rules = {
    ("ebbtide", "create", "leases", ""),
    *(("ebbtide", verb, "leases", "ebbtide-nodes") for verb in ("get", "update")),
}
HARD = {"asgTerminate": "cordon", "spot": "report", "scheduledChange": "cordon", "capacityReservation": "ignore"}
"""Kinds whose deadline ends the capacity, with an action that does not drain."""


def actions(**chosen: str) -> str:
    """Returns values with which the kinds with a hard deadline don't drain, and the others have these actions."""
    return yaml.safe_dump({"actions": HARD | chosen})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("", NODES | DRAINS | VOLUMES | DELETES | TELLS),
        ("settings: {atDeadline: delete, events: all}", NODES | DRAINS | VOLUMES | DELETES | TELLS),
        ("settings: {atDeadline: leave}", NODES | DRAINS | VOLUMES | TELLS),
        ("settings: {events: none}", NODES | DRAINS | VOLUMES | DELETES),
        ("settings: {events: all, dryRun: true}", NODES | DRAINS | TRIES),
        ("settings: {waitForVolumes: 0s}", NODES | DRAINS | DELETES | TELLS),
        ("settings: {dryRun: true}", NODES | DRAINS | TRIES),
        *[
            (f"settings: {{waitForLoadBalancers: {mode}}}", NODES | DRAINS | VOLUMES | DELETES | TELLS | BALANCERS)
            for mode in ("wait", "deregister")
        ],
        ("settings: {waitForLoadBalancers: \"off\"}", NODES | DRAINS | VOLUMES | DELETES | TELLS),
        ("settings: {waitForLoadBalancers: deregister, dryRun: true}", NODES | DRAINS | TRIES),
        (actions() + "settings: {waitForLoadBalancers: wait}", NODES | DRAINS | TELLS),
        (
            actions(stateChange="report") + "settings: {source: [queue, nodes], onCondition: ['A=True:5m=drain']}",
            NODES | DRAINS | TELLS | NODES_TURN,
        ),
        (
            actions(stateChange="report") + "settings: {surge: 5m, source: [queue, nodes], onCondition: ['A=False/B*:5m=reboot']}",
            NODES | DRAINS | TELLS | NODES_TURN | SURGES,
        ),
        (
            actions(stateChange="report") + "settings: {source: [queue, nodes], onCondition: ['A=True:5m=cordon']}",
            NODES | TELLS | NODES_TURN,
        ),
        *[
            (actions(stateChange="report", statusCheck=action) + "settings: {ec2PollInterval: 5m}", NODES | DRAINS | TELLS)
            for action in ("drain", "reboot", "replace")
        ],
        (actions() + "settings: {waitForLoadBalancers: deregister}", NODES | DRAINS | TELLS | BALANCERS),
        ("settings: {atDeadline: leave, events: none}", NODES | DRAINS | VOLUMES),
        ("settings: {collectLeases: true}", NODES | DRAINS | VOLUMES | DELETES | TELLS | NODE_LEASES | TURNS),
        ("settings: {collectLeases: true, dryRun: true}", NODES | DRAINS | TRIES | NODE_LEASES),
        ("settings: {collectLeases: false}", NODES | DRAINS | VOLUMES | DELETES | TELLS),
        ("settings: {collectNodes: true}", NODES | DRAINS | VOLUMES | DELETES | TELLS | ENDED | TURNS),
        ("settings: {collectNodes: true, waitForVolumes: 0s}", NODES | DRAINS | ATTACHMENTS | DELETES | TELLS | ENDED | TURNS),
        ("settings: {collectNodes: true, dryRun: true}", NODES | DRAINS | TRIES | ENDED),
        (
            "settings: {collectNodes: true, collectLeases: true}",
            NODES | DRAINS | VOLUMES | DELETES | TELLS | ENDED | NODE_LEASES | TURNS,
        ),
        ("settings: {surge: 5m}", NODES | DRAINS | VOLUMES | DELETES | TELLS | SURGES),
        ("settings: {surge: 5m, dryRun: true}", NODES | DRAINS | TRIES | SURGES),
        ("settings: {surge: null}", NODES | DRAINS | VOLUMES | DELETES | TELLS),
        ("pools: [{name: web, nodeSelector: {a: b}, surge: 5m}]", NODES | DRAINS | VOLUMES | DELETES | TELLS | SURGES),
        (actions(stateChange="ignore") + "settings: {surge: 5m}", NODES | TELLS),
        ("settings: {collectNodes: false}", NODES | DRAINS | VOLUMES | DELETES | TELLS),
        ("settings: {source: [queue, nodes]}", NODES | DRAINS | VOLUMES | DELETES | TELLS | NODES_TURN),
        ("settings: {source: [queue, nodes], dryRun: true}", NODES | DRAINS | TRIES),
        ("settings: {source: [queue]}", NODES | DRAINS | VOLUMES | DELETES | TELLS),
        (actions(), NODES | DRAINS | TELLS),
        (actions() + "settings: {events: none}", NODES | DRAINS),
        (actions(stateChange="ignore"), NODES | TELLS),
        (actions(stateChange="ignore") + "settings: {events: none}", NODES),
        (actions(stateChange="ignore", rebalance="drain"), NODES | DRAINS | TELLS),
        (actions(stateChange="ignore", asgLaunch="ready"), NODES | TELLS),
        *[
            (
                actions(stateChange="ignore", **{kind: "drain"}),
                NODES | DRAINS | DELETES | TELLS | (VOLUMES if kind == "asgTerminate" else set()),
            )
            for kind in HARD
        ],
    ],
)
def test_permissions_match_the_settings(values: str, expected: Rules) -> None:
    assert rights(HELM4.objects(values=QUEUE + values)) == expected | DOCTOR
    assert rights(HELM4.objects("--set", "rbac.doctor=false", values=QUEUE + values)) == expected


def test_each_release_has_a_lease_of_its_own_for_what_nodes_say() -> None:
    values = QUEUE + "settings: {source: [queue, nodes]}\nfullnameOverride: other\n"
    objects = HELM4.objects(values=values)
    assert environment(objects)["EBBTIDE_NODES_LEASE"] == "other-nodes"
    assert {right for right in rights(objects) if right[2] == "leases"} == {
        ("ebbtide", "create", "leases", ""),
        *(("ebbtide", verb, "leases", "other-nodes") for verb in ("get", "update")),
    }


def test_roles_are_bound_to_the_service_accounts() -> None:
    objects = HELM4.objects(values=EVERYTHING)
    accounts = {
        each["spec"]["template"]["spec"]["serviceAccountName"] for each in objects if each["kind"] in {"Deployment", "DaemonSet"}
    }
    assert {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"} == accounts
    roles = {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects}
    bindings = [each for each in objects if each["kind"].endswith("RoleBinding")]
    assert len(bindings) == 5
    for binding in bindings:
        account = binding["subjects"][0]["name"]
        assert account in accounts and account.endswith("-agent") == binding["metadata"]["name"].endswith("-agent")
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "ebbtide"}]
        role = binding["roleRef"]
        assert (role["kind"], binding["metadata"].get("namespace"), role["name"]) in roles


def test_an_agent_is_kept_to_its_own_node() -> None:
    values = "settings: {source: [nodes]}\nagent: {enabled: true}\n"
    objects = HELM4.objects(values=values)
    agent = [each for each in objects if each["metadata"]["name"].endswith("-agent")]
    assert rights([each for each in agent if each["kind"].startswith("ClusterRole")]) == MARKS | {("", "patch", "nodes", "")}
    account = the("DaemonSet", objects)["spec"]["template"]["spec"]["serviceAccountName"]
    policy = the("ValidatingAdmissionPolicy", objects, "ebbtide-agent")["spec"]
    (condition,) = policy["matchConditions"]
    assert condition["expression"] == f"request.userInfo.username == 'system:serviceaccount:ebbtide:{account}'"
    assert the("ValidatingAdmissionPolicyBinding", objects, "ebbtide-agent")["spec"]["validationActions"] == ["Deny"]
    service = the("Deployment", objects)["spec"]["selector"]["matchLabels"]
    assert not service.items() <= the("DaemonSet", objects)["spec"]["template"]["metadata"]["labels"].items()
    # Without its policy it could use the right to write marks on every Node.
    without = ["--set", "agent.admissionPolicy=false"]
    refused = HELM4.try_template(*without, values=values)
    assert refused.returncode != 0 and "the policy ebbtide-marks of kubeletPolicy asks for" in refused.stderr
    for more in ("kubeletPolicy=false", "rbac.create=false"):
        objects = HELM4.objects(*without, "--set", more, values=values)
        assert the("DaemonSet", objects)
        agent = [each for each in objects if each["metadata"]["name"].endswith("-agent")]
        roles = [each for each in agent if each["kind"].startswith("ClusterRole")]
        assert rights(roles) == ({("", "patch", "nodes", "")} if roles else set())
    # A version that an old helm invents must not leave it out silently.
    refused = HELM4.try_template(values=values, kubernetes="1.29.15")
    assert refused.returncode != 0
    assert "agent.admissionPolicy needs Kubernetes 1.30, and this is v1.29.15: give helm template" in refused.stderr
    assert not HELM4.try_template(*without, values=values, kubernetes="1.29.15").returncode
    assert not HELM4.try_template(values=values, kubernetes="1.30.0").returncode


def test_what_ebbtide_keeps_on_nodes_has_policies_where_the_api_server_knows_it() -> None:
    def names(*arguments: str, kubernetes: str = "1.30.0") -> set[str]:
        objects = parse(HELM4.template(*arguments, values=QUEUE, kubernetes=kubernetes))
        return {each["metadata"]["name"] for each in objects if each["kind"].startswith("ValidatingAdmissionPolicy")}

    others, bounds = {"ebbtide-kubelets", "ebbtide-marks"}, {"ebbtide-service", "ebbtide-service-pods"}
    assert names() == others | bounds
    assert names(kubernetes="1.29.15") == set()
    assert names("--set", "kubeletPolicy=false") == bounds
    assert names("--set", "servicePolicy=false") == others
    # Only the policy for other clients needs a right of Ebbtide's.
    assert names("--set", "rbac.create=false") == {"ebbtide-kubelets"} | bounds
    # With the kinds of the cluster, these decide, whatever the version.
    node, policy = ("--api-versions", "v1/Node"), "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
    assert names(*node) == set()
    assert names(*node, "--api-versions", policy) == others | bounds


def test_the_doctor_knows_the_policies_that_the_chart_renders() -> None:
    known = json.loads((ROOT / "src/commands/doctor/policies.json").read_text())
    assert known == policies(), "if this is intended: tests/deploy/run --update"
    objects = HELM4.objects("--set", "settings.surge=5m", values=AGENTS)
    bindings = [each for each in objects if each["kind"] == "ValidatingAdmissionPolicyBinding"]
    for each in bindings:
        kind = each["metadata"]["labels"]["ebbtide/policy"]
        assert each["spec"] == {"policyName": f"ebbtide-{kind}", "validationActions": ["Deny"]}
    assert len(bindings) == len(known) == 6


def test_the_right_to_patch_deployments_needs_the_policy_that_bounds_it() -> None:
    surge = "settings: {surge: 5m}\n"
    (policy,) = (
        each["spec"]
        for each in HELM4.objects(values=QUEUE + surge)
        if each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"] == "ebbtide-service-deployments"
    )
    assert (policy["failurePolicy"], policy["matchConstraints"]["resourceRules"][0]["resources"]) == ("Fail", ["deployments"])
    for values, kubernetes in ((surge + "servicePolicy: false\n", "1.30.0"), (surge, "1.29.15")):
        refused = HELM4.try_template(values=QUEUE + values, kubernetes=kubernetes)
        assert refused.returncode != 0
        assert "settings.surge needs the right to patch Deployments, which only the policy ebbtide-service-deployments of" in refused.stderr
        accepted = HELM4.try_template("--set", "surgeWithoutPolicy=true", values=QUEUE + values, kubernetes=kubernetes)
        assert not accepted.returncode, accepted.stderr


def test_the_service_is_bound_to_the_taints_of_its_settings() -> None:
    def bounds(values: str) -> dict[str, str]:
        spec = the("ValidatingAdmissionPolicy", HELM4.objects(values=QUEUE + values), "ebbtide-service")["spec"]
        assert (spec["failurePolicy"], len(spec["matchConditions"])) == ("Fail", 1)
        variables = {each["name"]: each["expression"] for each in spec["variables"]}
        return {"user": spec["matchConditions"][0]["expression"], **{name: variables[name] for name in ("taints", "keys", "collects")}}

    stopped = "node.kubernetes.io/out-of-service"
    user = "request.userInfo.username == 'system:serviceaccount:ebbtide:"
    assert bounds("") == {"user": f"{user}ebbtide'", "taints": "[]", "keys": f"['{stopped}']", "collects": "false"}
    for value, expected in (("false", "false"), ("true", "true")):
        bound = bounds(f"settings: {{collectNodes: {value}}}")
        assert (bound["collects"], stopped in bound["taints"]) == (expected, expected == "true")
    values = """
serviceAccount: {name: other}
settings:
  taint: ['a=b:NoSchedule', 'c.d/e:NoExecute', 'f=:NoSchedule', 'a=b:NoExecute']
  formerTaint: [old, a]
  outOfServiceTaint: true
"""
    assert bounds(values) == {
        "user": f"{user}other'",
        "taints": f"['a=b:NoSchedule', 'c.d/e:NoExecute', 'f:NoSchedule', 'a=b:NoExecute', '{stopped}=nodeshutdown:NoExecute']",
        "keys": f"['{stopped}', 'a', 'c.d/e', 'f', 'old']",
        "collects": "false",
    }


def test_pods_prefer_capacity_that_is_not_spot() -> None:
    def affinity(values: str) -> Object:
        found: Object = the("Deployment", HELM4.objects(values=QUEUE + values))["spec"]["template"]["spec"]["affinity"]
        return found

    ((kind, preferences),) = affinity("")["nodeAffinity"].items()
    assert kind == "preferredDuringSchedulingIgnoredDuringExecution", "no pod stays Pending for it"
    (terms,) = (each["preference"]["matchExpressions"] for each in preferences)
    assert {each["key"]: (each["operator"], each["values"]) for each in terms} == {
        "karpenter.sh/capacity-type": ("NotIn", ["spot"]),
        "eks.amazonaws.com/capacityType": ("NotIn", ["SPOT"]),
        "node.kubernetes.io/lifecycle": ("NotIn", ["spot"]),
    }
    own = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert affinity(f"affinity: {json.dumps(own)}") == own


AGENTS = "queueUrl: ''\nsettings: {source: [nodes]}\nagent: {enabled: true}\n"


def test_agents_have_the_ways_out_of_the_service() -> None:
    ours = "true, resources: null, updateStrategy: {type: OnDelete}}"
    values = "commonLabels: {team: nodes}\n" + AGENTS.replace("true}", ours)
    made = the("DaemonSet", HELM4.objects(values=values))["spec"]
    assert made["updateStrategy"] == {"type": "OnDelete"}
    assert made["template"]["metadata"]["labels"]["team"] == "nodes"
    assert "resources" not in made["template"]["spec"]["containers"][0]
    assert "team" not in made["selector"]["matchLabels"], "a selector can't change"


@pytest.mark.parametrize(
    ("kind", "values", "selector"),
    [
        ("PodMonitor", "podMonitor: {enabled: true}", "selector"),
        ("NetworkPolicy", "", "podSelector"),
    ],
)
def test_agents_are_scraped_and_have_a_network_policy(kind: str, values: str, selector: str) -> None:
    objects = HELM4.objects(values=AGENTS + values)
    selected = the(kind, objects, "ebbtide-agent")["spec"][selector]["matchLabels"]
    template = the("DaemonSet", objects)["spec"]["template"]
    assert selected.items() <= template["metadata"]["labels"].items()
    assert [each["name"] for each in template["spec"]["containers"][0]["ports"]] == ["metrics"]
    assert the(kind, HELM4.objects(values=QUEUE + values))["metadata"]["name"] == "ebbtide"


def test_ingress_is_restricted_by_default_and_egress_by_choice() -> None:
    def policy(values: str) -> Object:
        spec: Object = the("NetworkPolicy", HELM4.objects(values=QUEUE + values), "ebbtide")["spec"]
        return spec

    default = policy("")
    assert default["policyTypes"] == ["Ingress"]
    assert "egress" not in default
    metrics, status = default["ingress"]
    assert metrics == {"ports": [{"port": "metrics", "protocol": "TCP"}]}, "from everywhere"
    assert (status["ports"][0]["port"], [list(peer) for peer in status["from"]]) == ("status", [["podSelector"]])
    assert policy("status: {shared: false}")["ingress"] == [metrics]
    none = HELM4.objects(values=QUEUE + "networkPolicy: {enabled: false}")
    assert not [each for each in none if each["kind"] == "NetworkPolicy"]

    both = "networkPolicy: {egress: true}\n"
    assert policy(both)["policyTypes"] == ["Ingress", "Egress"]
    ways = """
traces: {endpoint: 'http://collector.observability:4318'}
notifications: {existingSecret: a, proxy: 'http://10.0.0.1:3128'}
extraEnv:
  - {name: HTTPS_PROXY, value: 'http://user:secret@proxy.example'}
  - {name: ALL_PROXY, value: 'http://[fd00::1]:8888/'}
  - {name: https_proxy, value: ' proxy.example:3129 '}
  - {name: all_proxy, value: '10.0.0.1:3130'}
  - {name: NO_PROXY, value: 'a:9999'}
"""
    before, after = (policy(both + more)["egress"] for more in ("", ways))
    (added,) = (each for each in after if each not in before)
    assert added == {"ports": [{"port": port, "protocol": "TCP"} for port in (3128, 4318, 80, 8888, 3129, 3130)]}


def test_no_network_policy_is_made_for_agents_on_the_nodes_network() -> None:
    objects = HELM4.objects("--set", "agent.hostNetwork=true", values=AGENTS)
    assert the("NetworkPolicy", objects)["metadata"]["name"] == "ebbtide"


def notes(values: str) -> str:
    """Returns the notes of an installation, on one line."""
    both = ("--values", str(REPOSITORY), "--values", "-")
    done = HELM4.run("install", "ebbtide", str(CHART), "--dry-run=client", *both, given=values)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.partition("NOTES:")[2].split())


def test_the_notes_name_a_taint_that_the_policy_does_not_know() -> None:
    for values, expected in (("", False), ("extraArgs: [--log=debug]", False), ("extraArgs: ['--taint=a=b:NoSchedule']", True)):
        assert ("OPEN: extraArgs names a taint" in notes(QUEUE + values)) == expected


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_the_notes_say_whether_agents_run(enabled: str) -> None:
    said = notes(AGENTS.replace("enabled: true", f"enabled: {enabled}"))
    assert ("no node is ever drained" in said) == (enabled == "false")
    assert ("OPEN: agent.enabled is false" in said) == (enabled == "false")
    assert ("rollout status daemonset/ebbtide-agent" in said) == (enabled == "true")


@pytest.mark.parametrize(
    ("source", "otherwise"),
    [
        ("source: [nodes]", "no node is ever drained"),
        ("source: [nodes, ec2], ec2PollInterval: 5m", "only AWS gives notices"),
    ],
)
def test_for_conditions_no_agent_is_missing(source: str, otherwise: str) -> None:
    values = f"settings: {{{source}}}"
    said = notes(values)
    assert "OPEN: agent.enabled is false" in said
    assert otherwise in said
    said = notes(values.replace("}", ", onCondition: [Ready=Unknown:10m=drain]}"))
    assert "OPEN" not in said
    assert otherwise not in said
    assert "It acts on the conditions of Nodes." in said
    assert "spot interruption, are not seen" in said
    said = notes(values.replace("}", ", onCondition: [Ready=Unknown:10m=drain]}") + "\nagent: {enabled: true}")
    assert "It acts on the conditions of Nodes, and on agent notices, which the DaemonSet ebbtide-agent" in said


@pytest.mark.parametrize(("values", "deleted"), [(QUEUE, True), (AGENTS, False)])
def test_the_notes_of_a_dry_run_tell_of_messages_if_there_is_a_queue(values: str, deleted: bool) -> None:
    said = notes(values + "settings: {dryRun: true}" if deleted else values.replace("{", "{dryRun: true, ", 1))
    assert "This is a dry run: nodes are not drained" in said
    assert ("messages are deleted" in said) == deleted


@pytest.mark.parametrize(
    ("image", "named"),
    [("", False), ("tag: 5d917e4", True), (f"tag: a, digest: 'sha256:{'a' * 64}'", False)],
)
def test_the_notes_name_another_version_of_the_image(image: str, named: bool) -> None:
    said = notes(QUEUE + f"image: {{repository: registry.example/you/ebbtide, {image}}}")
    # The whole map: a digest of one's own must not stay with the release's repository.
    assert ("It runs the image of image.tag, " in said) == ("--set image=null" in said) == named, said


def test_the_notes_name_the_policies_that_are_missing() -> None:
    assert "OPEN" not in notes(QUEUE)
    said = notes(QUEUE + "rbac: {create: false}")
    assert "there is the policy ebbtide-kubelets, but not ebbtide-marks" in said
    said = notes(QUEUE + "kubeletPolicy: false")
    assert "kubeletPolicy is false" in said and "ebbtide-kubelets" not in said and "servicePolicy" not in said
    said = notes(QUEUE + "servicePolicy: false")
    assert "no policy bounds the service, because servicePolicy is false" in said and "kubeletPolicy" not in said


@pytest.mark.parametrize("hook", ["", ", nodeHook: drain"])
def test_the_notes_name_the_role_if_aws_is_called(hook: str) -> None:
    said = notes(AGENTS.replace("source: [nodes]", "source: [nodes]" + hook))
    assert ("create-pod-identity-association" in said) == bool(hook)


def test_the_notes_annotate_a_service_account_that_the_chart_does_not_create() -> None:
    account = "serviceAccount: {create: %s, name: mine, annotations: {eks.amazonaws.com/role-arn: arn:aws:iam::123456789012:role/r}}"
    assert "IRSA: arn:aws:iam::123456789012:role/r" in notes(QUEUE + account % "true")
    said = notes(QUEUE + account % "false")
    assert "arn:aws" not in said and "--set serviceAccount" not in said
    assert "kubectl --namespace default annotate serviceaccount mine eks.amazonaws.com/role-arn=ROLE" in said


def test_without_rbac_create_the_chart_creates_no_roles() -> None:
    kinds = {each["kind"] for each in HELM4.objects("--set", "rbac.create=false", values=EVERYTHING)}
    assert not [kind for kind in kinds if "Role" in kind]


def test_without_a_queue_no_alert_waits_for_messages() -> None:
    def names(values: str) -> list[str]:
        groups = the("PrometheusRule", HELM4.objects(values=values + "prometheusRule: {enabled: true}"))["spec"]["groups"]
        return [rule["alert"] for group in groups for rule in group["rules"]]

    whole = names(QUEUE)
    assert "EbbtideNotReceiving" in whole
    assert names(AGENTS) == [name for name in whole if name != "EbbtideNotReceiving"]
