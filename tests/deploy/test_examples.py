"""examples/: the umbrella chart renders, the objects of Argo CD and Flux are valid, and the chart takes the values in them. And the
commands of the pages that install with the values of a stack, and the values that pages show."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib import import_module
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from cfn_template import of_stack

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
    made = helm.template(*repository, chart=umbrella, release="platform")
    bound_to_the_stack(parse(made), STACK)
    assert environment(parse(made))["EBBTIDE_DRAIN_TIMEOUT"] == "asg-terminate=30m"
    assert the("Deployment", parse(made))["metadata"]["name"] == "ebbtide", "the documentation's commands name it"
    refused = conform(made, KNOWN[-1], schemas)
    assert not refused, refused
    assert helm.template("--set", "ebbtide.enabled=false", chart=umbrella).strip() == ""
    without = helm.template(*repository, "--set", "ebbtide.priorityClassName=null", chart=umbrella, release="platform")
    assert "\n      priorityClassName: " in made and "\n      priorityClassName: " not in without
    typo = helm.try_template("--set", "ebbtide.actions.sopt=drain", chart=umbrella)
    assert "additional properties 'sopt' not allowed" in typo.stderr
    # Other subcharts may need globals.
    assert helm.template(*repository, "--set", "global.imageRegistry=registry.example", chart=umbrella, release="platform") == made


STACK = {"ClusterName": "blue", "Identity": "irsa", "OidcProviderArn": "arn:aws:iam::123456789012:oidc-provider/oidc.example/id/0123"}
"""The parameters of the stack of the examples."""


def bound_to_the_stack(objects: list[Object], parameters: dict[str, str], cluster: str = "blue") -> None:
    """Asserts that a release has the values of the stack, and that the stack trusts its ServiceAccount."""
    deployment, account = the("Deployment", objects), the("ServiceAccount", objects)
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    described = environment(objects)
    queue = re.fullmatch(r"https://sqs\.([\w-]+)\.amazonaws\.com/(\d{12})/(.*)", described["EBBTIDE_QUEUE_URL"])
    assert queue and queue[3] == f"ebbtide-{cluster}"
    stack = of_stack(queue[3], parameters, queue[1], queue[2])
    values = yaml.safe_load(stack.outputs()["HelmValues"])
    assert values["aws"]["region"] == described["AWS_REGION"] == queue[1]
    assert values["serviceAccount"]["name"] == account["metadata"]["name"]
    namespace, name = deployment["metadata"]["namespace"], account["metadata"]["name"]
    if "annotations" in values["serviceAccount"]:
        # CloudFormation chooses the role's name.
        assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": f"arn:aws:iam::{queue[2]}:role/{queue[3]}"}
        trust = json.dumps(stack.resources("AWS::IAM::Role")["Role"]["AssumeRolePolicyDocument"])
        assert f"system:serviceaccount:{namespace}:{name}" in trust
    else:
        assert "annotations" not in account["metadata"]
        (association,) = stack.resources("AWS::EKS::PodIdentityAssociation").values()
        assert (association["Namespace"], association["ServiceAccount"]) == (namespace, name)


def test_the_stack_takes_the_parameters_of_the_values_for_production() -> None:
    text = (EXAMPLES / "values-production.yaml").read_text()
    (line,) = re.findall(r"^#   (ClusterName=.*)$", text, re.MULTILINE)
    given = dict(each.split("=") for each in line.split())
    known = {"OidcProviderArn": STACK["OidcProviderArn"], "AlarmTopicArn": "arn:aws:sns:eu-west-1:123456789012:on-call"}
    assert [name for name, value in given.items() if value == "…"] == list(known)
    parameters = given | known
    # As the chart's values need.
    assert parameters["LoadBalancers"] == yaml.safe_load(text)["settings"]["waitForLoadBalancers"]
    assert parameters["ClusterName"] == yaml.safe_load(text)["settings"]["clusterName"]
    assert "LoadBalancersPolicy" in of_stack("any", parameters, "eu-west-1", "123456789012").resources("AWS::IAM::Policy")


def test_the_values_for_production_are_those_of_the_chart(schemas: Path) -> None:
    made = HELM4.template("--values", str(EXAMPLES / "values-production.yaml"))
    refused = conform(made, KNOWN[-1], schemas)
    assert not refused, refused
    objects = parse(made)
    bound_to_the_stack(objects, STACK)
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
        ("argocd-fleet.yaml", "goTemplateOptions", "goTemplateOption"),
        ("argocd-fleet.yaml", "managedNamespaceMetadata", "managedNamespace"),
        ("flux.yaml", "chartRef", "chartReference"),
        ("flux.yaml", "operation: copy", "operation: take"),
        ("admit-attested.yaml", "subjectRegExp", "subjectRegexp"),
        ("admit-attested.yaml", "signatureFormat", "format"),
    ],
)
def test_the_objects_are_valid_for_their_controllers(name: str, right: str, wrong: str, schemas: Path) -> None:
    text = (EXAMPLES / name).read_text()
    refused = conform(text, KNOWN[-1], schemas)
    assert not refused, refused
    assert right in text
    assert conform(text.replace(right, wrong), KNOWN[-1], schemas), wrong


def test_only_an_image_that_the_release_attested_is_admitted() -> None:
    (authority,) = the("ClusterImagePolicy", example("admit-attested.yaml"))["spec"]["authorities"]
    (identity,) = authority["keyless"]["identities"]
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert release[True] == {"push": {"tags": ["v*"]}}, "YAML reads `on` as true"
    repository = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["repository"]
    signer = f"{repository}/.github/workflows/release.yml@refs/tags/v"
    for version in ("0.1.0", VERSION, "10.20.30"):
        assert re.search(identity["subjectRegExp"], signer + version), version
    others = [
        signer,
        f"{signer}1.2.3-rc.1",
        f"{signer}1.2.3/x",
        signer.replace("refs/tags/v", "refs/heads/v") + "1.2.3",
        signer.replace("release.yml", "ci.yml") + "1.2.3",
        "https://evil.example/?" + signer + "1.2.3",
    ]
    for other in others:
        assert not re.search(identity["subjectRegExp"], other), other


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
    (container,) = pods["containers"]
    assert f"`{container['image']}`" in (EXAMPLES / "trial" / "README.md").read_text()
    budget = the("PodDisruptionBudget", parse(text))["spec"]
    assert budget["maxUnavailable"] == 1, "trial.py counts on it"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the trial that reads Ebbtide's pods."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "trial"))
    return import_module("made")


@pytest.mark.parametrize(
    ("values", "port", "is_dry"),
    [
        ("", 8080, False),
        ("{admin: {port: 18080}, settings: {dryRun: true}}", 18080, True),
        ("extraArgs: [--dry-run]", 8080, True),
    ],
)
def test_the_trial_reads_port_and_dry_run_from_the_pods(made: Any, values: str, port: int, is_dry: bool) -> None:
    queue = ("--set", "queueUrl=https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide")
    pod = the("Deployment", HELM4.objects(*queue, values=values))["spec"]["template"]
    assert (made.metrics_port(pod), made.is_dry_run(pod)) == (port, is_dry)


@pytest.mark.parametrize("values", ["{settings: {nodeSelector: '!a', requireTag: true}}", "extraArgs: [--node-selector, '!a', --require-tag]"])
def test_the_trial_reads_the_settings_that_exclude_its_nodes(made: Any, values: str) -> None:
    queue = ("--set", "queueUrl=https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide")
    pod = the("Deployment", HELM4.objects(*queue, values=values))["spec"]["template"]
    assert [made.setting(pod, flag) for flag in ("node-selector", "require-tag", "managed-tag")] == ["!a", "true", ""]


CREATE = {
    "AWS::AutoScaling::AutoScalingGroup": "autoscaling:CreateAutoScalingGroup",
    "AWS::AutoScaling::LifecycleHook": "autoscaling:PutLifecycleHook",
    "AWS::Events::Rule": "events:PutRule",
    "AWS::FIS::ExperimentTemplate": "fis:CreateExperimentTemplate",
    "AWS::IAM::Policy": "iam:PutRolePolicy",
    "AWS::IAM::Role": "iam:CreateRole",
    "AWS::SNS::Topic": "sns:CreateTopic",
    "AWS::SQS::Queue": "sqs:CreateQueue",
    "AWS::SQS::QueuePolicy": "sqs:SetQueueAttributes",
}
"""The permission with which CloudFormation creates a resource."""


def test_the_policy_of_the_trial_permits_its_calls_and_its_stack() -> None:
    trial = EXAMPLES / "trial"
    code = "".join(each.read_text() for each in trial.glob("*.py"))
    calls = {f"{service}:{action.title().replace('-', '')}" for service, action in re.findall(r'\baws\("([a-z0-9]+)", "([a-z0-9-]+)"', code)}
    assert len(calls) > 25
    # This call needs no permission; a batch needs that of the single call.
    calls = {each.removesuffix("Batch") for each in calls - {"sts:GetCallerIdentity"}}
    kinds = set(re.findall(r"^    Type: (AWS::.*)$", (trial / "template.yaml").read_text(), re.MULTILINE))
    statements = json.loads((trial / "policy.json").read_text())["Statement"]
    actions = {each["Sid"]: [each["Action"]] if isinstance(each["Action"], str) else each["Action"] for each in statements}
    permitted = [action for each in actions.values() for action in each]
    needed = calls | {CREATE[kind] for kind in kinds}
    assert [each for each in sorted(needed) if not any(fnmatchcase(each, action) for action in permitted)] == []
    # Only what reads, and Auto Scaling's check of the launch template, applies to all resources.
    assert {each["Sid"] for each in statements if each["Resource"] == "*"} == {"Look", "UseLaunchTemplate"}
    assert all(re.match(r"\w+:(Describe|Lookup)", each) for each in actions["Look"])


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
    bound_to_the_stack(made, STACK)
    assert environment(made)["EBBTIDE_DRAIN_TIMEOUT"] == "asg-terminate=30m"


def applications(application_set: Object, folder: Path) -> list[Object]:
    """Returns the Applications of an ApplicationSet with a list. helm renders the texts: Go's templates and Sprig's functions, as in Argo CD."""
    spec = application_set["spec"]
    (generator,) = spec["generators"]
    template = json.dumps(spec["template"])
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("{apiVersion: v2, name: fleet, version: 1.0.0}")
    texts = [each for each in strings(spec["template"]) if "{{" in each]
    (folder / "values.yaml").write_text(json.dumps({"elements": generator["list"]["elements"], "texts": texts}))
    (folder / "templates" / "all.yaml").write_text(
        "{{- range $n, $element := .Values.elements }}\n---\n"
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fleet-{{ $n }}}\ndata:\n"
        "{{- range $i, $text := $.Values.texts }}\n  t{{ $i }}: {{ tpl $text $element | toJson }}\n{{- end }}\n{{- end }}\n"
    )
    made = []
    for each in HELM4.objects(chart=folder):
        text = template
        for number, before in enumerate(texts):
            assert "<no value>" not in each["data"][f"t{number}"]
            text = text.replace(json.dumps(before), json.dumps(each["data"][f"t{number}"]))
        made.append(json.loads(text))
    return made


def strings(value: Any) -> Iterator[str]:
    """Yields the texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


