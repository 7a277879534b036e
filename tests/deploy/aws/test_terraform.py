"""The Terraform module plans the same resources as the templates, in OpenTofu with the AWS provider's schema."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cfn_template import FOLDER, HOOKS, STACK, Stack, document, of_stack

TOFU = os.environ["EBBTIDE_TOFU"]
OLDEST, NEWEST = os.environ["EBBTIDE_PROVIDERS"].split()
HELM = FOLDER.parents[1] / "tests" / "deploy" / "tool"
CHART = FOLDER.parents[1] / "deploy" / "helm" / "ebbtide"
ACCOUNT, REGION, NAME = "123456789012", "eu-west-1", "ebbtide"
PROVIDER = f"arn:aws:iam::{ACCOUNT}:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/0123"
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/boundary"
TOPIC = f"arn:aws:sns:{REGION}:{ACCOUNT}:on-call"
SENDER = f"arn:aws:iam::{ACCOUNT}:role/on-call"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/mine"

OF_HOOKS = {
    "Groups": "hook_groups",
    "HookName": "hook_name",
    "HeartbeatTimeoutSeconds": "hook_heartbeat_timeout_seconds",
    "DefaultResult": "hook_default_result",
    "LaunchHooks": "hook_launch",
}
"""Parameters of hooks.yaml and their variables. The module knows the two ARNs itself."""

ONLY_TERRAFORM = {"name", "tags", "hook_direct"}
"""Variables without a parameter: CloudFormation names and tags resources by their stack."""

KINDS = ["AsgTerminate", "AsgLaunch", "Spot", "Rebalance", "StateChange", "ScheduledChange", "CapacityReservation", "ZonalShift"]

Json = dict[str, Any]


class Module:
    """A copy of the module that can be planned."""

    def __init__(self, folder: Path, provider: str = NEWEST) -> None:
        self.folder = folder
        self.provider = provider
        pinned = {"terraform": {"required_providers": {"aws": {"source": "hashicorp/aws", "version": provider}}}}
        (folder / "provider_override.tf.json").write_text(json.dumps(pinned))
        self.run("init", "-backend=false", "-input=false")

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Runs OpenTofu in the module; returns what it prints."""
        ended = subprocess.run([TOFU, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        assert bool(ended.returncode) == fails, ended.stdout + ended.stderr
        return ended.stdout + (ended.stderr if fails else "")

    def plan(self, variables: Json) -> Json:
        """Returns the plan."""
        self.run("plan", "-input=false", "-out=made", *_arguments(variables))
        planned: Json = json.loads(self.run("show", "-json", "made"))["planned_values"]
        return planned


@pytest.fixture(scope="module", params=[OLDEST, NEWEST])
def module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Module:
    """Copies the module, because planning writes into its folder. Each test runs with both versions of the AWS provider."""
    folder = tmp_path_factory.mktemp("terraform") / "module"
    shutil.copytree(FOLDER / "terraform", folder, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    return Module(folder, request.param)


def _arguments(variables: Json) -> list[str]:
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in variables.items()}
    return [f"-var={key}={value}" for key, value in values.items()]


def variable(parameter: str) -> str:
    """Returns the variable's name for a parameter."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", parameter).lower()


SENDER_ROLES = ("role/NotificationSender", f"role/{NAME}-notification-")
"""The role of hooks that notify the queue, as in the tests of CloudFormation's template, and as in the plan."""

LISTS = {
    name
    for name, parameter in Stack(STACK, {}, {}).template["Parameters"].items()
    if parameter["Type"] == "CommaDelimitedList"
}
"""Parameters that are lists."""


def switch(name: str, value: str) -> str | bool | list[str]:
    """Returns the variable's value for a parameter's."""
    if name in LISTS:
        return value.split(",") if value else []
    return {"true": True, "false": False}.get(value, value)


def test_the_module_is_valid(module: Module) -> None:
    assert json.loads(module.run("validate", "-json"))["valid"]


def test_the_module_allows_the_oldest_provider_and_the_newest(module: Module) -> None:
    assert f'version = ">= {OLDEST.rpartition(".")[0]}"' in _text("versions.tf")
    chosen = json.loads(module.run("version", "-json"))["provider_selections"]
    assert list(chosen.values()) == [module.provider]


def test_an_unknown_attribute_is_found(module: Module) -> None:
    wrong = module.folder / "wrong.tf"
    wrong.write_text('resource "aws_sqs_queue" "wrong" {\n  visibility_timeout = 30\n}\n')
    try:
        assert "visibility_timeout" in module.run("validate", "-no-color", fails=True)
    finally:
        wrong.unlink()


def test_both_have_the_same_parameters_defaults_and_outputs(module: Module) -> None:
    declared = dict(re.findall(r'^variable "(\w+)" \{(.*?)^\}', _text("variables.tf"), re.DOTALL | re.MULTILINE))
    stack, hooks = (Stack(path, {}, {}).template for path in (STACK, HOOKS))
    expected = {variable(name): parameter for name, parameter in stack["Parameters"].items()}
    expected |= {OF_HOOKS[name]: hooks["Parameters"][name] for name in OF_HOOKS}
    assert set(declared) == set(expected) | ONLY_TERRAFORM
    names = {variable(name): name for name in stack["Parameters"]}
    for name, parameter in expected.items():
        (default,) = re.findall(r"^  default += (.*)$", declared[name], re.MULTILINE)
        if name != "hook_groups":  # a template can't be checked without a group
            assert json.loads(default) == switch(names.get(name, name), parameter["Default"]), name
    outputs = re.findall(r'^output "(\w+)"', _text("outputs.tf"), re.MULTILINE)
    assert set(outputs) == {variable(name) for name in stack["Outputs"]}


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"ClusterName": "blue", "Namespace": "tide", "ServiceAccount": "ebb"},
        {"Identity": "irsa", "OidcProviderArn": PROVIDER, "OidcAudience": "amazonaws.com"},
        {"Identity": "existing-role", "RoleName": "nodes", "DoctorPermissions": "true"},
        {"Ec2Polling": "true", "Verify": "true"},
        {"Replace": "true", "ClusterName": "blue", "LifecycleTagKey": "team"},
        {"Reboot": "true", "ClusterName": "blue", "LifecycleTagValue": "owned"},
        {"LoadBalancers": "wait"},
        {"LoadBalancers": "deregister", "ClusterName": "blue"},
        {"Encryption": "new-key", "NotificationRole": "true"},
        {"SenderArns": f"{SENDER},{SENDER}2", "NotificationRole": "true"},
        {"TopicArns": TOPIC, "Encryption": "new-key"},
        {"TopicArns": TOPIC, "SenderArns": SENDER},
        {"NotificationRole": "true", "PermissionsBoundaryArn": BOUNDARY, "AlarmTopicArn": TOPIC},
        {"Encryption": "existing-key", "KmsKeyArn": KEY, "MaxReceiveCount": "20"},
        {"LifecycleTagKey": "team", "LifecycleTagValue": "sea", "MessageRetentionSeconds": "172800"},
        dict.fromkeys(KINDS, "true"),
        *[dict.fromkeys(KINDS, "true") | {kind: "false"} for kind in KINDS],
    ],
    ids=lambda parameters: " ".join(f"{key}={value[:12]}" for key, value in parameters.items())[:60],
)
def test_both_create_the_same_resources(module: Module, parameters: dict[str, str]) -> None:
    planned = module.plan({variable(key): switch(key, value) for key, value in parameters.items()})
    stack = of_stack(NAME, parameters, REGION, ACCOUNT)
    assert of_plan(planned) == of_template(stack)
    outputs = {name for name, output in planned["outputs"].items() if output.get("value") is not None}
    assert outputs == {variable(name) for name in stack.outputs()}
    of_chart = yaml.safe_load(planned["outputs"]["helm_values"]["value"])
    same = stack.outputs()["HelmValues"].replace(f"queueUrl: {NAME}", f"queueUrl: {of_chart['queueUrl']}")
    assert of_chart == yaml.safe_load(same.replace("role/Role", f"role/{NAME}-"))


