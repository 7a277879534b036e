"""The templates create the rules of docs/events.md and a policy for exactly the calls in the code."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

import cfn_template
from cfn_template import (
    FOLDER,
    HOOKS,
    NO_PERMISSION_NEEDED,
    NOT_THE_SERVICE,
    Refused,
    Stack,
    allowed,
    document,
    of_stack,
)
from cfn_template import service_policies as policies
from iam import Request, may_send

ROOT = FOLDER.parents[1]
ACCOUNT, REGION, NAME = "123456789012", "eu-west-1", "ebbtide-blue"

KINDS = ["AsgTerminate", "AsgLaunch", "Spot", "Rebalance", "StateChange", "ScheduledChange", "CapacityReservation", "ZonalShift"]
EVERY_KIND = dict.fromkeys(KINDS, "true")
EVERYTHING = EVERY_KIND | {
    "Encryption": "new-key",
    "NotificationRole": "true",
    "ClusterName": "blue",
    "DoctorPermissions": "true",
}

OPTIONS = {
    "DoctorPermissions": "true",
    "Ec2Polling": "true",
    "Verify": "true",
    "Replace": "true",
    "Reboot": "true",
    "LoadBalancers": "deregister",
    "ClusterName": "blue",
}
"""Parameters that grant more permissions."""

CALL = re.compile(r'\(\s*"(sqs|ec2|autoscaling|elasticloadbalancing|events|cloudwatch|sts|iam|kms)",\s*"([A-Z]\w+)"')
"""Pattern of a call to AWS in the code, the only form that `gate::aws` accepts."""


def stack(**parameters: str) -> Stack:
    return of_stack(NAME, parameters, REGION, ACCOUNT)


def calls(*parts: str) -> set[str]:
    """Returns the IAM actions of the calls in the code."""
    sources = [path for part in parts for path in (ROOT / "src").glob(part)]
    found = {
        f"{service}:{name.removesuffix('Batch')}"
        for path in sources
        for service, name in CALL.findall(path.read_text())
    }
    return found - NO_PERMISSION_NEEDED - NOT_THE_SERVICE


def test_exactly_the_calls_in_the_code_are_permitted() -> None:
    made = policies(stack(**OPTIONS))
    named = ("Service", "Lifecycle", "Polling", "Verify", "Replace", "Reboot", "LoadBalancers", "Deregistration")
    service = set().union(*(allowed(made[f"{name}Policy"]) for name in named))
    doctor = allowed(made["DoctorPolicy"])
    # A test message of a lifecycle action needs its group and hook.
    of_doctor = calls("commands/doctor.rs", "commands/doctor/**/*.rs", "commands/test_message/group.rs")
    everything = calls("**/*.rs")
    assert {"sqs:ReceiveMessage", "autoscaling:CompleteLifecycleAction"} <= everything, "found no calls in the code"
    assert everything <= service | doctor, "a call without a permission: add it to both templates and to README.md"
    assert service <= everything, "a permission without a call"
    assert doctor <= of_doctor, "a permission of doctor and simulate that neither uses"


NTHS_OWN = {
    "autoscaling:CompleteLifecycleAction",
    "autoscaling:DescribeAutoScalingInstances",
    "autoscaling:DescribeTags",
    "ec2:DescribeInstances",
    "sqs:DeleteMessage",
    "sqs:ReceiveMessage",
}
"""The permissions of aws-node-termination-handler's role, by its README."""


def test_nths_role_gets_what_it_lacks() -> None:
    page = (ROOT / "docs" / "migrating-helm.md").read_text().replace("'\"$NTH_QUEUE_ARN\"'", "arn")
    (document,) = re.findall(r"--policy-document '([^']*)'", page)
    made = policies(stack())
    service = set().union(*(allowed(made[f"{name}Policy"]) for name in ("Service", "Lifecycle", "Verify")))
    added = allowed(json.loads(document))
    assert added - {"sqs:GetQueueAttributes"} <= service <= added | NTHS_OWN