def test_argo_cd_installs_a_fleet_with_the_values_of_each_stack(schemas: Path, tmp_path: Path) -> None:
    objects = example("argocd-fleet.yaml")
    application_set, one = the("ApplicationSet", objects), the("Application", example("argocd.yaml"))["spec"]
    identities: dict[str, dict[str, str]] = {"blue": {}, "green": STACK, "red": {}}
    made = applications(application_set, tmp_path / "fleet")
    assert [each["metadata"]["name"] for each in made] == [f"ebbtide-{cluster}" for cluster in identities]
    for (cluster, identity), each in zip(identities.items(), made, strict=True):
        spec = each["spec"]
        assert spec["destination"] == {"name": cluster, "namespace": one["destination"]["namespace"]}
        helm = spec["source"]["helm"]
        assert spec["source"] == {**one["source"], "helm": helm}
        assert spec["syncPolicy"] == one["syncPolicy"]
        text = HELM4.template(values=helm["values"])
        refused = conform(text, KNOWN[-1], schemas)
        assert not refused, refused
        bound_to_the_stack(parse(text), identity | {"ClusterName": cluster}, cluster)
        described = environment(parse(text))
        assert described["EBBTIDE_DRAIN_TIMEOUT"] == "asg-terminate=30m"
        own = (described.get("EBBTIDE_REQUIRE_TAG"), described.get("EBBTIDE_AT_DEADLINE"))
        assert own == (("true", "leave") if cluster == "red" else (None, None)), cluster
    # One cluster first, and a value of a cluster wins.
    red = application_set["spec"]["generators"][0]["list"]["elements"][2]
    red["version"] = "9.8.7"
    red["ebbtide"]["settings"]["drainTimeout"] = {"asgTerminate": "1h"}
    made = applications(application_set, tmp_path / "next")
    assert [each["spec"]["source"]["targetRevision"] for each in made] == [VERSION, VERSION, "9.8.7"]
    drains = [environment(HELM4.objects(values=each["spec"]["source"]["helm"]["values"]))["EBBTIDE_DRAIN_TIMEOUT"] for each in made]
    assert drains == ["asg-terminate=30m", "asg-terminate=30m", "asg-terminate=1h"]


