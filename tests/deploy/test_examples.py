"""examples/: the umbrella chart renders, the objects of Argo CD and Flux are valid, and the chart takes the values in them."""

from __future__ import annotations

import shutil
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

from api import KNOWN
from chart import CHART, HELM3, HELM4, ROOT, Helm, Object, environment, parse, the
from schemas import conform

EXAMPLES = ROOT / "examples"
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]


@pytest.mark.parametrize("helm", [HELM4, pytest.param(HELM3, marks=pytest.mark.slow)], ids=lambda helm: helm.name)
def test_the_umbrella_chart_installs_ebbtide_with_its_values(helm: Helm, schemas: Path, tmp_path: Path) -> None:
    umbrella = tmp_path / "umbrella"
    shutil.copytree(EXAMPLES / "umbrella", umbrella)
    (dependency,) = yaml.safe_load((umbrella / "Chart.yaml").read_text())["dependencies"]
    assert (dependency["name"], dependency["version"]) == (CHART.name, VERSION)
    # As helm dependency update would have it from the registry.
    shutil.copytree(CHART, umbrella / "charts" / CHART.name)
    # The chart of a release has one.
    repository = ("--set", "ebbtide.image.repository=registry.example/ebbtide")
    made = helm.template(*repository, chart=umbrella)
    described = environment(parse(made))
    assert (described["EBBTIDE_ON"], described["EBBTIDE_DRAIN_TIMEOUT"]) == ("rebalance=cordon", "30m")
    refused = conform(made, KNOWN[-1], schemas)
    assert not refused, refused
    assert helm.template("--set", "ebbtide.enabled=false", chart=umbrella).strip() == ""
    typo = helm.try_template("--set", "ebbtide.actions.sopt=drain", chart=umbrella)
    assert "additional properties 'sopt' not allowed" in typo.stderr


def test_the_values_for_production_are_those_of_the_chart(schemas: Path) -> None:
    made = HELM4.template("--values", str(EXAMPLES / "values-production.yaml"))
    refused = conform(made, KNOWN[-1], schemas)
    assert not refused, refused
    objects = parse(made)
    described = environment(objects)
    assert described["EBBTIDE_MAX_DRAINING"] == "10%"
    assert described["EBBTIDE_NODE_SELECTOR"] == "!karpenter.sh/nodepool,!eks.amazonaws.com/nodegroup"
    kinds = {each["kind"] for each in objects}
    assert {"PodMonitor", "PrometheusRule", "NetworkPolicy"} <= kinds


def example(name: str) -> list[Object]:
    """Returns the objects of a file in examples/."""
    return parse((EXAMPLES / name).read_text())


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("argocd.yaml", "valuesObject", "valueObject"),
        ("argocd.yaml", "selfHeal: true", "selfHeal: always"),
        ("argocd.yaml", "clusterResourceWhitelist", "clusterResourcesWhitelist"),
        ("flux.yaml", "chartRef", "chartReference"),
        ("flux.yaml", "operation: copy", "operation: take"),
    ],
)
def test_the_objects_are_valid_for_their_controllers(name: str, right: str, wrong: str, schemas: Path) -> None:
    text = (EXAMPLES / name).read_text()
    refused = conform(text, KNOWN[-1], schemas)
    assert not refused, refused
    assert right in text
    assert conform(text.replace(right, wrong), KNOWN[-1], schemas), wrong


def test_the_network_policy_keeps_only_the_metadata_from_pods(schemas: Path) -> None:
    text = (EXAMPLES / "metadata-networkpolicy.yaml").read_text()
    refused = conform(text, KNOWN[-1], schemas)
    assert not refused, refused
    policy = the("NetworkPolicy", parse(text))
    assert policy["spec"]["policyTypes"] == ["Egress"]
    assert policy["spec"]["podSelector"] == {}
    (rule,) = policy["spec"]["egress"]
    assert set(rule) == {"to"}, "all ports"
    blocks = [peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer]

    def reaches(address: str) -> bool:
        target = ip_address(address)
        return any(
            target in ip_network(block["cidr"]) and not any(target in ip_network(each) for each in block["except"])
            for block in blocks
        )

    assert not reaches("169.254.169.254") and not reaches("fd00:ec2::254")
    # The neighbours of both: Pod Identity's agent, EC2's time and DNS.
    for address in ("169.254.170.23", "fd00:ec2::23", "169.254.169.123", "169.254.169.253", "10.0.0.1", "2001:db8::1"):
        assert reaches(address), address


