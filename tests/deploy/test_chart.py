"""What the chart makes: snapshots, the same by helm 3 and 4, valid for every Kubernetes, the rights that it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from api import KNOWN, SCHEMAS
from chart import (
    CHART,
    HELM3,
    HELM4,
    ROOT,
    VALUES,
    Helm,
    Object,
    Rules,
    cases,
    container,
    next_version,
    parse,
    readme,
    rights,
    run,
    snapshot,
    source,
    the,
    tool,
)
from flags import flags

QUEUE = "queueUrl: https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide\n"
EVERYTHING = (VALUES / "everything.yaml").read_text()

UNSCORED = {
    "container-resources": "a CPU limit would slow a drain down just when many nodes go at once",
    "container-ephemeral-storage-request-and-limit": "it writes no files: its root is read-only",
    "container-image-pull-policy": "a tag is never moved; a pod must start although the registry is away",
    "deployment-has-host-podantiaffinity": "pods are spread by topologySpreadConstraints",
    "pod-networkpolicy": "networkPolicy.enabled is the user's choice; everything.yaml is scored with it",
}
"""What kube-score is not asked for, and why."""


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.stem)
def test_snapshot(case: Path) -> None:
    made = HELM4.template(values=case.read_text())
    assert made == snapshot(case).read_text(), "if this is wanted: tests/deploy/run --update"


def test_every_snapshot_is_of_values() -> None:
    assert {each.name for each in snapshot(cases()[0]).parent.iterdir()} == {each.name for each in cases()}


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.stem)
def test_helm_3_makes_the_same(case: Path) -> None:
    def ordered(objects: list[Object]) -> list[str]:
        return sorted(json.dumps(each, sort_keys=True) for each in objects)

    assert ordered(HELM3.objects(values=case.read_text())) == ordered(parse(snapshot(case).read_text()))


@pytest.mark.parametrize("helm", [HELM4, pytest.param(HELM3, marks=pytest.mark.slow)], ids=lambda helm: helm.name)
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.stem)
def test_lint(helm: Helm, case: Path) -> None:
    done = helm.run("lint", str(CHART), "--strict", "--kube-version", "1.34.0", "--values", str(case))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_is_made_of_the_values() -> None:
    made = readme()
    assert made == (CHART / "README.md").read_text(), "tests/deploy/run --update writes it anew"
    settings = (ROOT / "docs" / "settings.md").read_text()
    rows = {flag.key: f"| `--{flag.field.replace('_', '-')}` | `{flag.variable}` |" for flag in flags()}
    described = {key for key, row in rows.items() if row in settings}
    for key in leaves(yaml.safe_load(EVERYTHING.replace("\non:", "\n'on':"))):
        shown = ".".join(key)
        if key[0] == "settings":
            assert key[1] in described, f"{shown} is not in docs/settings.md"
            continue
        assert any(f"| `{shown[: len(begin)]}` |" in made for begin in prefixes(key)), f"{shown} is not in the README"


def prefixes(key: tuple[str, ...]) -> list[str]:
    """A value's name, and those of what it stands in."""
    return [".".join(key[: length + 1]) for length in range(len(key))]