def test_an_existing_key_needs_only_decrypt() -> None:
    assert "KeyPolicy" not in policies(stack())
    made = policies(stack(Encryption="new-key"))["KeyPolicy"]
    assert allowed(made) == {"kms:Decrypt"}
    assert made["Statement"][0]["Resource"] == f"arn:aws:kms:{REGION}:{ACCOUNT}:key/made"


def test_only_the_doctor_has_its_permissions_and_they_only_read() -> None:
    made = policies(stack(DoctorPermissions="true"))
    assert set(made) - set(policies(stack())) == {"DoctorPolicy"}
    assert all(re.search(":(Describe|List|Get|TestEventPattern$)", action) for action in allowed(made["DoctorPolicy"]))


def test_only_the_polling_of_ec2_has_its_permissions() -> None:
    assert set(policies(stack(Ec2Polling="true"))) - set(policies(stack())) == {"PollingPolicy"}


def test_only_verification_has_its_permissions() -> None:
    assert set(policies(stack())) - set(policies(stack(Verify="false"))) == {"VerifyPolicy"}


def test_only_the_action_replace_has_its_permissions_for_groups_with_the_tag() -> None:
    made = policies(stack(Replace="true", ClusterName="blue"))
    assert set(made) - set(policies(stack(ClusterName="blue"))) == {"ReplacePolicy"}
    health = made["ReplacePolicy"]["Statement"][0]
    assert health["Action"] == "autoscaling:SetInstanceHealth"
    assert health["Condition"] == {"StringLike": {"aws:ResourceTag/kubernetes.io/cluster/blue": "*"}}