def test_the_workload_of_the_trial_is_valid_and_pinned_to_its_nodes(schemas: Path) -> None:
    text = (EXAMPLES / "trial" / "workload.yaml").read_text()
    refused = conform(text, KNOWN[-1], schemas)
    assert not refused, refused
    pods = the("Deployment", parse(text))["spec"]["template"]["spec"]
    assert pods["nodeSelector"] == {"ebbtide-trial": "NAME"}
    budget = the("PodDisruptionBudget", parse(text))["spec"]
    assert budget["maxUnavailable"] == 1, "trial.py counts on it"


def test_the_owner_of_jobs_applies_nothing_outside_their_namespace(schemas: Path) -> None:
    names = ("hold-rbac.yaml", "hold-rbac-jobs.yaml")
    for name in names:
        refused = conform((EXAMPLES / name).read_text(), KNOWN[-1], schemas)
        assert not refused, refused
    cluster, jobs = (example(name) for name in names)
    assert {each["kind"] for each in jobs} == {"Role", "RoleBinding"}
    assert not any("namespace" in each["metadata"] for each in jobs), "kubectl apply --namespace names it"
    account = the("ServiceAccount", cluster)
    subject = {"kind": account["kind"], **account["metadata"]}
    for binding in (the("ClusterRoleBinding", cluster), the("RoleBinding", jobs)):
        assert binding["subjects"] == [subject]


def test_argo_cd_gets_the_chart_and_values_that_it_takes() -> None:
    source = the("Application", example("argocd.yaml"))["spec"]["source"]
    assert (source["chart"], source["targetRevision"]) == (CHART.name, VERSION)
    made = HELM4.objects(values=yaml.safe_dump(source["helm"]["valuesObject"]))
    assert environment(made)["EBBTIDE_ON"] == "rebalance=cordon"


def test_argo_cds_project_permits_what_the_chart_creates() -> None:
    objects = example("argocd.yaml")
    project, application = the("AppProject", objects), the("Application", objects)["spec"]
    assert application["project"] == project["metadata"]["name"]
    assert project["spec"]["sourceRepos"] == [application["source"]["repoURL"]]
    assert project["spec"]["destinations"] == [application["destination"]]
    permitted = {(each["group"], each["kind"]) for each in project["spec"]["clusterResourceWhitelist"]}
    agents = "{settings: {source: [queue, nodes]}, agent: {enabled: true}}"
    values = {**application["source"]["helm"]["valuesObject"], **yaml.safe_load(agents)}
    created = {
        (each["apiVersion"].partition("/")[0], each["kind"])
        for each in HELM4.objects(values=yaml.safe_dump(values))
        if "namespace" not in each["metadata"]
    }
    assert permitted == created | {("", "Namespace")}, "CreateNamespace needs the last one"


def test_both_namespaces_have_the_level_of_the_service() -> None:
    application, flux = the("Application", example("argocd.yaml"))["spec"], example("flux.yaml")
    policy, release = application["syncPolicy"], the("HelmRelease", flux)["spec"]
    assert "CreateNamespace=true" in policy["syncOptions"], "Argo CD ignores the labels without it"
    assert release["targetNamespace"] == the("Namespace", flux)["metadata"]["name"]
    for labels in (policy["managedNamespaceMetadata"]["labels"], the("Namespace", flux)["metadata"]["labels"]):
        assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}


def test_flux_gets_the_chart_and_values_that_it_takes() -> None:
    objects = example("flux.yaml")
    repository, release = the("OCIRepository", objects), the("HelmRelease", objects)
    assert repository["spec"]["url"].endswith(f"/{CHART.name}")
    assert repository["spec"]["ref"] == {"tag": VERSION}
    reference = release["spec"]["chartRef"]
    assert reference == {"kind": repository["kind"], "name": repository["metadata"]["name"]}
    made = HELM4.objects(values=yaml.safe_dump(release["spec"]["values"]))
    assert environment(made)["EBBTIDE_ON"] == "rebalance=cordon"