def leaves(values: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The names of all single values."""
    if not isinstance(values, dict):
        return [above]
    return [leaf for key, below in values.items() for leaf in leaves(below, (*above, str(key)))]


FREE = {"resources", "podSecurityContext", "securityContext", "affinity"}
"""Values that are Kubernetes' own objects."""

WITHOUT_EFFECT = {
    ("image", "tag"): "a digest is given",
    ("serviceAccount", "create"): "switches off; cordon-only.yaml has it",
    ("rbac", "create"): "switches off; see test_rbac_is_the_users",
    ("rbac", "doctor"): "switches off; least.yaml has it",
    ("podDisruptionBudget", "enabled"): "switches off; least.yaml has it",
    ("service", "enabled"): "switches off; least.yaml has it",
    ("serviceMonitor", "enabled"): "excludes the PodMonitor; cordon-only.yaml has it",
}


def test_everything_sets_every_value() -> None:
    ours = {
        key[:1] if key[0] in FREE else key
        for key in leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
        if key[0] != "serviceMonitor" or key == ("serviceMonitor", "enabled")
    }
    set_here = leaves(yaml.safe_load(EVERYTHING.replace("\non:", "\n'on':")))
    missing = [key for key in ours if not any(each[: len(key)] == key for each in set_here)]
    known = {("nodeSelector", "kubernetes.io/os"), ("dashboard", "labels", "grafana_dashboard")}
    assert set(missing) <= known, "everything.yaml does not set these"


@pytest.mark.slow
def test_every_value_has_an_effect() -> None:
    """Taken out of everything.yaml one by one, each changes what is made."""
    values = yaml.safe_load(EVERYTHING.replace("\non:", "\n'on':"))
    whole = HELM4.template(values=yaml.safe_dump(values))
    idle = []
    for key in leaves(values):
        if key == ("queueUrl",) or key in {("on", "asg-launch")}:
            continue  # nothing can be made without
        without = yaml.safe_load(yaml.safe_dump(values))
        within = without
        for each in key[:-1]:
            within = within[each]
        del within[key[-1]]
        if HELM4.template(values=yaml.safe_dump(without)) == whole:
            idle.append(key)
    assert set(idle) == set(WITHOUT_EFFECT), "these have none, or have one after all"


# Kubernetes' API.

KUBERNETES_KINDS = [
    "clusterrole-rbac-v1",
    "clusterrolebinding-rbac-v1",
    "configmap-v1",
    "deployment-apps-v1",
    "networkpolicy-networking-v1",
    "poddisruptionbudget-policy-v1",
    "role-rbac-v1",
    "rolebinding-rbac-v1",
    "service-v1",
    "serviceaccount-v1",
]
MONITORING_KINDS = ["podmonitors", "prometheusrules", "servicemonitors"]


@pytest.fixture(scope="session")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where kubeconform finds the schemas, a folder for each Kubernetes: they refuse what they don't know."""
    folder = tmp_path_factory.mktemp("schemas")
    for version in KNOWN:
        (folder / version).mkdir()
        shipped = SCHEMAS / f"v{version}-local-strict"
        definitions = json.loads((shipped / "_definitions.json").read_text())["$defs"]
        for file in KUBERNETES_KINDS:
            schema = standalone(json.loads((shipped / f"{file}.json").read_text()), definitions)
            (folder / version / f"{file}.json").write_text(json.dumps(schema))
        for plural in MONITORING_KINDS:
            crds = source("prometheus-operator") / "example" / "prometheus-operator-crd"
            crd = yaml.safe_load((crds / f"monitoring.coreos.com_{plural}.yaml").read_text())
            (served,) = crd["spec"]["versions"]
            schema = strict(served["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}
            file = f"{crd['spec']['names']['singular']}-monitoring-{served['name']}.json"
            (folder / version / file).write_text(json.dumps(schema))
    return folder


def standalone(schema: Object, definitions: Object) -> Object:
    """A schema with all that it refers to: kubeconform follows no references to other files."""
    needed: Object = {}
    waiting = [schema]
    while waiting:
        for name in re.findall(r'"(?:/api/_definitions.json)?#/\$defs/([^"]+)"', json.dumps(waiting.pop())):
            if name not in needed:
                needed[name] = definitions[name]
                waiting.append(definitions[name])
    whole = {**schema, "$defs": needed}
    del whole["$id"]  # it would be where references begin
    return json.loads(json.dumps(whole).replace('"/api/_definitions.json#', '"#'))


def strict(schema: Any) -> Any:
    """A schema that allows no other properties, down to its leaves."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and "type" in made:
        made.setdefault("additionalProperties", False)
    return made


OTHERS = [pytest.param(version, marks=pytest.mark.slow) for version in KNOWN[1:-1]]


@pytest.mark.parametrize("version", [KNOWN[0], *OTHERS, KNOWN[-1]])
def test_valid_for_kubernetes(version: str, schemas: Path) -> None:
    for case in cases():
        made = HELM4.template(values=case.read_text(), kubernetes=version)
        refused = conform(made, version, schemas)
        assert not refused, f"{case.name}: {refused}"


def test_what_kubernetes_does_not_know_is_found(schemas: Path) -> None:
    made = snapshot(VALUES / "everything.yaml").read_text()
    for right, wrong in [
        ("terminationGracePeriodSeconds", "terminationGracePeriod"),
        ("podMetricsEndpoints", "podMetricsEndpoint"),
        ("unhealthyPodEvictionPolicy", "unhealthyPodsEvictionPolicy"),
    ]:
        assert right in made
        assert conform(made.replace(right, wrong), KNOWN[-1], schemas), wrong


def conform(made: str, version: str, schemas: Path) -> str:
    """What kubeconform says against objects."""
    done = run(
        tool("kubeconform"),
        "-strict",
        "-kubernetes-version",
        version,
        "-schema-location",
        f"{schemas}/{version}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
        given=made,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.stem)
def test_score(case: Path) -> None:
    # least.yaml is made to be without a budget.
    spared = [*UNSCORED, *(["deployment-has-poddisruptionbudget"] if case.stem == "least" else [])]
    if case.stem == "everything":
        spared.remove("pod-networkpolicy")
        spared.remove("container-image-pull-policy")
        # Its contexts are cut down to be other than the default.
        spared.append("container-security-context-user-group-id")
        spared.append("container-security-context-readonlyrootfilesystem")
    ignored = [word for check in spared for word in ("--ignore-test", check)]
    done = run(
        tool("kube-score"),
        "score",
        "--kubernetes-version",
        "v1.34",
        "--exit-one-on-warning",
        *ignored,
        "-",
        given=HELM4.template(values=case.read_text()),
    )
    assert done.returncode == 0, done.stdout + done.stderr


# What is in them.


def test_no_pod_comes_back_to_a_cordoned_node() -> None:
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


def test_probes_ask_what_is_served() -> None:
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
        ("podMonitor: {enabled: true}\nfullnameOverride: tide", '{namespace="ebbtide",job=~"(ebbtide/)?tide"}'),
        ("prometheusRule: {matchers: 'cluster=\"blue\", job!~\"x.*\"'}", '{cluster="blue", job!~"x.*"}'),
    ],
)
def test_the_alerts_are_those_of_the_file_and_one_misses_this_installation(values: str, ours: str) -> None:
    objects = HELM4.objects("--set", "prometheusRule.enabled=true", values=f"{QUEUE}{values}\n")
    groups = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]
    (down,) = [rule for group in groups for rule in group["rules"] if rule["alert"] == "EbbtideDown"]
    assert down["expr"] == "absent(ebbtide_ready == 1)"
    down["expr"] = f"absent(ebbtide_ready{ours} == 1)"
    assert the("PrometheusRule", objects)["spec"]["groups"] == groups


def test_the_dashboard_is_that_of_the_file() -> None:
    dashboard = the("ConfigMap", HELM4.objects(values=EVERYTHING))["data"]["ebbtide.json"]
    assert json.loads(dashboard) == json.loads((CHART / "files" / "dashboard.json").read_text())


def test_digest_tag_and_neither() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    digest = "sha256:" + 64 * "a"
    for values, image in [
        ("", f"ghcr.io/ebbtide/ebbtide:{version}"),
        ("image: {tag: next}", "ghcr.io/ebbtide/ebbtide:next"),
        (f"image: {{tag: next, digest: '{digest}'}}", f"ghcr.io/ebbtide/ebbtide@{digest}"),
    ]:
        assert container(HELM4.objects(values=QUEUE + values))["image"] == image


VERSIONED = {"helm.sh/chart", "app.kubernetes.io/version"}
"""The labels that tell of a version."""


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.stem)
def test_a_new_version_is_told_by_labels_and_the_image_only(case: Path, tmp_path: Path) -> None:
    """A Deployment's selector can't be changed: helm upgrade would fail, were there a version in it."""
    objects = HELM4.objects(values=case.read_text())
    was = dict(places(objects))
    became = dict(places(HELM4.objects(values=case.read_text(), chart=next_version(tmp_path))))
    assert was.keys() == became.keys()
    changed = {place for place in was if was[place] != became[place]}
    labels = {place for place in changed if place[-2:-1] == ("labels",) and place[-1] in VERSIONED}
    assert {place[-1] for place in labels} == VERSIONED
    assert {place[-1] for place in changed - labels} <= {"image"}
    # Nor one of the labels that its user gives it, and may change.
    selector = the("Deployment", objects)["spec"]["selector"]["matchLabels"]
    assert selector.keys() == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}


def places(made: Any, above: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every single value in what is made, by where it is."""
    if not isinstance(made, dict | list):
        yield above, made
        return
    for key, below in made.items() if isinstance(made, dict) else enumerate(made):
        yield from places(below, (*above, key))


# Rights.

NODES: Rules = {("", verb, "nodes", "") for verb in ("get", "list", "watch", "patch")}
DRAINS: Rules = {("", "list", "pods", ""), ("", "watch", "pods", ""), ("", "create", "pods/eviction", "")}
DELETES: Rules = {("", "delete", "pods", "")}
TELLS: Rules = {("", "patch", "nodes/status", ""), ("", "create", "events", ""), ("", "patch", "events", "")}
DOCTOR: Rules = {("", "list", "poddisruptionbudgets", "")}
NODE_LEASES: Rules = {("kube-node-lease", verb, "leases", "") for verb in ("list", "delete")}
TURNS: Rules = {
    ("ebbtide", "create", "leases", ""),
    *(("ebbtide", verb, "leases", "ebbtide-lease-collector") for verb in ("get", "update")),
}
HARD = {"asg-terminate": "cordon", "spot": "report", "scheduled-change": "cordon", "capacity-reservation": "ignore"}
"""Kinds at whose deadline the capacity goes, and what keeps them from draining."""


def on(**actions: str) -> str:
    """Values by which the kinds with a hard deadline don't drain, and others do what they are told."""
    return yaml.safe_dump({"on": HARD | {kind.replace("_", "-"): action for kind, action in actions.items()}})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("", NODES | DRAINS | DELETES | TELLS),
        ("settings: {atDeadline: delete, events: all}", NODES | DRAINS | DELETES | TELLS),
        ("settings: {atDeadline: leave}", NODES | DRAINS | TELLS),
        ("settings: {events: none}", NODES | DRAINS | DELETES),
        ("settings: {dryRun: true}", NODES | DRAINS | DELETES),
        ("settings: {atDeadline: leave, events: none}", NODES | DRAINS),
        ("settings: {collectLeases: true}", NODES | DRAINS | DELETES | TELLS | NODE_LEASES | TURNS),
        ("settings: {collectLeases: true, dryRun: true}", NODES | DRAINS | DELETES | NODE_LEASES),
        ("settings: {collectLeases: false}", NODES | DRAINS | DELETES | TELLS),
        (on(), NODES | DRAINS | TELLS),
        (on() + "settings: {events: none}", NODES | DRAINS),
        (on(state_change="ignore"), NODES | TELLS),
        (on(state_change="ignore") + "settings: {events: none}", NODES),
        (on(state_change="ignore", rebalance="drain"), NODES | DRAINS | TELLS),
        (on(state_change="ignore", asg_launch="ready"), NODES | TELLS),
        *[(on(state_change="ignore", **{kind: "drain"}), NODES | DRAINS | DELETES | TELLS) for kind in HARD],
    ],
)
def test_rights_are_those_that_the_settings_need(values: str, expected: Rules) -> None:
    assert rights(HELM4.objects(values=QUEUE + values)) == expected | DOCTOR
    assert rights(HELM4.objects("--set", "rbac.doctor=false", values=QUEUE + values)) == expected


def test_roles_are_the_service_accounts() -> None:
    objects = HELM4.objects(values=EVERYTHING)
    account = the("Deployment", objects)["spec"]["template"]["spec"]["serviceAccountName"]
    assert the("ServiceAccount", objects)["metadata"]["name"] == account
    roles = {(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects}
    bindings = [each for each in objects if each["kind"].endswith("Binding")]
    assert len(bindings) == 3
    for binding in bindings:
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "ebbtide"}]
        role = binding["roleRef"]
        assert (role["kind"], binding["metadata"].get("namespace"), role["name"]) in roles


def test_rbac_is_the_users() -> None:
    kinds = {each["kind"] for each in HELM4.objects("--set", "rbac.create=false", values=EVERYTHING)}
    assert not [kind for kind in kinds if "Role" in kind]