def test_only_the_action_reboot_has_its_permission_for_instances_with_the_tag() -> None:
    made = policies(stack(Reboot="true", ClusterName="blue"))
    assert set(made) - set(policies(stack(ClusterName="blue"))) == {"RebootPolicy"}
    (reboot,) = made["RebootPolicy"]["Statement"]
    assert reboot["Action"] == "ec2:RebootInstances"
    assert reboot["Resource"] == f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/*"
    assert reboot["Condition"] == {"StringLike": {"aws:ResourceTag/kubernetes.io/cluster/blue": "*"}}


def test_only_what_is_done_for_load_balancers_has_its_permissions() -> None:
    for mode, made in (("wait", {"LoadBalancersPolicy"}), ("deregister", {"LoadBalancersPolicy", "DeregistrationPolicy"})):
        assert set(policies(stack(LoadBalancers=mode, ClusterName="blue"))) - set(policies(stack())) == made


def test_the_service_cannot_send_and_only_what_changes_nothing_is_unrestricted() -> None:
    for name, policy in policies(stack(**EVERYTHING)).items():
        for statement in policy["Statement"]:
            actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
            assert not [action for action in actions if "*" in action or "Send" in action], name
            if statement["Resource"] == "*":
                assert all(re.search(":(Describe|List|TestEventPattern$)", action) for action in actions), (name, actions)


@pytest.mark.parametrize(
    ("parameters", "key", "value"),
    [
        ({}, "aws-node-termination-handler/managed", "*"),
        ({"ClusterName": "blue"}, "kubernetes.io/cluster/blue", "*"),
        ({"ClusterName": "blue", "LifecycleTagKey": "team", "LifecycleTagValue": "sea"}, "team", "sea"),
    ],
)
def test_lifecycle_calls_are_for_groups_with_the_tag(parameters: dict[str, str], key: str, value: str) -> None:
    (statement,) = policies(stack(**parameters))["LifecyclePolicy"]["Statement"]
    assert statement["Condition"] == {"StringLike": {f"aws:ResourceTag/{key}": value}}
    assert statement["Resource"].startswith(f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:")


def test_the_rules_match_the_documentation() -> None:
    page = (ROOT / "docs" / "events.md").read_text().split("## EventBridge rules")[1].split("\n## ")[0]
    documented = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    rules = stack(**EVERY_KIND).resources("AWS::Events::Rule")
    assert [rule["EventPattern"] for rule in rules.values()] == documented
    assert list(rules) == [f"{kind}Rule" for kind in KINDS]


@pytest.mark.parametrize("off", [None, *KINDS])
def test_the_queues_accept_events_of_exactly_the_created_rules(off: str | None) -> None:
    made = stack(**EVERY_KIND) if off is None else stack(**(EVERY_KIND | {off: "false"}))
    rules = made.resources("AWS::Events::Rule")
    assert f"{off}Rule" not in rules
    arns = [f"arn:aws:events:{REGION}:{ACCOUNT}:rule/{rule['Name']}" for rule in rules.values()]
    queues = {name: f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}" for name in (NAME, f"{NAME}-dead-letters")}
    assert [policy["Queues"] for policy in made.resources("AWS::SQS::QueuePolicy").values()] == [
        [name] for name in queues
    ]
    for policy in made.resources("AWS::SQS::QueuePolicy").values():
        (queue,) = policy["Queues"]
        allow, *others, deny = policy["PolicyDocument"]["Statement"]
        assert [other["Sid"] for other in others] == (["OnlyTheseSenders"] if queue == NAME else [])
        assert allow["Principal"] == {"Service": "events.amazonaws.com"}
        assert allow["Condition"] == {"ArnEquals": {"aws:SourceArn": arns}}
        assert (deny["Effect"], deny["Action"], deny["Principal"]) == ("Deny", "sqs:*", "*")
        assert deny["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        assert allow["Resource"] == deny["Resource"] == queues[queue]
    for rule in rules.values():
        (target,) = rule["Targets"]
        assert target["Arn"] == queues[NAME]
        assert target["DeadLetterConfig"] == {"Arn": queues[f"{NAME}-dead-letters"]}


RULE = f"arn:aws:events:{REGION}:{ACCOUNT}:rule/{NAME}-spot"
TOPIC = f"arn:aws:sns:{REGION}:{ACCOUNT}:interruptions"
ON_CALL = f"arn:aws:iam::{ACCOUNT}:role/on-call"
NOTIFIER = f"arn:aws:iam::{ACCOUNT}:role/NotificationSender"
CENTRAL = "arn:aws:iam::210987654321:role/central-bus"
ADMIN = f"arn:aws:iam::{ACCOUNT}:role/aws-reserved/sso.amazonaws.com/eu-west-1/AWSReservedSSO_Admin_0123"


def sends(request: Request, **parameters: str) -> bool:
    """Returns whether the queue of a stack with these parameters takes the message; IAM allows the sender all."""
    policy = stack(**parameters).resources("AWS::SQS::QueuePolicy")["QueuePolicies"]["PolicyDocument"]
    return may_send(policy, f"arn:aws:sqs:{REGION}:{ACCOUNT}:{NAME}", request)


@pytest.mark.parametrize(
    "attacker",
    [
        Request.of_principal(f"arn:aws:iam::{ACCOUNT}:role/nodes"),
        Request.of_principal(f"arn:aws:iam::{ACCOUNT}:user/ci"),
        Request.of_principal(f"arn:aws:iam::{ACCOUNT}:root"),
        Request.of_principal("arn:aws:iam::210987654321:role/any"),
        # Keys that other services give on behalf of something else.
        Request.of_principal(
            f"arn:aws:iam::{ACCOUNT}:role/nodes", **{"aws:SourceArn": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:any"}
        ),
        Request.of_service("events.amazonaws.com", f"arn:aws:events:{REGION}:{ACCOUNT}:rule/other"),
        Request.of_service("events.amazonaws.com", f"arn:aws:events:{REGION}:210987654321:rule/{NAME}-spot"),
        Request.of_service("sns.amazonaws.com", f"arn:aws:sns:{REGION}:{ACCOUNT}:other"),
        Request.of_service("s3.amazonaws.com", "arn:aws:s3::123456789012:any"),
    ],
    ids=lambda request: request.keys.get("aws:SourceArn", request.keys.get("aws:PrincipalArn")),
)
@pytest.mark.parametrize(
    "parameters",
    [{}, {"NotificationRole": "true", "TopicArns": TOPIC, "SenderArns": ON_CALL}],
    ids=["default", "others named"],
)
def test_the_queue_refuses_who_may_send_by_iam_alone(attacker: Request, parameters: dict[str, str]) -> None:
    assert not sends(attacker, **parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"NotificationRole": "true"},
        {"TopicArns": TOPIC},
        {"SenderArns": ON_CALL},
        {"NotificationRole": "true", "TopicArns": TOPIC, "SenderArns": f"{ON_CALL},{CENTRAL}"},
    ],
    ids=lambda parameters: " ".join(parameters) or "default",
)
def test_the_queue_takes_what_the_stack_names_and_only_that(parameters: dict[str, str]) -> None:
    assert sends(Request.of_service("events.amazonaws.com", RULE), **parameters)
    named = {
        "NotificationRole": Request.of_principal(NOTIFIER),
        "TopicArns": Request.of_service("sns.amazonaws.com", TOPIC),
        "SenderArns": Request.of_principal(ON_CALL),
    }
    for parameter, request in named.items():
        assert sends(request, **parameters) is (parameter in parameters), parameter
    # Of another account's role only the Deny is lifted: an Allow of that role remains the user's to add.
    assert not sends(Request.of_principal(CENTRAL), **parameters)


def test_a_sender_may_be_a_pattern() -> None:
    pattern = f"arn:aws:iam::{ACCOUNT}:role/aws-reserved/sso.amazonaws.com/*/AWSReservedSSO_Admin_*"
    assert sends(Request.of_principal(ADMIN), SenderArns=pattern)
    assert not sends(Request.of_principal(ADMIN))