def test_the_fleets_project_permits_the_same_on_all_clusters() -> None:
    fleet, one = (the("AppProject", example(name))["spec"] for name in ("argocd-fleet.yaml", "argocd.yaml"))
    (destination,) = one["destinations"]
    assert fleet == {**one, "destinations": [{"name": "*", "namespace": destination["namespace"]}]}


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
    bound_to_the_stack(made, STACK)
    assert environment(made)["EBBTIDE_DRAIN_TIMEOUT"] == "asg-terminate=30m"


# The values of the chart that pages show.

OF_OTHERS = {"apiVersion", "metadata", "scrape_configs", "spec"}
"""Names in YAML that is not of the chart: objects of Kubernetes and kOps, or parts of them, and Prometheus's configuration."""


def shown_values() -> list[Any]:
    """Returns the chart's values in each page, with their place."""
    found = []
    for page in sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md"), *ROOT.glob("examples/**/*.md"), ROOT / "README.md"]):
        text = page.read_text()
        for block in re.finditer(r"^ *```yaml\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            values = textwrap.dedent(block[1])
            read = yaml.safe_load(values)
            if isinstance(read, dict) and not read.keys() & OF_OTHERS:
                line = text.count("\n", 0, block.start()) + 1
                found.append(pytest.param(values, id=f"{page.relative_to(ROOT)}:{line}"))
    assert len(found) > 10, "the blocks were found"
    return found


@pytest.mark.parametrize("helm", [HELM4, pytest.param(HELM3, marks=pytest.mark.slow)], ids=lambda helm: helm.name)
@pytest.mark.parametrize("values", shown_values())
def test_the_chart_takes_the_values_that_pages_show(values: str, helm: Helm) -> None:
    read = yaml.safe_load(values)
    is_complete = "queueUrl" in read or "queue" not in read.get("settings", {}).get("source", ["queue"])
    queue = () if is_complete else ("--set", "queueUrl=https://sqs.eu-west-1.amazonaws.com/123456789012/ebbtide")
    assert parse(helm.template(*queue, values=values))


# The commands that install with the values of a stack.

STUBS = {"aws": 'printf "%s" "$OF_STACK"', "terraform": 'printf "%s" "$OF_STACK"', "kubectl": "", "helm": 'echo "$@" >>"$RAN"; cat >>"$RAN"'}


def install(page: str, of_stack: str, folder: Path) -> str:
    """Runs the commands of a page from the stack's output to helm install; returns what helm was given."""
    blocks = map(textwrap.dedent, re.findall(r"^ *```sh\n(.*?)^ *```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE))
    commands = "".join(block for block in blocks if "HELM_VALUES" in block)
    for name, script in STUBS.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    ran = folder / "ran"
    ran.write_text("")
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "OF_STACK": of_stack, "RAN": str(ran)}
    subprocess.run(["bash", "-c", commands], env=env, cwd=folder, capture_output=True, check=False)
    return ran.read_text()


@pytest.mark.parametrize("page", ["install.md", "migrating-helm.md", "migrating-kops.md"])
def test_an_empty_output_stops_the_command(page: str, tmp_path: Path) -> None:
    given = install(page, "queueUrl: of-stack", tmp_path)
    assert given.startswith("install ebbtide") and given.endswith("queueUrl: of-stack\n"), given
    assert install(page, "", tmp_path) == "", "helm would install with other values"