def test_both_create_the_same_hooks(module: Module) -> None:
    variables = {"hook_groups": ["a", "b"], "hook_launch": True, "hook_heartbeat_timeout_seconds": 60}
    planned = module.plan(variables | {"notification_role": True, "hook_direct": True})
    queue = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{NAME}"
    hooks = [each["values"] for each in _resources(planned, "aws_autoscaling_lifecycle_hook")]
    (role,) = {hook["role_arn"] for hook in hooks}
    given = {"Groups": "a,b", "LaunchHooks": "true", "HeartbeatTimeoutSeconds": "60"}
    template = Stack(HOOKS, given | {"QueueArn": queue, "NotificationRoleArn": role}, {})
    names = {
        "AutoScalingGroupName": "autoscaling_group_name",
        "LifecycleHookName": "name",
        "LifecycleTransition": "lifecycle_transition",
        "HeartbeatTimeout": "heartbeat_timeout",
        "DefaultResult": "default_result",
        "NotificationTargetARN": "notification_target_arn",
        "RoleARN": "role_arn",
    }
    expected = [{names[key]: value for key, value in hook.items()} for hook in template.resources().values()]
    assert sorted(_kept(hook, names.values()) for hook in hooks) == sorted(
        _kept(hook, names.values()) for hook in expected
    )


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"name": "a b"}, "name may have letters"),
        ({"identity": "irsa"}, "identity irsa needs oidc_provider_arn"),
        ({"identity": "existing-role"}, "identity existing-role needs role_name"),
        ({"encryption": "existing-key"}, "encryption existing-key needs kms_key_arn"),
        ({"namespace": "A"}, "must be the name of a Kubernetes namespace"),
        ({"service_account": "A"}, "must be the name of a Kubernetes service account"),
        ({"oidc_audience": "a b"}, "must be an audience"),
        ({"load_balancers": "on"}, "must be off, wait or deregister"),
        ({"cluster_name": "a b"}, "must be a cluster name"),
        ({"kms_key_arn": "alias/mine"}, "must be the ARN of a KMS key"),
        ({"message_retention_seconds": 300}, "between 172800"),
        ({"topic_arns": ["on-call"]}, "must be ARNs of SNS topics"),
        ({"sender_arns": [f"arn:aws:sts::{ACCOUNT}:assumed-role/on-call/me"]}, "must be ARNs of IAM roles or users"),
        ({"sender_arns": [f"arn:aws:iam::{ACCOUNT}:root"]}, "must be ARNs of IAM roles or users"),
        ({"replace": True, "lifecycle_tag_key": "team"}, "replace needs cluster_name"),
        ({"reboot": True, "lifecycle_tag_key": "team"}, "reboot needs cluster_name"),
        ({"load_balancers": "deregister"}, "load_balancers deregister needs cluster_name"),
        ({"hook_direct": True}, "hook_direct needs notification_role"),
        ({"hook_heartbeat_timeout_seconds": 10}, "between 30 and 7200"),
        ({variable(kind): False for kind in KINDS}, "At least one kind of event"),
    ],
)
def test_bad_variables_are_refused_with_a_sentence(module: Module, variables: Json, sentence: str) -> None:
    printed = module.run("plan", "-input=false", "-no-color", *_arguments(variables), fails=True)
    assert sentence in " ".join(printed.split())