def test_a_created_key_allows_sns_only_with_a_topic() -> None:
    events, sns = "events.amazonaws.com", "sns.amazonaws.com"
    for parameters, services in (({}, events), ({"TopicArns": TOPIC}, [events, sns])):
        (key,) = stack(Encryption="new-key", **parameters).resources("AWS::KMS::Key").values()
        (statement,) = (each for each in key["KeyPolicy"]["Statement"] if each["Sid"] == "EventBridge")
        assert statement["Principal"] == {"Service": services}


def test_a_message_outlasts_the_longest_hook_and_a_dead_letter_the_message() -> None:
    longest = Stack(cfn_template.STACK, {}, {}).template["Parameters"]["MessageRetentionSeconds"]
    assert longest["MinValue"] >= 48 * 3600
    queues = stack().resources("AWS::SQS::Queue")
    assert queues["DeadLetterQueue"]["MessageRetentionPeriod"] >= longest["MaxValue"]
    assert queues["Queue"]["RedrivePolicy"]["maxReceiveCount"] == 10
    allow = queues["DeadLetterQueue"]["RedriveAllowPolicy"]
    assert allow == {"redrivePermission": "byQueue", "sourceQueueArns": [f"arn:aws:sqs:{REGION}:{ACCOUNT}:{NAME}"]}


def test_no_other_queue_sends_its_dead_letters_to_the_queue() -> None:
    """SQS asks no queue policy for them, so everyone who may create a queue could send messages that way."""
    assert stack().resources("AWS::SQS::Queue")["Queue"]["RedriveAllowPolicy"] == {"redrivePermission": "denyAll"}


@pytest.mark.parametrize(
    ("encryption", "key"),
    [
        ({"Encryption": "sqs"}, None),
        ({"Encryption": "new-key"}, f"arn:aws:kms:{REGION}:{ACCOUNT}:key/made"),
        (
            {"Encryption": "existing-key", "KmsKeyArn": f"arn:aws:kms:{REGION}:{ACCOUNT}:key/mine"},
            f"arn:aws:kms:{REGION}:{ACCOUNT}:key/mine",
        ),
    ],
)
def test_both_queues_are_encrypted(encryption: dict[str, str], key: str | None) -> None:
    for queue in stack(**encryption).resources("AWS::SQS::Queue").values():
        assert queue.get("KmsMasterKeyId") == key
        assert queue.get("SqsManagedSseEnabled", False) is (key is None)


def test_a_created_key_allows_eventbridge() -> None:
    (key,) = stack(Encryption="new-key").resources("AWS::KMS::Key").values()
    assert key["EnableKeyRotation"] is True
    (statement,) = (each for each in key["KeyPolicy"]["Statement"] if each["Sid"] == "EventBridge")
    assert statement["Principal"] == {"Service": "events.amazonaws.com"}
    assert statement["Action"] == ["kms:Decrypt", "kms:GenerateDataKey"]


def test_irsa_trusts_one_service_account_of_the_issuer() -> None:
    issuer = "oidc.eks.eu-west-1.amazonaws.com/id/0123"
    provider = f"arn:aws:iam::{ACCOUNT}:oidc-provider/{issuer}"
    made = stack(Identity="irsa", OidcProviderArn=provider, Namespace="tide", ServiceAccount="ebb", ClusterName="blue")
    (statement,) = document(made.resources("AWS::IAM::Role")["Role"]["AssumeRolePolicyDocument"])["Statement"]
    assert statement["Principal"] == {"Federated": provider}
    assert statement["Action"] == "sts:AssumeRoleWithWebIdentity"
    expected = {f"{issuer}:aud": "sts.amazonaws.com", f"{issuer}:sub": "system:serviceaccount:tide:ebb"}
    assert statement["Condition"] == {"StringEquals": expected}
    assert not made.resources("AWS::EKS::PodIdentityAssociation")