def test_the_readme_lists_every_parameter_and_variable() -> None:
    page, own = (FOLDER / "README.md").read_text(), _text("README.md")
    for path in (STACK, HOOKS):
        for name in Stack(path, {}, {}).template["Parameters"]:
            assert f"`{name}`" in page, name
    for name in re.findall(r'^(?:variable|output) "(\w+)"', _text("variables.tf") + _text("outputs.tf"), re.MULTILINE):
        assert f"`{name}`" in own, name


def examples(module: Module) -> list[str]:
    """Returns the examples of the README, with the module under test as their source."""
    written = re.findall(r"```hcl\n(.*?)```", _text("README.md"), re.DOTALL)
    # The cluster is a resource of the user's configuration; the tests need only its name and its provider's ARN.
    known = (each.replace("module.eks.oidc_provider_arn", json.dumps(PROVIDER)) for each in written)
    return [re.sub(r'source += "[^"]+"', f'source = "{module.folder}"', each) for each in known]


def planned_example(module: Module, folder: Path, text: str) -> Json:
    """Returns the plan of a configuration."""
    (folder / "main.tf").write_text(text)
    return Module(folder, module.provider).plan({})


def test_the_examples_of_the_readme_are_planned(module: Module, tmp_path: Path) -> None:
    # That of the chart needs another provider, and a cluster.
    of_module = [each for each in examples(module) if "helm_release" not in each]
    assert len(of_module) == len(examples(module)) - 1
    for number, example in enumerate(of_module):
        home = tmp_path / str(number)
        home.mkdir()
        planned_example(module, home, example)


def test_the_chart_takes_the_values_of_the_example(module: Module, tmp_path: Path) -> None:
    """The values of helm_release, as an output: the provider of helm is not there."""
    first, *_, release = examples(module)
    (values,) = re.findall(r"^  values = (\[.*?^  \])", release, re.DOTALL | re.MULTILINE)
    planned = planned_example(module, tmp_path, f'{first}\noutput "values" {{\n  value = {values}\n}}\n')
    helm = subprocess.run([HELM, "helm4"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1]
    files = []
    for number, text in enumerate(planned["outputs"]["values"]["value"]):
        (tmp_path / f"{number}.yaml").write_text(text)
        files += ["--values", f"{number}.yaml"]
    command = [helm, "template", "ebbtide", str(CHART), "--namespace", "ebbtide", *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = {each["kind"]: each for each in yaml.safe_load_all(done.stdout) if each}
    assert made["ServiceAccount"]["metadata"]["name"] == "ebbtide"
    (container,) = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    given = {each["name"]: each.get("value") for each in container["env"]}
    assert given["EBBTIDE_QUEUE_URL"] == f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT}/ebbtide-blue"
    assert given["AWS_REGION"] == REGION
    assert container["image"].startswith("registry.example/you/ebbtide:")


# The compared parts, in one shape for both.


def of_template(stack: Stack) -> Json:
    """Returns the compared parts of the stack."""
    queues = stack.resources("AWS::SQS::Queue").values()
    return {
        "queues": {
            queue["QueueName"]: {
                "retention": queue["MessageRetentionPeriod"],
                "visibility": queue.get("VisibilityTimeout"),
                "wait": queue.get("ReceiveMessageWaitTimeSeconds"),
                "sse": queue.get("SqsManagedSseEnabled"),
                "key": queue.get("KmsMasterKeyId"),
                "redrive": queue.get("RedrivePolicy"),
            }
            for queue in queues
        },
        "redrive allowed": {queue["QueueName"]: queue["RedriveAllowPolicy"] for queue in queues},
        "queue policies": {
            # A role's name is made up: CloudFormation's by the resource, Terraform's by a prefix.
            policy["Queues"][0]: _sorted(
                json.loads(json.dumps(policy["PolicyDocument"]).replace(*SENDER_ROLES)),
            )
            for policy in stack.resources("AWS::SQS::QueuePolicy").values()
        },
        "rules": {
            rule["Name"]: (rule["Description"], rule["EventPattern"])
            for rule in stack.resources("AWS::Events::Rule").values()
        },
        "targets": {
            rule["Name"]: (target["Id"], target["Arn"], target["DeadLetterConfig"]["Arn"])
            for rule in stack.resources("AWS::Events::Rule").values()
            for target in rule["Targets"]
        },
        "key": [_sorted(key["KeyPolicy"]) for key in stack.resources("AWS::KMS::Key").values()],
        "trust": {
            role["Description"]: _sorted(document(role["AssumeRolePolicyDocument"]))
            for role in stack.resources("AWS::IAM::Role").values()
        },
        "boundaries": {
            role["Description"]: role.get("PermissionsBoundary")
            for role in stack.resources("AWS::IAM::Role").values()
        },
        "alarms": [
            {
                "name": alarm["AlarmName"],
                "text": alarm["AlarmDescription"],
                "of": (alarm["Namespace"], alarm["MetricName"], alarm["Statistic"], alarm["Period"]),
                "queue": {each["Name"]: each["Value"] for each in alarm["Dimensions"]},
                "over": (alarm["ComparisonOperator"], alarm["Threshold"], alarm["EvaluationPeriods"]),
                "missing": alarm["TreatMissingData"],
                "tells": alarm["AlarmActions"],
            }
            for alarm in stack.resources("AWS::CloudWatch::Alarm").values()
        ],
        "policies": {
            policy["PolicyName"]: _sorted(document(policy["PolicyDocument"]))
            for policy in stack.resources("AWS::IAM::Policy").values()
        },
        "associations": [
            (each["ClusterName"], each["Namespace"], each["ServiceAccount"])
            for each in stack.resources("AWS::EKS::PodIdentityAssociation").values()
        ],
    }


def of_plan(planned: Json) -> Json:
    """Returns the compared parts of the plan."""

    def values(kind: str) -> list[Json]:
        return [resource["values"] for resource in _resources(planned, kind)]

    return {
        "queues": {
            queue["name"]: {
                "retention": queue["message_retention_seconds"],
                "visibility": queue["visibility_timeout_seconds"],
                "wait": queue["receive_wait_time_seconds"],
                "sse": queue["sqs_managed_sse_enabled"],
                "key": queue["kms_master_key_id"],
                "redrive": json.loads(queue["redrive_policy"] or "null"),
            }
            for queue in values("aws_sqs_queue")
        },
        "redrive allowed": {
            each["queue_url"].rsplit("/", 1)[1]: json.loads(each["redrive_allow_policy"])
            for each in values("aws_sqs_queue_redrive_allow_policy")
        },
        "queue policies": {
            each["queue_url"].rsplit("/", 1)[1]: _sorted(json.loads(each["policy"]))
            for each in values("aws_sqs_queue_policy")
        },
        "rules": {
            rule["name"]: (rule["description"], json.loads(rule["event_pattern"]))
            for rule in values("aws_cloudwatch_event_rule")
        },
        "targets": {
            target["rule"]: (target["target_id"], target["arn"], target["dead_letter_config"][0]["arn"])
            for target in values("aws_cloudwatch_event_target")
        },
        "key": [_sorted(json.loads(key["policy"])) for key in values("aws_kms_key")],
        "trust": {
            role["description"]: _sorted(json.loads(role["assume_role_policy"])) for role in values("aws_iam_role")
        },
        "boundaries": {role["description"]: role["permissions_boundary"] for role in values("aws_iam_role")},
        "alarms": [
            {
                "name": alarm["alarm_name"],
                "text": alarm["alarm_description"],
                "of": (alarm["namespace"], alarm["metric_name"], alarm["statistic"], alarm["period"]),
                "queue": alarm["dimensions"],
                "over": (alarm["comparison_operator"], alarm["threshold"], alarm["evaluation_periods"]),
                "missing": alarm["treat_missing_data"],
                "tells": alarm["alarm_actions"],
            }
            for alarm in values("aws_cloudwatch_metric_alarm")
        ],
        "policies": {policy["name"]: _sorted(json.loads(policy["policy"])) for policy in values("aws_iam_role_policy")},
        "associations": [
            (each["cluster_name"], each["namespace"], each["service_account"])
            for each in values("aws_eks_pod_identity_association")
        ],
    }


def _resources(planned: Json, kind: str) -> list[Json]:
    return [each for each in planned["root_module"]["resources"] if each["type"] == kind]


def _sorted(value: Any) -> Any:
    """Returns a policy in a normal form: lists sorted, single values as lists."""
    if isinstance(value, dict):
        return {key: _sorted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        inner = sorted((_sorted(each) for each in value), key=lambda each: json.dumps(each, sort_keys=True))
        return inner[0] if len(inner) == 1 else inner
    return value


def _kept(hook: Json, names: Any) -> str:
    return json.dumps({key: hook[key] for key in names}, sort_keys=True)


def _text(name: str) -> str:
    return (FOLDER / "terraform" / name).read_text()