def test_pod_identity_trusts_one_service_account_and_binds_it_for_a_known_cluster() -> None:
    made = stack(ClusterName="blue", Namespace="tide", ServiceAccount="ebb")
    (statement,) = made.resources("AWS::IAM::Role")["Role"]["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert statement["Action"] == ["sts:AssumeRole", "sts:TagSession"]
    tags = {"aws:RequestTag/kubernetes-namespace": "tide", "aws:RequestTag/kubernetes-service-account": "ebb"}
    assert statement["Condition"] == {"StringEquals": tags | {"aws:RequestTag/eks-cluster-name": "blue"}}
    (association,) = made.resources("AWS::EKS::PodIdentityAssociation").values()
    assert (association["ClusterName"], association["Namespace"], association["ServiceAccount"]) == (
        "blue",
        "tide",
        "ebb",
    )
    unknown = stack(Namespace="tide", ServiceAccount="ebb")
    assert not unknown.resources("AWS::EKS::PodIdentityAssociation")
    (statement,) = unknown.resources("AWS::IAM::Role")["Role"]["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Condition"] == {"StringEquals": tags}


@pytest.mark.parametrize(
    ("parameters", "annotations"),
    [
        ({"ClusterName": "blue"}, None),
        ({"Identity": "existing-role", "RoleName": "nodes"}, None),
        (
            {"Identity": "irsa", "OidcProviderArn": f"arn:aws:iam::{ACCOUNT}:oidc-provider/oidc.example/id/0123"},
            {"eks.amazonaws.com/role-arn": f"arn:aws:iam::{ACCOUNT}:role/Role"},
        ),
    ],
    ids=["pod identity", "existing role", "irsa"],
)
def test_the_values_name_queue_region_and_service_account(parameters: dict[str, str], annotations: dict[str, str] | None) -> None:
    # A name of digits stays a text.
    values = yaml.safe_load(stack(ServiceAccount="0123", **parameters).outputs()["HelmValues"])
    account = {"name": "0123"} | ({"annotations": annotations} if annotations else {})
    assert values == {"queueUrl": NAME, "aws": {"region": REGION}, "serviceAccount": account}


def test_only_groups_of_the_account_send_with_the_notification_role() -> None:
    made = stack(NotificationRole="true")
    (statement,) = made.resources("AWS::IAM::Role")["NotificationSender"]["AssumeRolePolicyDocument"]["Statement"]
    groups = f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:*:autoScalingGroupName/*"
    expected = {"StringEquals": {"aws:SourceAccount": ACCOUNT}, "ArnLike": {"aws:SourceArn": groups}}
    assert statement["Condition"] == expected


def test_every_role_gets_the_permissions_boundary() -> None:
    boundary = f"arn:aws:iam::{ACCOUNT}:policy/boundary"
    roles = stack(NotificationRole="true", PermissionsBoundaryArn=boundary).resources("AWS::IAM::Role")
    assert [role["PermissionsBoundary"] for role in roles.values()] == [boundary, boundary]
    assert not any("PermissionsBoundary" in role for role in stack().resources("AWS::IAM::Role").values())


def test_dead_letters_are_told_to_a_topic() -> None:
    topic = f"arn:aws:sns:{REGION}:{ACCOUNT}:on-call"
    made = stack(AlarmTopicArn=topic)
    (alarm,) = made.resources("AWS::CloudWatch::Alarm").values()
    assert alarm["AlarmActions"] == [topic]
    (dimension,) = alarm["Dimensions"]
    assert dimension["Value"] in {queue["QueueName"] for queue in made.resources("AWS::SQS::Queue").values()}
    assert dimension["Value"].endswith("-dead-letters")
    assert not stack().resources("AWS::CloudWatch::Alarm")


def test_an_existing_role_gets_the_policies() -> None:
    made = stack(Identity="existing-role", RoleName="nodes")
    assert "Role" not in made.resources("AWS::IAM::Role")
    assert all(policy["Roles"] == ["nodes"] for policy in made.resources("AWS::IAM::Policy").values())
    assert "RoleArn" not in made.outputs()


def test_every_partition_has_its_own_arns() -> None:
    pseudo = {
        "AWS::StackName": NAME,
        "AWS::Partition": "aws-cn",
        "AWS::Region": "cn-north-1",
        "AWS::AccountId": ACCOUNT,
    }
    made = Stack(cfn_template.STACK, EVERYTHING | OPTIONS, pseudo)
    assert "arn:aws:" not in json.dumps(made.resources())
    assert "arn:aws-cn:iam:" in json.dumps(made.resources())


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"Identity": "irsa"}, "needs OidcProviderArn"),
        ({"Identity": "existing-role"}, "needs RoleName"),
        ({"Identity": "irsa", "OidcProviderArn": "oidc.eks/id/1"}, "must be the ARN of an IAM OIDC provider"),
        ({"Encryption": "existing-key"}, "needs KmsKeyArn"),
        ({"Encryption": "existing-key", "KmsKeyArn": "alias/mine"}, "must be the ARN of a KMS key"),
        ({"Namespace": '"'}, "must be the name of a Kubernetes namespace"),
        ({"ServiceAccount": "A"}, "must be the name of a Kubernetes service account"),
        ({"OidcAudience": '"'}, "must be an audience"),
        ({"ClusterName": '"'}, "must be a cluster name"),
        ({"MessageRetentionSeconds": "300"}, "MessageRetentionSeconds"),
        ({"LifecycleTagKey": '"}'}, "must be a tag key"),
        ({"LifecycleTagValue": '"'}, "must be a tag value"),
        ({"TopicArns": f"arn:aws:sns:{REGION}:{ACCOUNT}:a,b"}, "must be ARNs of SNS topics"),
        ({"SenderArns": f"arn:aws:sts::{ACCOUNT}:assumed-role/on-call/me"}, "must be ARNs of IAM roles or users"),
        ({"SenderArns": f"arn:aws:iam::{ACCOUNT}:root"}, "all roles of an account are arn:aws:iam::ACCOUNT:role/*"),
        ({"AlarmTopicArn": "on-call"}, "must be the ARN of an SNS topic"),
        ({"PermissionsBoundaryArn": "boundary"}, "must be the ARN of an IAM policy"),
        ({"Replace": "true", "LifecycleTagKey": "team"}, "Replace needs ClusterName"),
        ({"Reboot": "true", "LifecycleTagKey": "team"}, "Reboot needs ClusterName"),
        ({"LoadBalancers": "deregister"}, "LoadBalancers deregister needs ClusterName"),
        (dict.fromkeys(KINDS, "false"), "At least one kind"),
    ],
)
def test_bad_parameters_are_refused_with_a_sentence(parameters: dict[str, str], sentence: str) -> None:
    with pytest.raises(Refused, match=re.escape(sentence)):
        stack(**parameters)


def test_each_group_gets_its_hooks() -> None:
    made = Stack(HOOKS, {"Groups": "blue-a,blue-b", "LaunchHooks": "true"}, {}).resources()
    hooks = [(hook["AutoScalingGroupName"], hook["LifecycleHookName"], hook["DefaultResult"]) for hook in made.values()]
    assert hooks == [
        ("blue-a", "ebbtide", "CONTINUE"),
        ("blue-a", "ebbtide-launch", "ABANDON"),
        ("blue-b", "ebbtide", "CONTINUE"),
        ("blue-b", "ebbtide-launch", "ABANDON"),
    ]
    assert not [hook for hook in made.values() if "RoleARN" in hook or "NotificationTargetARN" in hook]
    with pytest.raises(Refused, match="needs NotificationRoleArn"):
        Stack(HOOKS, {"QueueArn": "arn:aws:sqs:eu-west-1:123456789012:ebbtide"}, {})


# The policies of docs/aws-policies.md, by heading.

PROVIDER = f"arn:aws:iam::{ACCOUNT}:oidc-provider/oidc.eks.{REGION}.amazonaws.com/id/0123456789ABCDEF"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/01234567-89ab-cdef-0123-456789abcdef"
OF_THE_SERVICE = ("ServicePolicy", "LifecyclePolicy")
OF_OPTIONS = tuple(
    f"{name}Policy" for name in ("Key", "Polling", "Verify", "Replace", "Reboot", "LoadBalancers", "Deregistration")
)


def page_policies() -> dict[str, Any]:
    """Returns the policies that the page must show, by heading: those of the templates for the cluster `blue`."""
    blue = stack(ClusterName="blue")
    irsa = stack(ClusterName="blue", Identity="irsa", OidcProviderArn=PROVIDER)
    everything = policies(stack(Encryption="existing-key", KmsKeyArn=KEY, **OPTIONS))
    assert {*OF_THE_SERVICE, *OF_OPTIONS, "DoctorPolicy"} == set(everything), "the page lacks a policy of the templates"

    def trust(made: Stack) -> dict[str, Any]:
        return document(made.resources("AWS::IAM::Role")["Role"]["AssumeRolePolicyDocument"])

    def together(*names: str) -> dict[str, Any]:
        statements = [statement for name in names for statement in everything[name]["Statement"]]
        return {"Version": "2012-10-17", "Statement": statements}

    notifies = stack(ClusterName="blue", NotificationRole="true", Encryption="existing-key", KmsKeyArn=KEY)
    of_sender = (notifies.resources("AWS::IAM::Policy")[f"Notification{name}Policy"] for name in ("", "Key"))
    sends = [statement for policy in of_sender for statement in policy["PolicyDocument"]["Statement"]]
    return {
        "Queue": blue.resources("AWS::SQS::QueuePolicy")["QueuePolicies"]["PolicyDocument"],
        "Trust: EKS Pod Identity": trust(blue),
        "Trust: IRSA": trust(irsa),
        "Service": together(*OF_THE_SERVICE),
        "Doctor": everything["DoctorPolicy"],
        "Options": together(*OF_OPTIONS),
        "Trust: hooks without EventBridge": notifies.resources("AWS::IAM::Role")["NotificationSender"]["AssumeRolePolicyDocument"],
        "Hooks without EventBridge": {"Version": "2012-10-17", "Statement": sends},
    }


def test_the_page_of_policies_shows_those_of_the_templates() -> None:
    page = (ROOT / "docs" / "aws-policies.md").read_text()
    shown = {
        section.split("\n", 1)[0]: [json.loads(block) for block in re.findall(r"```json\n(.*?)```", section, re.DOTALL)]
        for section in page.split("\n## ")[1:]
    }
    for heading, policy in page_policies().items():
        assert shown[heading] == [policy], f"{heading} must show {json.dumps(policy)}"
